"""A source whose draft is there and costs nothing: it is weighed token by token, with its own confidence."""

from __future__ import annotations

from collections.abc import Sequence

from spec_local.drafting.draft import Draft
from spec_local.speculation.policy.candidate import Candidate
from spec_local.speculation.policy.estimate import Level
from spec_local.speculation.policy.guard import Account
from spec_local.speculation.policy.prices import Prices, best_length


def weigh(source: str, draft: Draft, level: Level, prices: Prices, account: Account, room: int) -> Candidate:
    """The best length of at most `room` tokens of this draft, and what it is expected to bring."""
    rates = level.rates(draft.confidence[:room])
    length, gain = best_length(rates, prices.rows, lambda cost: account.allows(cost * prices.plain))
    if length:
        return Candidate(source, length, gain, f"{source} draft on: {rates[0]:.2f} acceptance expected")
    return Candidate(
        source, 0, 0.0, f"{source} draft off: {rates[0]:.2f} acceptance expected does not pay for its rows"
    )


def learn(level: Level, draft: Draft, emitted: Sequence[int]) -> None:
    """Compare the draft with the text, submitted or not: that costs nothing."""
    for token, confidence, said in zip(draft.tokens, draft.confidence, emitted, strict=False):
        level.learn(confidence, token == said)
        if token != said:
            return
