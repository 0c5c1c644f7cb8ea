"""What rows and draft passes cost in tokens: their seconds, at what a second is worth in this round (`Plan.speed`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spec_local.speculation.controller import Plan as RoundPlan
from spec_local.speculation.cost import CostProfile


@dataclass(slots=True)
class Plan(RoundPlan):
    """A plan with what it was weighed with."""

    other_rows: int = 0
    """Rows of the other sequences in the same target pass, as planned."""
    sequences: int = 1
    """Sequences in the round."""
    trial: bool = False
    """Made to learn, against the present estimate."""
    bet: bool = False
    """It pays only if the answer goes on for a while: first the model must read much that it has missed."""
    speed: float = 0.0
    """Tokens a second is worth in this round."""
    rows: Sequence[float] = ()
    """Entry k: cost in tokens of submitting k + 1 drafted tokens instead of k."""
    survival: tuple[int, float] = (0, 1.0)
    """Drafted tokens looked at so far, and the probability that all of them are accepted."""


def step(costs: CostProfile, plan: Plan, rows: int) -> float:
    """A draft pass over `rows` rows of this sequence: its share of a pass for all of them."""
    assert costs.draft is not None
    seconds = costs.draft.seconds(rows + plan.sequences - 1, plan.seat.context)
    return plan.speed * seconds / plan.sequences


def reading(costs: CostProfile, plan: Plan) -> float:
    """One token more for the draft model to read in a pass."""
    assert costs.draft is not None
    return plan.speed / plan.sequences * costs.draft.per_row(plan.seat.context)


def rows(costs: CostProfile, plan: Plan, longest: int) -> list[float]:
    """Entry k: submitting k + 1 drafted tokens instead of k, for k below `longest`."""
    first = plan.other_rows + 1
    passes = costs.target.table(plan.seat.context)[first : first + longest + 1]
    if len(passes) <= longest:  # so many sequences that the table ends
        seconds, context = costs.target.seconds, plan.seat.context
        passes = [seconds(first + k, context) for k in range(longest + 1)]
    passes[1:] = [after + costs.rollback_s for after in passes[1:]]
    return [plan.speed * (after - before) for before, after in pairwise(passes)]


def best_length(plan: Plan, rates: Sequence[float], margin: float = 0.0) -> tuple[int, float]:
    """The length in 0..len(rates) with the largest expected gain for a draft accepted at these rates, and that gain.

    Args:
        plan: With the prices of its rows.
        rates: Acceptance of each token, those before it accepted.
        margin: Rows are to bring so much more than they cost, as a share of it.
    """
    best, length, net, reach = 0.0, 0, 0.0, 1.0
    for n, (rate, row) in enumerate(zip(rates, plan.rows, strict=False), 1):
        reach *= rate
        net += reach - (1 + margin) * row
        if net > best:
            best, length = net, n
    return length, best
