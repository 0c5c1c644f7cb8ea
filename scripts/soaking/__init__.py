"""The soak: random conversations with faults, and the design's invariants after every step."""
