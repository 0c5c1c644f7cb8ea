"""Parts of `replay_traces.py`: traces as a file, and cost tables."""
