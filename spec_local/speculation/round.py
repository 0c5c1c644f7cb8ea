"""`Round`, the record of one round of one sequence. Every figure shown anywhere is derived from these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """Draft, one target pass, acceptance: 0 ≤ accepted ≤ tested ≤ drafted and accepted ≤ emitted ≤ accepted + 1."""

    source: str
    """"text", "model" or "grammar": who drafted, even where none of it was submitted; "none": plain decoding."""
    width: int
    """Rows of this sequence in the target pass: 1 + submitted tokens (more where accepted tokens are read again)."""
    drafted: int
    """Tokens the drafter made."""
    tested: int
    """Drafted tokens that were submitted to the target pass, without those that lie behind an end of the text."""
    accepted: int
    """Drafted tokens that were kept."""
    emitted: int
    """Tokens added to the text: the accepted ones and, unless the text ended inside them, the target's own."""
    draft_s: float
    """Seconds in the drafter, catching up included; shared by all `sequences` of the round."""
    verify_s: float
    """Seconds in the target pass; shared by all `sequences` of the round."""
    host_s: float
    """Seconds in everything else (planning, transforms, acceptance, trimming); shared by all `sequences`."""
    reason: str
    """The controller's words for this decision."""
    sequences: int = 1
    """Sequences that went through the same round together."""
    plain_s: float | None = None
    """Seconds a plain round was expected to take instead, as the controller knew then; None where it did not know."""

    @property
    def seconds(self) -> float:
        """Wall time of the round, in seconds."""
        return self.draft_s + self.verify_s + self.host_s
