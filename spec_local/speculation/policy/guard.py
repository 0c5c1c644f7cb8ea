"""What drafts may cost an answer: an account in plain tokens.

It starts with a small stake, grows by a little with every emitted token and by what drafts won, and falls by what they
lost. A draft is allowed if the account covers what it costs should nothing of it be accepted. So with right costs, after
n tokens an answer is behind plain decoding by at most stake + rate × n tokens, whatever any source says, on any curve.

It is also a slow start: the first draft is as long as the stake pays for on this machine, which is long where rows cost
little; each draft that is kept lengthens what the next one may risk, each that fails shortens it.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_local.speculation.policy.numbers import Numbers


@dataclass(slots=True)
class Account:
    """What one answer may still lose."""

    numbers: Numbers
    tokens: float

    def allows(self, cost: float) -> bool:
        """Whether a draft may be made that costs so many plain tokens if none of it is accepted."""
        return cost <= self.tokens

    def settle(self, emitted: int, cost: float) -> None:
        """A round emitted so many tokens, in the time of `cost` plain tokens (`emitted` if it was plain)."""
        tokens = self.tokens + self.numbers.stake_rate * emitted + emitted - cost
        self.tokens = min(tokens, self.numbers.stake_most)
