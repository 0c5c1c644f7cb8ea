"""Many prompts from a file, one record for each: reading, scheduling, writing and resuming. Knows no command line."""
