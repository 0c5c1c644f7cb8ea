"""What drafts may cost an answer: an account in plain tokens, the time in which plain decoding emits one.

An answer may lose a small stake, or a small share of what it has emitted if that is more, and what drafts won before. A
draft is allowed if the account covers what it costs should none of it be accepted. So if costs are right, an answer is
never behind plain decoding by more than stake or share, whatever any source says, on any curve.

This is a slow start too: the first draft is as long as the stake pays for on this machine, which is long if rows cost
little; a draft that is kept lengthens what the next one may risk, one that fails shortens it.
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
        self.won += emitted - cost
