"""The command line: flags, files, terminals and exit codes. Importing it loads neither llama.cpp nor Textual."""
