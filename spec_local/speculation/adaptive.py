"""The controller that maximises tokens per second, zero drafted tokens included.

A round is a renewal: its reward is the emitted tokens, its time is the draft plus one pass. A second is worth ρ tokens,
the speed achieved lately, and everything is compared in tokens: a draft is made where the tokens it is expected to bring
exceed ρ × the seconds it adds to the round. Text drafts are weighed with their own matches; a model draft, before it is
made, with the optimal stopping table that will also end it (`stopping`).
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_local.drafting.draft import NO_SOURCE, Draft
from spec_local.speculation import acceptance_model
from spec_local.speculation.controller import Outcome, Pace, Plan, Seat
from spec_local.speculation.cost import CostProfile
from spec_local.speculation.stopping import StoppingTable, solve

SPEED_MEMORY = 0.95
TABLE_ROUNDS = 8
LEVEL_GRID = 0.25
PROBE_FIRST, PROBE_LAST = 16, 256
PROBE_OPTIMISM = 1.0
HORIZON = 48.0
CREDIT_START, CREDIT_RATE, CREDIT_MOST, CREDIT_LEAST = 6.0, 0.01, 12.0, -6.0


class AdaptiveController:
    """See the module. One per engine; costs and acceptance models are shared by its sequences.

    Args:
        costs: Seconds per pass and draft step on this machine.
        longest: Most tokens in one draft.
        frozen: Believe `costs` as they are, so that decisions do not depend on the clock.
    """

    def __init__(self, costs: CostProfile, longest: int = 16, frozen: bool = False) -> None:
        self.costs = costs
        self.longest = longest
        self.frozen = frozen
        self.model = acceptance_model.for_model()
        self.text = acceptance_model.for_text()
        self.credit = CREDIT_START
        self._tokens = 4.0
        self._seconds = 4.0 * costs.target.seconds(1)
        self._rounds = 0
        self._tables: dict[tuple[int, int, int], tuple[int, StoppingTable]] = {}

    def enter(self) -> Pace:
        """State for a new sequence."""
        return Pace()

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        """One plan per seat; text drafts planned earlier count as rows for those after them."""
        rows = len(seats)
        plans = []
        for seat in seats:
            plan = self._plan(seat, rows - 1, len(seats))
            rows += plan.limit if plan.source == "text" else 0
            plans.append(plan)
        return plans

    def more(self, plan: Plan, confidence: Sequence[float]) -> bool:
        """Whether the expected gain of one more token exceeds its cost."""
        if len(confidence) >= plan.limit:
            return False
        if plan.probe:
            return True
        level = plan.seat.pace.level
        survival = 1.0
        for c in confidence:
            survival *= self.model.probability(c, level)
        return self._table(level, plan.other_rows, plan.sequences, plan.seat.context).more(len(confidence), survival)

    def shorten(self, plan: Plan, draft: Draft) -> int:
        """The length with the largest expected gain."""
        if draft.source == "text":
            return min(plan.limit, len(draft))
        level = plan.seat.pace.level
        return self._best_length(plan, [self.model.probability(c, level) for c in draft.confidence[: plan.limit]])[0]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn costs, acceptance and speed from one round."""
        if not outcomes:
            return
        self._rounds += 1
        context = max(o.plan.seat.context for o in outcomes)
        first = outcomes[0].round
        if not self.frozen:
            self.costs.target.update(sum(o.round.width for o in outcomes), first.verify_s, context)
        seconds = first.seconds
        self._tokens = self._tokens * SPEED_MEMORY + sum(o.round.emitted for o in outcomes)
        self._seconds = self._seconds * SPEED_MEMORY + seconds
        plain_s = outcomes[0].plan.plain_s
        assert plain_s is not None
        emitted = sum(o.round.emitted for o in outcomes)
        gain = emitted / len(outcomes) - seconds / plain_s if first.width > 1 or first.source != NO_SOURCE else 0.0
        self.credit = min(self.credit + gain + CREDIT_RATE * emitted, CREDIT_MOST)
        for outcome in outcomes:
            self._observe(outcome)

    def _observe(self, outcome: Outcome) -> None:
        r, pace = outcome.round, outcome.plan.seat.pace
        text = outcome.plan.seat.offers.get("text")
        if text is not None and text.draft is not None:
            tested = min(len(text.draft), len(outcome.emitted))
            accepted = 0
            while accepted < tested and text.draft.tokens[accepted] == outcome.emitted[accepted]:
                accepted += 1
            pace.text_level = self.text.observe(text.draft.confidence, accepted, tested, pace.text_level)
        if r.source == "model":
            self.model.saw(outcome.draft.confidence)
            pace.level = self.model.observe(outcome.draft.confidence, r.accepted, r.tested, pace.level)
            pace.idle = 0
            if outcome.plan.probe:
                pace.probe_after = min(2 * pace.probe_after, PROBE_LAST)
            else:
                pace.probe_after = PROBE_FIRST
        else:
            pace.idle += r.emitted

    def speed(self, plain_s: float) -> float:
        """ρ: tokens per second of all sequences together, at least plain decoding."""
        return max(self._tokens / self._seconds, 1 / plain_s)

    def _plan(self, seat: Seat, other_rows: int, sequences: int) -> Plan:
        plain_s = self.costs.target.seconds(other_rows + 1, seat.context)
        plan = Plan(NO_SOURCE, 0, "plain decoding: nothing was offered", seat, plain_s, other_rows, sequences)
        best = 0.0
        speed = self.speed(plain_s)
        text, model = seat.offers.get("text"), seat.offers.get("model")
        if text is not None and text.draft is not None:
            level = seat.pace.text_level
            rates = [self.text.probability(c, level) for c in text.draft.confidence[: min(text.tokens, self.longest)]]
            length, gain = self._best_length(plan, rates)
            if gain > best:
                best = gain
                plan.source, plan.limit, plan.reason = "text", length, f"text repeats: {length} tokens offered pay"
            else:
                plan.reason = "text draft off: its match is too short to pay"
        if model is not None and self.costs.draft is not None:
            draft = self.costs.draft.seconds
            table = self._table(seat.pace.level, other_rows, sequences, seat.context)
            step_s = draft(sequences)
            lag_cost = speed * (draft(max(model.lag, sequences), seat.context) - step_s)
            if model.lag > 3:
                lag_cost = speed * (draft(2) - step_s) + (lag_cost * 1.0) * 3 / HORIZON
            gain = table.value - lag_cost
            if gain > best:
                plan.source, plan.limit = "model", min(model.tokens, self.longest)
                plan.reason = f"model draft on: expected gain {gain:.2f} tokens per round"
            elif plan.limit == 0:
                plan.reason = f"model draft off: {step_s / plain_s:.2f} of a target step per token"
                if seat.pace.idle >= seat.pace.probe_after:
                    hopeful = self._table(seat.pace.level + PROBE_OPTIMISM, other_rows, sequences, seat.context)
                    if hopeful.value > 0 and self.credit > lag_cost + 1:
                        plan.source, plan.limit, plan.probe = "model", min(model.tokens, 2), True
                        plan.reason = "model draft tried again"
        return plan

    def _table(self, level: float, other_rows: int, sequences: int, context: int) -> StoppingTable:
        step = round(level / LEVEL_GRID)
        key = (step, other_rows, sequences)
        known = self._tables.get(key)
        if known is not None and known[0] + TABLE_ROUNDS > self._rounds:
            return known[1]
        assert self.costs.draft is not None
        seconds = self.costs.target.seconds
        passes = [seconds(other_rows + 1 + k, context) for k in range(self.longest + 1)]
        speed = self.speed(passes[0])
        rows = [speed * (b - a) for a, b in zip(passes, passes[1:], strict=False)]
        rates = self.model.rates(step * LEVEL_GRID)
        table = solve(rates, self.model.weights(), speed * self.costs.draft.seconds(sequences, context), rows)
        self._tables[key] = (self._rounds, table)
        return table

    def _best_length(self, plan: Plan, rates: Sequence[float]) -> tuple[int, float]:
        """Length in 0..len(rates) with the largest expected gain, and that gain in tokens."""
        seconds, context = self.costs.target.seconds, plan.seat.context
        assert plan.plain_s is not None
        rows, speed = plan.other_rows + 1, self.speed(plan.plain_s)
        base_s = seconds(rows, context)
        best, length, tokens, reach = 0.0, 0, 0.0, 1.0
        for n, rate in enumerate(rates, 1):
            reach *= rate
            tokens += reach
            gain = tokens - speed * (seconds(rows + n, context) - base_s)
            if gain > best:
                best, length = gain, n
        return length, best
