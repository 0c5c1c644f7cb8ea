"""One round for many sequences: plan, draft, verify, accept, trim; and the record of it."""
