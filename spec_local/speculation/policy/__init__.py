"""The policy: which source drafts this round, and how far. `chooser` is where to begin reading."""
