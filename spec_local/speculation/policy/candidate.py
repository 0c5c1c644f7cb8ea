"""What a source can bring to a round, as the chooser compares it."""

from __future__ import annotations

from dataclasses import dataclass

from spec_local.speculation.policy.stopping import StoppingTable


@dataclass(slots=True)
class Candidate:
    """A draft that could be made."""

    source: str
    limit: int
    """Most tokens; 0: the source has nothing that pays, or that may be risked."""
    gain: float
    """Tokens it is expected to bring beyond what it costs."""
    reason: str
    """Why, in words for a person."""
    table: StoppingTable | None = None
    """Ends a draft while it is drawn."""
    spent: float = 0.0
    """Cost so far of a draft that is being drawn: its passes, and before the first one what it will cost."""
