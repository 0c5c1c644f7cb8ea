"""A source that must be run to see what it says: it is weighed by how sure it has been of its tokens on this text, with
the stopping table that will also end the draft.

What the source was not used for it must read first. A draft may be charged with all of that only if it is the last one;
so catching up must be earned within some rounds, and the guard must allow all of it at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from spec_local.drafting.draft import Draft
from spec_local.speculation.cost import Curve
from spec_local.speculation.policy.candidate import Candidate
from spec_local.speculation.policy.estimate import Level
from spec_local.speculation.policy.guard import Account
from spec_local.speculation.policy.numbers import Numbers
from spec_local.speculation.policy.prices import Prices, best_length
from spec_local.speculation.policy.stopping import StoppingTable, solve

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Bins of confidence in which a text's tokens are counted: even, and finer near 1, where drafts become long."""
MIDDLES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.925, 0.965, 0.99, 0.999)


@dataclass(slots=True)
class Drawn:
    """What is known of such a source on one text."""

    numbers: Numbers
    level: Level
    counts: list[float]
    """Forgetting histogram of its confidence, by bin."""
    tables: dict[tuple[int, ...], tuple[StoppingTable, int]] = field(default_factory=dict)
    """Stopping tables by steps of what they depend on, with the round they were made in."""

    @classmethod
    def start(cls, numbers: Numbers) -> Drawn:
        """Before anything was drawn."""
        level = Level(numbers, numbers.drawn_bias)
        return cls(numbers, level, [numbers.histogram_start * share for share in _shares(numbers)])

    def mean(self) -> float:
        """Acceptance that the next token is expected to have."""
        return sum(map(float.__mul__, self.level.rates(MIDDLES), self.counts)) / sum(self.counts)

    def table(self, prices: Prices, step: float, now: int) -> StoppingTable:
        """The stopping table for these prices, made anew if none of the last rounds fits."""
        n = self.numbers
        steps = (round(math.log(x) / n.table_step) for x in (prices.speed, step))
        key = (prices.others, round(self.level.level / (3 * n.table_step)), *steps)
        known = self.tables.get(key)
        if known is not None and known[1] + n.table_rounds > now:
            return known[0]
        total = sum(self.counts)
        table = solve(self.level.rates(MIDDLES), [count / total for count in self.counts], step, prices.rows)
        if len(self.tables) >= 16:
            self.tables.clear()
        self.tables[key] = table, now
        return table

    def learn(self, draft: Draft, tested: int, accepted: int) -> None:
        """A draft came back; of its tokens those up to the first rejected one were compared with the text."""
        memory = self.numbers.histogram_memory ** len(draft)
        self.counts = [memory * count for count in self.counts]
        for i, confidence in enumerate(draft.confidence):
            self.counts[bisect_right(EDGES, confidence)] += 1.0
            if i <= accepted and i < tested:
                self.level.learn(confidence, i < accepted)


def _shares(numbers: Numbers) -> list[float]:
    others = len(EDGES)
    return [(1 - numbers.sure_share) / others] * others + [numbers.sure_share]


def weigh(
    source: str,
    known: Drawn,
    curve: Curve,
    lag: int,
    prices: Prices,
    account: Account,
    room: int,
    rounds: float,
    now: int,
) -> Candidate:
    """How far such a draft may go, and what it is expected to bring.

    Args:
        source: For the reason.
        known: What is known of it on this text.
        curve: Seconds of its passes.
        lag: Rows that its first pass must read.
        prices: Of this round.
        account: What may be risked.
        room: Most tokens.
        rounds: Rounds in which catching up must be earned.
        now: Number of the round.
    """
    step = prices.step(curve)
    table = known.table(prices, step, now)
    gain = table.value
    catch_up = prices.step(curve, lag) - step
    if gain <= 0:
        return Candidate(source, 0, gain, "")
    cost, limit = catch_up, 0
    for k, row in enumerate(prices.rows[:room], 1):
        cost += step + row
        if account.allows(cost * prices.plain):
            limit = k
    if not limit or rounds * gain <= catch_up:
        why = f"it has {lag} tokens to read first" if lag > 2 else "drafts have cost this answer what they may"
        return Candidate(source, 0, 0.0, f"{source} draft off: {why}")
    reason = f"{source} draft on: {known.mean():.2f} acceptance expected"
    return Candidate(source, limit, gain, reason, table, catch_up + step)


def more(candidate: Candidate, drafted: int, survival: float, step: float, prices: Prices, account: Account) -> bool:
    """Whether to pay for another step after so many tokens that survive with this probability."""
    assert candidate.table is not None
    submit = sum(prices.rows[: drafted + 1])
    return candidate.table.more(drafted, survival) and account.allows((candidate.spent + step + submit) * prices.plain)


def shorten(known: Drawn, confidence: Sequence[float], candidate: Candidate, prices: Prices, account: Account) -> int:
    """How many of the tokens drawn to submit."""
    rates = known.level.rates(confidence)
    return best_length(rates, prices.rows, lambda cost: account.allows(cost * prices.plain), candidate.spent)[0]
