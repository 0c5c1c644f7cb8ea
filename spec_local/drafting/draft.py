"""`Draft`, a run of proposed tokens with what the acceptance rule and the controller need to know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    """One number in [0, 1] per token, comparable only within one source: the draft model's probability of the token
    (at temperature 1, whatever it was drawn with); the text drafter's estimate that the text goes on with it."""
    passes: list[int] = field(default_factory=list)
    """Rows of every pass of a model that this draft took, in order; empty where no model ran."""

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Draft:
        """The first `length` tokens (all of them where there are fewer) as a draft of their own."""
        if length >= len(self.tokens):
            return self
        rows = None if self.rows is None else self.rows[:length]
        return Draft(self.tokens[:length], rows, self.source, self.confidence[:length], self.passes)


NO_SOURCE = "none"
"""Source of a round that drafted nothing."""
TEXT_SOURCE = "text"
"""Source of drafts from the text itself."""
MODEL_SOURCE = "model"
"""Source of a draft model's drafts."""
GRAMMAR_SOURCE = "grammar"
"""Source of drafts that spell what a grammar makes certain."""


def no_draft() -> Draft:
    """The empty draft: the round is plain decoding."""
    return Draft([], None, NO_SOURCE, [])
