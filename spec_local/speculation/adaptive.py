"""The controller that maximises tokens per second, zero drafted tokens included.

A round is a renewal: its reward is the emitted tokens, its time is the draft plus one pass. A second is worth ρ tokens,
the speed achieved lately, and everything is compared in tokens: a draft is made where the tokens it is expected to
bring exceed ρ × the seconds it adds to the round. Text drafts are weighed token by token with their own confidence; a
model draft, before it is made, with the optimal stopping table that will also end it (`stopping`).

Being wrong is bounded: a source that lost tokens against plain decoding on this text must promise more than it costs, a
draft model whose confidence no longer means anything is recognised after two or three tokens, and trying a model again
that is off is paid from an account into which one token in a hundred goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from spec_local.drafting.draft import MODEL_SOURCE, NO_SOURCE, TEXT_SOURCE, Draft
from spec_local.drafting.drafter import Offer
from spec_local.speculation import prices
from spec_local.speculation.acceptance_model import (
    MODEL_DRAWN,
    MODEL_EDGES,
    MODEL_PRIOR,
    TEXT_EDGES,
    TEXT_PRIOR,
    Bins,
    shifted,
)
from spec_local.speculation.controller import Outcome, Plan as RoundPlan, Seat, certain_plan
from spec_local.speculation.cost import BreakEven, CostProfile
from spec_local.speculation.prices import Plan
from spec_local.speculation.reading_along import gain_of_reading, worth_reading
from spec_local.speculation.stopping import StoppingTable, solve

SPEED_MEMORY, SPEED_START, ROUNDS_START = 0.95, 1.3, 4.0
"""Forgetting per round of the achieved speed; a new sequence counts as having made so many rounds at so many times the
plain speed."""
DRAWN_MEMORY, DRAWN_MEMORY_ALL, DRAWN_START, DRAWN_START_ALL = 0.985, 0.999, 20.0, 100.0
"""Forgetting per drawn token of a sequence's and of everybody's histogram of confidence; tokens each starts with."""
MODEL_WEIGHT, TEXT_WEIGHT = 50.0, 20.0
"""Samples that the prior acceptance of a bin is worth."""
TRUST_START, TRUST_LEAST, TRUST_HAZARD = 0.999, 0.02, 0.0005
"""Belief that a draft model's confidence means something: at first, at least, and lost per token on principle."""
LOOSE = 0.1
"""Acceptance of a draft whose confidence means nothing."""
LEVEL_STEP, LEVEL_FIRST, LEVEL_MEMORY = 0.2, 1.0, 0.99
"""Step per surprise of the text drafter's level; the first surprises move it by this / their number; forgetting."""
TEXT_MARGIN = 0.15
"""A text draft is to bring so much more than its rows cost: one that fails is most of what a short answer may lose."""
OPEN_SHARE = 0.4
"""A draft model reads the prompt in prefill if that takes at most this share of what the target's reading takes."""
BALANCE_MEMORY, BALANCE_MOST, BALANCE_FREE, BALANCE_PRICE = 0.98, 3.0, 1.0, 0.25
"""A source's balance forgets per round and is capped; each lost token beyond the free ones asks for this much gain."""
PROMISE_WEIGHT, PROMISE_ROUNDS, READ_SHARE = 0.2, 32, 0.5
"""Weight of one round in the promise of a draft model at hand, and the rounds it is counted on; share of the tokens of
a text draft that the model is taken to have to read."""
STALL = 1.5
"""A round that took so many times what it should, or less than its inverse, counts as this; the second such round in a
row as twice as much, and so on: a stall is over soon, a machine that has become busy stays so."""
TABLE_ROUNDS, TABLE_SPEED = 24, 0.08
"""A stopping table is solved again after so many rounds; there is one for each so large step of ρ."""
PROBE_TOKENS, PROBE_FIRST, PROBE_CHEAP, PROBE_LAST = 3, 16, 48, 256
"""Tokens of a trial draft; idle tokens before the first trial, at most where trials are cheap, and at most."""
CREDIT_START, CREDIT_RATE, CREDIT_MOST, BET = 10.0, 0.01, 10.0, 2.0
"""The account for trials, in tokens: at start, per emitted token, and at most. Catching up that costs more than a few
tokens is a bet on a longer answer, and paid from it too."""
HOPE = (0.0, 0.0, 0.02, 0.02, 0.03, 0.03, 0.05, 0.1, 0.1, 0.1, 0.15, 0.4)
"""Confidence that a draft model which is off may turn out to have."""
HOPE_CHANCE, HOPE_ROUNDS = 0.12, 32
"""How likely that is, and the rounds in which it must earn what the trial costs."""


@dataclass(slots=True)
class Pace:
    """What is remembered of one sequence."""

    played: int = 0
    """All rounds."""
    rounds: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    """The last rounds, their emitted tokens and wall time, all with the same forgetting: ratios are the speed."""
    drawn: list[float] = field(default_factory=list)
    """Forgetting histogram of the draft model's confidence, by bin."""
    trust: float = 1.0
    """Probability that the draft model's confidence still means what it used to mean."""
    level: float = 0.0
    """How much better than usual the text drafter does on this text, in log-odds."""
    tested: int = 0
    """Tokens of the text drafter that were compared with the text."""
    stalls: int = 0
    """Latest rounds in a row that took far longer than they should."""
    balance: dict[str, float] = field(default_factory=dict)
    """By source: tokens lately won over plain decoding (lost where negative)."""
    promise: float | None = None
    """Running mean of the tokens per round that a draft model which need not catch up would have won;
    None before the first round."""
    idle: int = 0
    """Tokens emitted since the draft model last drafted."""
    trial_after: int = 0
    """Idle tokens after which trying a draft model again that is off is considered."""
    trial_gap: int = 0
    """Tokens between that and the time before."""
    tables: dict[tuple[int, int], Any] = field(default_factory=dict)
    """Stopping tables by rows of the other sequences and step of the speed, with the round they were made in."""


class AdaptiveController:
    """See the module. One per engine; costs and what confidence means are shared by its sequences.

    Args:
        costs: Seconds per pass and draft step on this machine; follows what rounds take.
        longest: Most tokens in one draft.
        frozen: Believe `costs` as they are, so that no decision depends on the clock.
        apart: Every sequence has a target pass of its own (padded passes), not one for all.
    """

    def __init__(self, costs: CostProfile, longest: int = 16, frozen: bool = False, apart: bool = False) -> None:
        self.costs = costs
        self.longest = longest
        self.frozen = frozen
        self.apart = apart
        self.model = Bins(MODEL_EDGES, MODEL_PRIOR, MODEL_WEIGHT)
        self.text = Bins(TEXT_EDGES, TEXT_PRIOR, TEXT_WEIGHT)
        self.credit = CREDIT_START
        self._drawn = [DRAWN_START_ALL * w for w in MODEL_DRAWN]
        self._rounds = 0
        self._break_even: dict[tuple[int, int], tuple[int, BreakEven | None]] = {}

    # -- the protocol ----------------------------------------------------------------------------------------------

    def enter(self) -> Pace:
        """State for a new sequence."""
        return self._started(Pace())

    def _started(self, pace: Pace) -> Pace:
        """The pace with what a new sequence is taken to be like, unless it has a history."""
        if not pace.drawn:
            scale = DRAWN_START / sum(self._drawn)
            pace.drawn = [scale * d for d in self._drawn]
            pace.rounds, pace.tokens = ROUNDS_START, ROUNDS_START * SPEED_START
            pace.seconds = ROUNDS_START * self.costs.target.seconds(1)
            pace.trust = TRUST_START
            pace.trial_gap = pace.trial_after = PROBE_FIRST
        return pace

    def opens(self, seat: Seat, read: int) -> str:
        """The draft model where it would draft had it read the prompt, and reading is little beside the target's; else
        the source of the plan that this seat would get alone."""
        source = self._alone(seat).source
        model, draft, target = seat.offers.get(MODEL_SOURCE), self.costs.draft, self.costs.target
        if source == MODEL_SOURCE or model is None or draft is None:
            return source
        if model.lag * draft.per_row(seat.context) > OPEN_SHARE * read * target.per_row(seat.context):
            return source
        wanted = self._alone(replace(seat, offers={MODEL_SOURCE: replace(model, lag=1)})).source == MODEL_SOURCE
        return MODEL_SOURCE if wanted else source

    def _alone(self, seat: Seat) -> Plan:
        return self._plan(replace(seat, state=replace(seat.state)), 0, 1)  # with a pace to be thrown away

    def plan(self, seats: Sequence[Seat]) -> list[RoundPlan]:
        """One plan per seat; text drafts of earlier seats count as rows for those after them."""
        rows = len(seats)
        plans: list[RoundPlan] = []
        for seat in seats:
            plan = self._plan(seat, 0 if self.apart else rows - 1, len(seats))
            rows += plan.limit if plan.source == TEXT_SOURCE else 0
            plans.append(plan)
        return plans

    def guess(self, plan: RoundPlan, draft: Draft, rows: int) -> int:
        """As many as save more than they cost."""
        assert isinstance(plan, Plan)
        if self.costs.draft is None:
            return 0
        seconds, context = self.costs.draft.seconds, plan.seat.context
        rates = self._text_rates(draft.confidence[: self.longest - 1], plan.seat.state)
        return worth_reading(rates, seconds(plan.sequences, context), lambda n: seconds(rows + n, context))

    def more(self, plan: RoundPlan, confidence: Sequence[float]) -> bool:
        """Whether the expected gain of one more token exceeds its cost."""
        assert isinstance(plan, Plan)
        drafted = len(confidence)
        if drafted >= plan.limit or plan.trial:
            return drafted < plan.limit
        seen, survival = plan.survival
        for rate in self._model_rates(confidence[seen:], plan.seat.state):
            survival *= rate
        plan.survival = drafted, survival
        return self._table(plan).more(drafted, survival)

    def shorten(self, plan: RoundPlan, draft: Draft) -> int:
        """The length with the largest expected gain; a ready draft was already cut to it by the plan."""
        assert isinstance(plan, Plan)
        limit = min(plan.limit, len(draft))
        if draft.source != MODEL_SOURCE or plan.trial:
            return limit
        return prices.best_length(plan, self._model_rates(draft.confidence[:limit], plan.seat.state))[0]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn costs, acceptance and speed from one round."""
        if not outcomes:
            return
        self._rounds += 1
        if not self.frozen:
            self._learn_costs(outcomes)
        for outcome in outcomes:
            self._learn_speed(outcome)
            self._learn_text(outcome)
            self._learn_model(outcome)

    # -- deciding --------------------------------------------------------------------------------------------------

    def _plan(self, seat: Seat, other_rows: int, sequences: int) -> Plan:
        self._started(seat.state)
        plain_s = self._passes(sequences) * self.costs.target.seconds(other_rows + 1, seat.context)
        plan = Plan(NO_SOURCE, 0, "plain decoding: nothing to draft from", seat, plain_s, other_rows, sequences)
        if (certain := certain_plan(seat, plain_s)) is not None:
            plan.source, plan.limit, plan.reason = certain.source, certain.limit, certain.reason
            return plan
        # ρ is the speed of all sequences together, and never below that of plain decoding.
        plan.speed = sequences * max(seat.state.tokens / seat.state.seconds, 1 / plain_s)
        plan.rows = prices.rows(self.costs, plan, self.longest)
        text, model = seat.offers.get(TEXT_SOURCE), seat.offers.get(MODEL_SOURCE)
        gain = 0.0
        if text is not None and text.draft is not None:
            gain = self._consider_text(plan, text, text.draft)
        if model is not None and self.costs.draft is not None:
            self._consider_model(plan, model, gain)
        return plan

    def _passes(self, sequences: int) -> int:
        """Target passes of a round."""
        return sequences if self.apart else 1

    def _consider_text(self, plan: Plan, offer: Offer, draft: Draft) -> float:
        """Plan the text draft if it pays; returns its gain in tokens, 0.0 where it does not."""
        pace = plan.seat.state
        rates = self._text_rates(draft.confidence[: min(offer.tokens, self.longest)], pace)
        length, gain = prices.best_length(plan, rates, TEXT_MARGIN)
        gain -= _penalty(pace.balance.get(TEXT_SOURCE, 0.0))
        if pace.promise:  # what the text brings, the draft model must read later
            gain -= READ_SHARE * prices.reading(self.costs, plan) * length
        if gain <= 0:
            plan.reason = f"text draft off: {rates[0]:.2f} acceptance expected does not pay for its rows"
            return 0.0
        plan.source, plan.limit = TEXT_SOURCE, length
        plan.reason = f"text draft on: this stood here before, {rates[0]:.2f} acceptance expected"
        return gain

    def _consider_model(self, plan: Plan, offer: Offer, other_gain: float) -> None:
        """Plan the model draft if its gain exceeds `other_gain`, or if it is time to try it again."""
        pace = plan.seat.state
        table, step = self._table(plan), prices.step(self.costs, plan, 1)
        catch_up = prices.step(self.costs, plan, offer.lag) - step
        gain = pace.trust * table.value - (1 - pace.trust) * 2 * step + self._gain_of_reading(plan, offer, step)
        gain -= _penalty(pace.balance.get(MODEL_SOURCE, 0.0))
        # Every token is read once, whenever the model is used next, or never: catching up is no cost of this draft but
        # of having the model at hand, and is paid if that promises more over the next rounds.
        promise = max(0.0, gain - other_gain)
        if pace.promise is None:
            pace.promise = promise
        pace.promise += PROMISE_WEIGHT * (promise - pace.promise)
        reading = prices.reading(self.costs, plan) * pace.tokens / pace.rounds
        worth_it = self._horizon(plan, PROMISE_ROUNDS) * (pace.promise - reading) > catch_up
        affordable = not pace.played or catch_up <= self.credit  # in prefill it is no part of decoding
        reason = ""
        if not (worth_it and affordable):
            if gain > other_gain:
                reason = f"model draft off: it has {offer.lag} tokens to read first"
            gain -= catch_up
        if gain > other_gain:
            plan.source, plan.limit = MODEL_SOURCE, min(offer.tokens, self.longest)
            plan.bet = pace.played > 0 and catch_up > BET
            plan.reason = f"model draft on: {self._expected(pace):.2f} acceptance expected"
        elif plan.source == NO_SOURCE:
            plan.reason = reason or self._why_off(plan)
            if pace.idle >= pace.trial_after:
                self._consider_trial(plan, offer, step, catch_up)

    def _consider_trial(self, plan: Plan, offer: Offer, step: float, catch_up: float) -> None:
        """Try a model again that is off, if what may be found out is worth it and the account allows it."""
        pace = plan.seat.state
        cost = catch_up + PROBE_TOKENS * step
        pace.trial_gap = min(2 * pace.trial_gap, max(PROBE_CHEAP, int(100 * cost)), PROBE_LAST)
        pace.trial_after = pace.idle + pace.trial_gap
        hope = solve(self.model.rates, HOPE, step, plan.rows).value
        if HOPE_CHANCE * self._horizon(plan, HOPE_ROUNDS) * hope > cost and self.credit > cost:
            pace.trial_after = pace.trial_gap
            plan.source, plan.limit, plan.trial = MODEL_SOURCE, min(offer.tokens, PROBE_TOKENS), True
            plan.reason = f"model draft tried again after {pace.idle} tokens"

    @staticmethod
    def _horizon(plan: Plan, least: int) -> float:
        """Rounds that this answer is expected to go on for: as many as it has had, and no more than its budget."""
        pace = plan.seat.state
        return min(max(least, pace.played), plan.seat.remaining * pace.rounds / pace.tokens)

    def _gain_of_reading(self, plan: Plan, offer: Offer, step: float) -> float:
        """Tokens that the text draft is worth to the model as something to read along."""
        text = plan.seat.offers.get(TEXT_SOURCE)
        if text is None or text.draft is None:
            return 0.0
        pace = plan.seat.state
        length = self.guess(plan, text.draft, offer.lag)
        if not length:
            return 0.0
        rates = self._text_rates(text.draft.confidence[:length], pace)
        first = prices.step(self.costs, plan, offer.lag + length) - prices.step(self.costs, plan, offer.lag)
        return gain_of_reading(rates, min(self._expected(pace), 0.995), first, step, plan.rows)

    def _why_off(self, plan: Plan) -> str:
        """Why the draft model is not used, in words."""
        assert self.costs.draft is not None
        assert plan.plain_s is not None
        rows, context = plan.other_rows + 1, plan.seat.context
        ratio = self.costs.draft.seconds(plan.sequences, context) / plan.sequences / plan.plain_s
        key = rows, plan.sequences
        made_in, even = self._break_even.get(key, (-1, None))
        if made_in < 0 or made_in + 64 < self._rounds:
            even = self.costs.break_even(rows, plan.sequences, context, self.longest)
            self._break_even[key] = (self._rounds, even)
        needs = "no acceptance would pay for it" if even is None else f"needs {even.acceptance:.2f} acceptance"
        has = self._expected(plan.seat.state)
        return f"model draft off: {ratio:.2f} of a target pass per token, {needs}, has {has:.2f}"

    def _expected(self, pace: Pace) -> float:
        """Acceptance that the draft model's next token is expected to have."""
        mean = sum(d * r for d, r in zip(pace.drawn, self.model.rates, strict=True)) / sum(pace.drawn)
        return pace.trust * mean + (1 - pace.trust) * LOOSE

    def _model_rates(self, confidence: Sequence[float], pace: Pace) -> list[float]:
        """Acceptance of the draft model's tokens with these confidences."""
        find, rates, trust = self.model.find, self.model.rates, pace.trust
        loose = (1 - trust) * LOOSE
        return [trust * rates[find(c)] + loose for c in confidence]

    def _text_rates(self, confidence: Sequence[float], pace: Pace) -> list[float]:
        """Acceptance of the text drafter's tokens with these confidences."""
        find = self.text.find
        rates = [shifted(rate, pace.level) for rate in self.text.rates]
        return [rates[find(c)] for c in confidence]

    def _table(self, plan: Plan) -> StoppingTable:
        """The stopping table of this sequence, solved anew when it no longer fits."""
        pace = plan.seat.state
        key = plan.other_rows, round(math.log(plan.speed) / TABLE_SPEED)
        known: tuple[StoppingTable, int] | None = pace.tables.get(key)
        if known is not None and known[1] + TABLE_ROUNDS > self._rounds:
            return known[0]
        total = sum(pace.drawn)
        weights = [d / total for d in pace.drawn]
        table = solve(self.model.rates, weights, prices.step(self.costs, plan, 1), plan.rows)
        if len(pace.tables) >= 16:
            pace.tables.clear()
        pace.tables[key] = (table, self._rounds)
        return table

    # -- learning --------------------------------------------------------------------------------------------------

    def _learn_costs(self, outcomes: Sequence[Outcome]) -> None:
        context = max(o.plan.seat.context for o in outcomes)
        first = outcomes[0].round
        passes = self._passes(len(outcomes))
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
        r, plan = outcome.round, outcome.plan
        assert isinstance(plan, Plan)
        pace = plan.seat.state
        assert plan.plain_s is not None
        verify_s = self.costs.target.seconds(plan.other_rows + r.width, plan.seat.context)
        seconds = self._passes(plan.sequences) * verify_s + self._drafting_s([outcome])
        if not self.frozen:  # what it really took, unless the machine stalled
            pace.stalls = pace.stalls + 1 if r.seconds > seconds * STALL else 0
            seconds = min(max(r.seconds, seconds / STALL), seconds * STALL * max(pace.stalls, 1))
        pace.played += 1
        pace.rounds = SPEED_MEMORY * pace.rounds + 1
        pace.tokens = SPEED_MEMORY * pace.tokens + r.emitted
        pace.seconds = SPEED_MEMORY * pace.seconds + seconds
        for source in pace.balance:
            pace.balance[source] *= BALANCE_MEMORY
        self.credit = min(self.credit + CREDIT_RATE * r.emitted, CREDIT_MOST)
        if r.source != NO_SOURCE:
            won = r.emitted - seconds / plan.plain_s
            pace.balance[r.source] = min(pace.balance.get(r.source, 0.0) + won, BALANCE_MOST)
            if plan.trial or plan.bet:
                self.credit += min(won, 0.0)

    def _learn_text(self, outcome: Outcome) -> None:
        """Compare what the text drafter offered with the text, submitted or not: it costs nothing."""
        offer = outcome.plan.seat.offers.get(TEXT_SOURCE)
        if offer is None or offer.draft is None:
            return
        pace = outcome.plan.seat.state
        drafted = zip(offer.draft.tokens, offer.draft.confidence, outcome.emitted, strict=False)
        for token, confidence, emitted in drafted:
            kept = token == emitted
            b = self.text.find(confidence)
            surprise = kept - shifted(self.text.rates[b], pace.level)
            pace.tested += 1
            pace.level = LEVEL_MEMORY * pace.level + max(LEVEL_STEP, LEVEL_FIRST / pace.tested) * surprise
            self.text.nudge(b, surprise)
            if not kept:
                break

    def _learn_model(self, outcome: Outcome) -> None:
        plan = outcome.plan
        assert isinstance(plan, Plan)
        r, pace = outcome.round, plan.seat.state
        used = r.source == MODEL_SOURCE
        if not used:
            pace.idle += r.emitted
            return
        pace.idle = 0
        if not plan.trial:
            pace.trial_gap = pace.trial_after = PROBE_FIRST
        drawn = len(outcome.draft)
        pace.drawn = [DRAWN_MEMORY**drawn * d for d in pace.drawn]
        self._drawn = [DRAWN_MEMORY_ALL**drawn * d for d in self._drawn]
        for i, confidence in enumerate(outcome.draft.confidence):
            b = self.model.find(confidence)
            pace.drawn[b] += 1.0
            self._drawn[b] += 1.0
            if i > r.accepted or i >= r.tested:
                continue  # behind the first rejection nothing was tested
            kept, rate = i < r.accepted, self.model.rates[b]
            sound, loose = (rate, LOOSE) if kept else (1 - rate, 1 - LOOSE)
            trust = pace.trust * sound / (pace.trust * sound + (1 - pace.trust) * loose)
            pace.trust = max(trust * (1 - TRUST_HAZARD), TRUST_LEAST)
            self.model.learn(b, kept)


def _penalty(balance: float) -> float:
    """Gain in tokens asked of a source that lost tokens on this text."""
    return BALANCE_PRICE * max(0.0, -balance - BALANCE_FREE)
