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
    emitted: int = 0
    won: float = 0.0
    """Plain tokens that drafts won so far, lost if negative."""

    @property
    def tokens(self) -> float:
        """Plain tokens that the next draft may cost."""
        return max(self.numbers.stake, self.numbers.stake_share * self.emitted) + self.won

    def allows(self, cost: float) -> bool:
        """Whether a draft may be made that costs so many plain tokens if none of it is accepted."""
        return cost <= self.tokens

    def settle(self, emitted: int, cost: float) -> None:
        """A round emitted so many tokens, in the time of `cost` plain tokens (`emitted` if it was plain)."""
        self.emitted += emitted
        self.won = min(self.won + emitted - cost, self.numbers.winnings_most)
