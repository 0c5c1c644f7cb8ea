"""The controller that maximises tokens per second, zero drafted tokens included.

A round's reward is the tokens it emits, its price the time of draft and pass; a second is worth the tokens that this
answer made of one lately, and never fewer than plain decoding makes. Every source says what it can bring: a ready
draft token by token with its own confidence (`ready`), a drawn one by how sure it has been on this text (`drawn`). What
they say is believed as far as they were right here (`estimate`), and no draft may cost more than the answer's account
allows (`guard`). The largest expected gain is drafted; if there is none, the round is plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from spec_local.drafting.draft import NO_SOURCE, Draft
from spec_local.speculation.controller import Offer, Outcome, Plan, Seat
from spec_local.speculation.cost import BreakEven, CostProfile
from spec_local.speculation.policy import drawn, ready
from spec_local.speculation.policy.candidate import Candidate
from spec_local.speculation.policy.drawn import Drawn
from spec_local.speculation.policy.estimate import Level
from spec_local.speculation.policy.guard import Account
from spec_local.speculation.policy.numbers import NUMBERS, Numbers
from spec_local.speculation.policy.prices import Prices, row_prices
from spec_local.speculation.policy.reading_along import worth_reading


@dataclass(slots=True)
class State:
    """What the policy remembers of one answer."""

    account: Account
    rounds: float
    tokens: float
    seconds: float
    """Rounds, emitted tokens and their time, all with the same forgetting: ratios are the speed."""
    stalls: int = 0
    """Latest rounds in a row that took far longer than they should."""
    ready: dict[str, Level] = field(default_factory=dict)
    drawn: dict[str, Drawn] = field(default_factory=dict)
    """What is known of each source, by its name."""


@dataclass(slots=True)
class Notes:
    """What the policy keeps of a plan until its outcome is known."""

    sequences: int
    others: int
    """Rows of the other sequences in the same target pass, as planned."""
    prices: Prices | None = None
    """None if nothing was offered."""
    chosen: Candidate | None = None
    survival: tuple[int, float] = (0, 1.0)
    """Drawn tokens looked at so far, and the probability that all of them are accepted."""


class AdaptiveController:
    """See the module. One per engine; costs are shared by its sequences, what is known of a text is not.

    Args:
        costs: Seconds per pass and draft step on this machine; follows what rounds take.
        longest: Most tokens in one draft.
        frozen: Believe `costs` as they are, so that no decision depends on the clock.
        apart: Every sequence has a target pass of its own (padded passes), not one for all.
        numbers: The tuned numbers.
    """

    def __init__(
        self,
        costs: CostProfile,
        longest: int = 16,
        frozen: bool = False,
        apart: bool = False,
        numbers: Numbers = NUMBERS,
    ) -> None:
        self.costs = costs
        self.longest = longest
        self.frozen = frozen
        self.apart = apart
        self.numbers = numbers
        self._rounds = 0
        self._break_even: dict[tuple[int, int], tuple[int, BreakEven | None]] = {}

    # -- the protocol ----------------------------------------------------------------------------------------------

    def enter(self) -> State:
        """State for a new sequence."""
        n = self.numbers
        seconds = n.speed_rounds * self.costs.target.seconds(1)
        return State(Account(n), n.speed_rounds, n.speed_rounds * n.speed_start, seconds)

    def opens(self, seat: Seat, read: int) -> str:
        """A drawn source that would draft had it read the prompt, if reading is little beside the target's; else the
        source of the plan that this seat would get alone."""
        source = self._plan(seat, 0, 1).source
        limit = self.numbers.open_share * read * self.costs.target.per_row(seat.context)
        for name, offer in seat.offers.items():
            curve = self.costs.draft
            if offer.draft is None and curve is not None and offer.lag * curve.per_row(seat.context) <= limit:
                had_it_read = replace(seat, offers={name: replace(offer, lag=1)})
                if self._plan(had_it_read, 0, 1).source == name:
                    return name
        return source

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        """One plan per seat; ready drafts of earlier seats count as rows for those after them."""
        rows = len(seats)
        plans = []
        for seat in seats:
            plan = self._plan(seat, 0 if self.apart else rows - 1, len(seats))
            if plan.limit and seat.offers[plan.source].draft is not None:
                rows += plan.limit
            plans.append(plan)
        return plans

    def guess(self, plan: Plan, draft: Draft, rows: int) -> int:
        """As many as save more than they cost, and as the guard allows."""
        prices, chosen, curve = plan.notes.prices, plan.notes.chosen, self.costs.draft
        if curve is None:
            return 0
        table = curve.table(prices.context)
        passes = table[rows + prices.sequences - 1 :][: self.longest]
        if len(passes) < 2:  # so long a pass is beyond the table
            return 0
        known = plan.seat.state.ready.setdefault(draft.source, Level(self.numbers))
        count = worth_reading(known.rates(draft.confidence[: len(passes) - 1]), table[prices.sequences], passes)
        cost = prices.step(curve, rows + count) - prices.step(curve, rows)
        submit = sum(prices.rows[: plan.notes.survival[0] + 1])
        if not plan.seat.state.account.allows((chosen.spent + cost + submit) * prices.plain):
            return 0
        chosen.spent += cost
        return count

    def more(self, plan: Plan, confidence: Sequence[float]) -> bool:
        """Whether the expected gain of one more token exceeds its cost."""
        drafted, notes, state = len(confidence), plan.notes, plan.seat.state
        if drafted >= plan.limit:
            return False
        seen, survival = notes.survival
        for rate in state.drawn[plan.source].level.rates(confidence[seen:]):
            survival *= rate
        notes.survival = drafted, survival
        assert self.costs.draft is not None
        step = notes.prices.step(self.costs.draft)
        more = drawn.more(notes.chosen, drafted, survival, step, notes.prices, state.account)
        notes.chosen.spent += step * more
        return more

    def shorten(self, plan: Plan, draft: Draft) -> int:
        """The length with the largest expected gain; a ready draft was already cut to it by the plan."""
        limit = min(plan.limit, len(draft))
        known = plan.seat.state.drawn.get(plan.source)
        if known is None:
            return limit
        notes = plan.notes
        return drawn.shorten(known, draft.confidence[:limit], notes.chosen, notes.prices, plan.seat.state.account)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn costs, speed and acceptance from one round."""
        if not outcomes:
            return
        self._rounds += 1
        if not self.frozen:
            self._learn_costs(outcomes)
        for outcome in outcomes:
            self._learn_speed(outcome)
            self._learn_sources(outcome)

    # -- deciding --------------------------------------------------------------------------------------------------

    def _plan(self, seat: Seat, others: int, sequences: int) -> Plan:
        passes = sequences if self.apart else 1
        plain_s = passes * self.costs.target.seconds(others + 1, seat.context)
        notes = Notes(sequences, others)
        plan = Plan(NO_SOURCE, 0, "plain decoding: nothing to draft from", seat, plain_s, notes)
        if not seat.offers:
            return plan
        state: State = seat.state
        least = sequences / plain_s
        speed = max(sequences * state.tokens / state.seconds, least)
        rows = row_prices(self.costs, speed, others + 1, seat.context, self.longest)
        notes.prices = Prices(speed, least / speed, rows, seat.context, sequences, others)
        gain = 0.0
        for source, offer in sorted(seat.offers.items(), key=_ready_first):
            candidate = self._weigh(source, offer, plan)
            if candidate.limit and candidate.gain > gain:
                gain, notes.chosen = candidate.gain, candidate
                plan.source, plan.limit, plan.reason = source, candidate.limit, candidate.reason
            elif not plan.limit:
                plan.reason = candidate.reason or self._why_off(source, plan)
        return plan

    def _weigh(self, source: str, offer: Offer, plan: Plan) -> Candidate:
        state, prices = plan.seat.state, plan.notes.prices
        room = min(offer.tokens, self.longest)
        if offer.draft is not None:
            level = state.ready.setdefault(source, Level(self.numbers))
            return ready.weigh(source, offer.draft, level, prices, state.account, room)
        if self.costs.draft is None:
            return Candidate(source, 0, 0.0, f"{source} draft off: its cost is not known")
        known = state.drawn.get(source)
        if known is None:
            known = state.drawn[source] = Drawn.start(self.numbers)
        rounds = min(self.numbers.catch_up_rounds, plan.seat.remaining * state.rounds / state.tokens)
        return drawn.weigh(
            source, known, self.costs.draft, offer.lag, prices, state.account, room, rounds, self._rounds
        )

    def _why_off(self, source: str, plan: Plan) -> str:
        """Why a drawn source is not used, in words."""
        assert self.costs.draft is not None
        assert plan.plain_s is not None
        rows, sequences, context = plan.notes.others + 1, plan.notes.sequences, plan.seat.context
        ratio = self.costs.draft.seconds(sequences, context) / sequences / plan.plain_s
        made_in, even = self._break_even.get((rows, sequences), (-64, None))
        if made_in + 64 <= self._rounds:
            even = self.costs.break_even(rows, sequences, context, self.longest)
            self._break_even[rows, sequences] = (self._rounds, even)
        needs = "no acceptance would pay for it" if even is None else f"needs {even.acceptance:.2f} acceptance"
        has = plan.seat.state.drawn[source].mean()
        return f"{source} draft off: {ratio:.2f} of a target pass per token, {needs}, has {has:.2f}"

    # -- learning --------------------------------------------------------------------------------------------------

    def _learn_costs(self, outcomes: Sequence[Outcome]) -> None:
        context = max(o.plan.seat.context for o in outcomes)
        first = outcomes[0].round
        passes = len(outcomes) if self.apart else 1
        self.costs.target.update(sum(o.round.width for o in outcomes) // passes, first.verify_s / passes, context)
        expected_s = self._drafting_s(outcomes)
        if self.costs.draft is not None and expected_s > 0:
            self.costs.draft.scale_by(first.draft_s / expected_s, context)

    def _drafting_s(self, outcomes: Sequence[Outcome]) -> float:
        """Seconds that the draft model's passes for these drafts, made together, should have taken; 0.0 for none."""
        if self.costs.draft is None:
            return 0.0
        context = max(o.plan.seat.context for o in outcomes)
        together = zip_longest(*(o.draft.passes for o in outcomes), fillvalue=0)
        return sum(self.costs.draft.seconds(sum(rows), context) for rows in together)

    def _learn_speed(self, outcome: Outcome) -> None:
        n, r, plan = self.numbers, outcome.round, outcome.plan
        state: State = plan.seat.state
        assert plan.plain_s is not None
        sequences = plan.notes.sequences
        verify_s = self.costs.target.seconds(plan.notes.others + r.width, plan.seat.context)
        seconds = believed = (sequences if self.apart else 1) * verify_s + self._drafting_s([outcome])
        if not self.frozen:  # what it really took, unless the machine stalled
            state.stalls = state.stalls + 1 if r.seconds > seconds * n.stall else 0
            seconds = min(max(r.seconds, seconds / n.stall), seconds * n.stall * max(state.stalls, 1))
        state.rounds = n.speed_memory * state.rounds + 1
        state.tokens = n.speed_memory * state.tokens + r.emitted
        state.seconds = n.speed_memory * state.seconds + seconds
        # Every sequence of the round waits for what this one's draft adds to it. One stall is no draft's fault.
        added = sequences * ((seconds if state.stalls > 1 else believed) / plan.plain_s - 1)
        state.account.settle(r.emitted, 1 + added if r.drafted else r.emitted)

    def _learn_sources(self, outcome: Outcome) -> None:
        r, state = outcome.round, outcome.plan.seat.state
        for source, offer in outcome.plan.seat.offers.items():
            if offer.draft is not None and source in state.ready:
                ready.learn(state.ready[source], offer.draft, outcome.emitted)
        for source, known in state.drawn.items():
            if source == r.source:
                known.learn(outcome.draft, r.tested, r.accepted)
            else:
                known.level.rest(r.emitted)


def _ready_first(offer: tuple[str, Offer]) -> bool:
    return offer[1].draft is None
