"""`Turn`: one sequence's part in a round, from its plan to its record."""

from __future__ import annotations

from dataclasses import dataclass

from spec_local.drafting.draft import NO_SOURCE, Draft
from spec_local.language_model import Chunk
from spec_local.speculation.controller import Outcome, Plan
from spec_local.speculation.round import Round
from spec_local.speculation.sequence import Sequence


@dataclass(slots=True)
class Turn:
    """A sequence that plays this step's round."""

    sequence: Sequence
    lag: int
    """Rows before its draft: its last token, and what it lacks besides."""
    plan: Plan
    draft: Draft
    """As submitted."""
    drafted: int = 0
    """Tokens that were drafted for it."""

    @property
    def chunk(self) -> Chunk:
        """Its part of the pass: row 0 follows its last token, row i follows x_i."""
        s = self.sequence
        return Chunk(s.slot, [*s.tokens[-self.lag :], *self.draft.tokens], 1 + len(self.draft))

    def record(self, counts: tuple[int, int, int], seconds: tuple[float, float, float], sequences: int) -> Outcome:
        """Append the record of the round to the sequence.

        Args:
            counts: Drafted tokens accepted, tested, and tokens emitted.
            seconds: In the drafters, in the target pass, and in everything else.
            sequences: That played the round together.

        Returns:
            What came of the plan.
        """
        s, plan = self.sequence, self.plan
        accepted, tested, emitted = counts
        draft_s, verify_s, host_s = seconds
        record = Round(
            source=self.draft.source if self.drafted else NO_SOURCE,
            width=self.lag + len(self.draft),
            drafted=self.drafted,
            tested=tested,
            accepted=accepted,
            emitted=emitted,
            draft_s=draft_s,
            verify_s=verify_s,
            host_s=host_s,
            reason=plan.reason,
            sequences=sequences,
            plain_s=plan.plain_s,
        )
        s.rounds.append(record)
        return Outcome(plan, record, self.draft, s.tokens[len(s.tokens) - emitted :])
