"""`Draft`, a run of proposed tokens with what the acceptance rule and the controller need to know of it."""

from __future__ import annotations

from dataclasses import dataclass

from spec_local.sampling.row import Row


@dataclass(slots=True)
class Draft:
    """Proposed continuation `x_1 .. x_γ` of one sequence; γ = 0 is an ordinary draft."""

    tokens: list[int]
    """The drafted ids [γ], in order; target vocabulary."""
    rows: list[Row] | None
    """`q_1 .. q_γ` the tokens were drawn from; None for one-hot drafts (text)."""
    source: str
    """Who drafted: "text", "model", "grammar", or "none" for the empty draft of a round without a drafter."""
    confidence: list[float]
    """One number per token, comparable only within one source: max q in [0, 1] for a model; for text the length in
    tokens of the match that leads to the token, those before it in this draft included."""

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Draft:
        """The first `length` tokens (all of them where there are fewer) as a draft of their own."""
        if length >= len(self.tokens):
            return self
        rows = None if self.rows is None else self.rows[:length]
        return Draft(self.tokens[:length], rows, self.source, self.confidence[:length])


NO_SOURCE = "none"
"""Source of a round that drafted nothing."""
GRAMMAR_SOURCE = "grammar"
"""Source of drafts that spell what a grammar makes certain."""


def no_draft() -> Draft:
    """The empty draft: the round is plain decoding."""
    return Draft([], None, NO_SOURCE, [])
