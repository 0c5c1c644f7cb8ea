"""What each acceptance rule would accept along a text, from target and draft rows alone: no draft is drawn.

Let Y be a text the target really wrote, p_i and q_i both models' rows before Y_i, and a round start anywhere in it.
Given that Y is what is emitted, the chance g_i that the round's first i drafted tokens are Y_1..Y_i and are accepted is
known in closed form, so expectations need no simulation of the rules, only texts:

* rejection: a drafted token equals y and is accepted with probability min(p(y), q(y)), and y is emitted with
  probability p(y), so g_i = Π_j min(1, q_j(Y_j)/p_j(Y_j)); its mean over y is 1 - TV(p, q).
* block: P(τ ≥ i, x^i = Y^i) = q(Y^i)·w_i (Sun et al. 2025), so g_i = w_i·Π_j q_j(Y_j)/p_j(Y_j).
* coupled: noise of different positions is independent, and both models choose y with probability
  1/Σ_z max(p(z)/p(y), q(z)/q(y)) (Daliri et al. 2025), so g_i is the product of these over p_j(Y_j).
* arg-max: a draft that proposes its likeliest token, under any rule: g_i = 1 while it is Y_j.

A round of γ drafted tokens emits 1 + Σ_{i≤γ} g_i on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spec_local.sampling.row import Row
from spec_local.verify.distribution import over


@dataclass(frozen=True, slots=True)
class Step:
    """One token of a text."""

    ratio: float
    """q(y)/p(y)."""
    coupled: float
    """Chance that the coupled draft's token is y, given that the target's is."""
    agrees: bool
    """Whether y is the draft's likeliest token."""
    overlap: float
    """1 - TV(p, q): the best acceptance any rule can have of one token here."""


class Pair:
    """Both models' rows of one position.

    Args:
        p: The target's.
        q: The draft's.
    """

    def __init__(self, p: Row, q: Row) -> None:
        self.p, self.q = p, q
        self._q_on_p = over(q, p.ids)  # [tokens of p]
        self._beside = max(0.0, 1.0 - float(self._q_on_p.sum()))  # what q gives to tokens that p does not hold
        self._overlap = float(np.minimum(p.probs, self._q_on_p).sum())
        self._likeliest = int(q.ids[np.argmax(q.probs)])

    def step(self, token: int) -> Step:
        """What the rules need to know where `token`, which p holds, is emitted."""
        chance, draft = self.p.prob(token), self.q.prob(token)
        assert chance > 0, "the token cannot come from this row"
        both = 0.0
        if draft > 0:  # Σ_z max(p(z)/p(y), q(z)/q(y)) over p's tokens, then over what q has besides
            on_p = float(np.maximum(self.p.probs / chance, self._q_on_p / draft).sum())
            both = 1 / (on_p + self._beside / draft)
        return Step(draft / chance, min(1.0, both / chance), self._likeliest == token, self._overlap)


RULES = ("coupled", "rejection", "block", "arg-max")


def kept(rule: str, steps: Sequence[Step]) -> list[float]:
    """g_1..g_γ for a round whose draft covers these tokens."""
    found = []
    reached = weight = product = 1.0
    for one in steps:
        if rule == "block":
            product *= one.ratio
            weight = min(1.0, weight / one.ratio) if one.ratio > 0 else 1.0
            reached = product * weight
        elif rule == "rejection":
            reached *= min(1.0, one.ratio)
        elif rule == "coupled":
            reached *= one.coupled
        else:
            reached *= one.agrees
        found.append(reached)
    return found


@dataclass(frozen=True, slots=True)
class Rates:
    """Figures of one rule over texts."""

    first: float
    """Chance that the first drafted token is accepted."""
    tokens_per_pass: float


def rates(rule: str, texts: Sequence[Sequence[Step]], length: int) -> Rates:
    """Means over every place in every text where a draft of `length` fits."""
    rounds = [kept(rule, text[at : at + length]) for text in texts for at in range(len(text) - length + 1)]
    assert rounds, "no text is as long as the draft"
    accepted = float(np.mean([sum(one) for one in rounds]))
    return Rates(float(np.mean([one[0] for one in rounds])), 1 + accepted)
