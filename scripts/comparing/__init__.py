"""Parts of `compare_llama_cpp.py`: settings to sweep, and llama.cpp's server in processes of its own."""
