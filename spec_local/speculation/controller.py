"""Who drafts this round, and how far: the seam between the round and the policy.

One controller serves all sequences of an engine; what it remembers of one of them is its own `state`, which the round
only carries. In one round it is asked, in this order:

    controller.opens(seat, read)                   once, when a prompt has been read: which drafter should read it too?
    plans = controller.plan(seats)                 all sequences of the round together
    controller.guess(plan, draft, rows)            before a pass of a draft model: what to read along?
    controller.more(plan, confidence)              after each drawn token: draw another?
    controller.shorten(plan, draft)                how many of the drafted tokens to submit
    controller.observe(outcomes)                   what came of it

`more` sees kept tokens only and is asked before the next one is drawn, so every rule allows it. `shorten` throws tokens
away after looking at them: it must not be called for a rule that does not tolerate truncation, unless the draft is
one-hot. A plan of zero tokens is an ordinary decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spec_local.drafting.draft import NO_SOURCE, Draft
from spec_local.drafting.drafter import Offer
from spec_local.speculation.round import Round


@dataclass(frozen=True, slots=True)
class Seat:
    """One sequence's place in the coming round."""

    state: Any
    """What the controller remembers of the sequence: made by its `enter`, changed by nobody else."""
    offers: Mapping[str, Offer]
    """By source; only the drafters that have something to offer to this sequence now."""
    context: int
    """Tokens in its target cache."""
    remaining: int = 1 << 30
    """Tokens that may still be emitted."""


@dataclass(slots=True)
class Plan:
    """The decision for one sequence of the round."""

    source: str
    """"none", or a key of the seat's offers."""
    limit: int
    """Most tokens to draft, 0 for "none"."""
    reason: str
    """Why, in words for a person."""
    seat: Seat
    plain_s: float | None = None
    """Expected seconds of a plain round instead; goes into the `Round`."""
    notes: Any = None
    """What the controller keeps of the plan until its outcome is known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan."""

    plan: Plan
    round: Round
    draft: Draft
    """As submitted to the target pass (after `shorten`); empty for "none"."""
    emitted: Sequence[int]
    """Tokens the round added to the text."""


class Controller(Protocol):
    """Chooses source and length of every draft."""

    def enter(self) -> Any:
        """State for a new sequence."""

    def opens(self, seat: Seat, read: int) -> str:
        """The source whose drafter is to read the prompt before a new sequence's first round; "none" for none.

        Args:
            seat: With what the drafters could offer if they had read the prompt; nothing is decided yet.
            read: Tokens of it that the target had to read, the others being in its cache.
        """

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        """One plan per seat, in order, for one shared draft phase and one shared target pass."""

    def guess(self, plan: Plan, draft: Draft, rows: int) -> int:
        """How many tokens of a text draft the draft model should read along in a pass of `rows` rows; see
        `DraftRequest.guess`."""

    def more(self, plan: Plan, confidence: Sequence[float]) -> bool:
        """Whether to draw one more token after those with these confidences (≥ 1 of them)."""

    def shorten(self, plan: Plan, draft: Draft) -> int:
        """Tokens of `draft` to submit, 0..len(draft)."""

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """The outcomes of one round: of every sequence in it, in the order of the plans."""


class FixedController:
    """Always drafts the same length from the first source that offers anything.

    Args:
        sources: Names in order of preference, or one name.
        length: Tokens per draft; 0 is plain decoding.
        plain_s: Seconds of a plain round where known, for the records.
    """

    def __init__(self, sources: str | Sequence[str], length: int, plain_s: float | None = None) -> None:
        self.sources = (sources,) if isinstance(sources, str) else tuple(sources)
        self.length = length
        self.plain_s = plain_s

    def enter(self) -> None:
        """State for a new sequence: none."""

    def opens(self, seat: Seat, read: int) -> str:
        """The same as in every round."""
        return self._plan(seat).source

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        """The same plan every round."""
        return [self._plan(seat) for seat in seats]

    def guess(self, plan: Plan, draft: Draft, rows: int) -> int:
        """None: a fixed draft is made step by step."""
        return 0

    def more(self, plan: Plan, confidence: Sequence[float]) -> bool:
        """Until the length is reached."""
        return len(confidence) < plan.limit

    def shorten(self, plan: Plan, draft: Draft) -> int:
        """All that were planned."""
        return min(len(draft), plan.limit)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing is learned."""

    def _plan(self, seat: Seat) -> Plan:
        if (certain := certain_plan(seat, self.plain_s)) is not None:
            return certain
        source = next((s for s in self.sources if s in seat.offers), NO_SOURCE)
        if self.length == 0 or source == NO_SOURCE:
            reason = "draft length fixed at 0" if self.length == 0 else f"no draft from {' or '.join(self.sources)}"
            return Plan(NO_SOURCE, 0, reason, seat, self.plain_s)
        limit = min(self.length, seat.offers[source].tokens)
        return Plan(source, limit, f"draft length fixed at {self.length}", seat, self.plain_s)


def certain_plan(seat: Seat, plain_s: float | None) -> Plan | None:
    """The plan for a seat with a draft that is sure to be accepted: all of it, whoever decides. None without one."""
    for source, offer in seat.offers.items():
        if offer.certain:
            return Plan(source, offer.tokens, "the grammar leaves one way to go on", seat, plain_s)
    return None
