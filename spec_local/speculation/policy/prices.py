"""What a round costs, in tokens: seconds, at what a second is worth to this answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spec_local.speculation.cost import CostProfile, Curve


@dataclass(slots=True)
class Prices:
    """For one sequence in one round."""

    speed: float
    """Tokens a second is worth: what this answer made of one lately, and at least what plain decoding makes of it."""
    plain: float
    """Plain tokens per such token, ≤ 1: what the guard counts in."""
    rows: list[float]
    """Entry k: cost of submitting k + 1 drafted tokens instead of k."""
    context: int
    """Tokens cached."""
    sequences: int = 1
    """Sequences that share the round."""
    others: int = 0
    """Rows of the other sequences in the same target pass, as planned."""

    def step(self, curve: Curve, rows: int = 1) -> float:
        """A pass of a drawn source over `rows` rows of this sequence: its share of a pass for all of them."""
        return self.speed * curve.seconds(rows + self.sequences - 1, self.context) / self.sequences


def row_prices(costs: CostProfile, speed: float, first: int, context: int, longest: int) -> list[float]:
    """Prices of the drafted rows [longest] of a pass that has `first` rows without them."""
    passes = costs.target.table(context)[first : first + longest + 1]
    if len(passes) <= longest:  # so many sequences that the table ends
        passes = [costs.target.seconds(first + k, context) for k in range(longest + 1)]
    passes[1:] = [after + costs.rollback_s for after in passes[1:]]
    return [speed * (after - before) for before, after in pairwise(passes)]


def best_length(
    rates: Sequence[float], rows: Sequence[float], allowed: Callable[[float], bool], spent: float = 0.0
) -> tuple[int, float]:
    """The length in 0..len(rates) with the largest expected gain, and that gain in tokens.

    Args:
        rates: Acceptance of each token, those before it accepted.
        rows: Their prices.
        allowed: Whether a draft may cost so many tokens, if none is accepted.
        spent: What it has cost already.
    """
    best, length, net, cost, reach, sure = 0.0, 0, 0.0, spent, 1.0, 0
    for n, (rate, row) in enumerate(zip(rates, rows, strict=False), 1):
        reach *= rate
        net += reach - row
        cost += row
        sure += reach == 1.0  # certain tokens are no risk
        if net > best and allowed(cost - sure):
            best, length = net, n
    return length, best
