"""Who proposes tokens: the draft model, and the text itself."""
