"""The controller that maximises tokens per second, zero drafted tokens included.

A round is a renewal: its reward is the emitted tokens, its time is the draft plus one pass. With ρ tokens/s achieved,
one more token is worth drafting while the tokens it may bring exceed ρ × the seconds it costs, looked ahead over
several tokens because real V(n) has steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_local.drafting.draft import NO_SOURCE, Draft
from spec_local.speculation import acceptance_model
from spec_local.speculation.acceptance_model import AcceptanceModel
from spec_local.speculation.controller import Outcome, Pace, Plan, Seat
from spec_local.speculation.cost import CostProfile

LOOK_AHEAD = 8
SPEED_SMOOTHING = 0.05
ACCEPTANCE_SMOOTHING = 0.05
PROBE_FIRST, PROBE_LAST = 16, 256
PROBE_LENGTH = 2


class AdaptiveController:
    """See the module. One per engine; `costs` and the acceptance models are shared by its sequences.

    Args:
        costs: Seconds per pass and draft step on this machine.
        longest: Most tokens in one draft.
    """

    def __init__(self, costs: CostProfile, longest: int = 16) -> None:
        self.costs = costs
        self.longest = longest
        self.acceptance: dict[str, AcceptanceModel] = {
            "model": acceptance_model.for_model(),
            "text": acceptance_model.for_text(),
        }
        self.mean: dict[str, float] = {"model": 0.7, "text": 0.7}

    def enter(self) -> Pace:
        return Pace(acceptance=dict(self.mean))

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        rows = len(seats)
        plans = []
        for seat in seats:
            plan = self._plan(seat, rows - 1, len(seats))
            rows += plan.limit if plan.source == "text" else 0
            plans.append(plan)
        return plans

    def more(self, plan: Plan, confidence: Sequence[float]) -> bool:
        drafted = len(confidence)
        if drafted >= plan.limit:
            return False
        model = self.acceptance[plan.source]
        survival = 1.0
        for c in confidence:
            survival *= model.probability(c)
        mean = plan.seat.pace.acceptance[plan.source]
        step_s = self._step_s(plan.sequences)
        return self._gain(plan, survival, mean, drafted, step_s, step_s) > 0

    def shorten(self, plan: Plan, draft: Draft) -> int:
        model = self.acceptance[draft.source]
        return self._best_length(plan, [model.probability(c) for c in draft.confidence[: plan.limit]])[0]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
        rows = sum(o.round.width for o in outcomes)
        context = max(o.plan.seat.context for o in outcomes)
        self.costs.target.update(rows, outcomes[0].round.verify_s, context)
        for outcome in outcomes:
            self._observe(outcome)

    def _observe(self, outcome: Outcome) -> None:
        r, pace = outcome.round, outcome.plan.seat.pace
        pace.rounds += 1
        if r.seconds > 0:
            speed = r.emitted / r.seconds
            pace.tokens_per_s += (speed - pace.tokens_per_s) * max(SPEED_SMOOTHING, 1 / pace.rounds)
        if r.tested:
            self.acceptance[r.source].observe(outcome.draft.confidence, r.accepted, r.tested)
            for i in range(min(r.accepted + 1, r.tested)):
                for means in (pace.acceptance, self.mean):
                    means[r.source] += ACCEPTANCE_SMOOTHING * ((i < r.accepted) - means[r.source])
        if r.source == "model":
            pace.idle = 0
            paid = r.emitted > 1 and r.emitted * (outcome.plan.plain_s or 0.0) > r.seconds
            pace.probe_after = PROBE_FIRST if paid else min(2 * pace.probe_after, PROBE_LAST)
        else:
            pace.idle += r.emitted

    def _plan(self, seat: Seat, other_rows: int, sequences: int) -> Plan:
        plain_s = self.costs.target.seconds(other_rows + 1, seat.context)
        plan = Plan(NO_SOURCE, 0, "plain decoding: nothing was offered", seat, plain_s, other_rows, sequences)
        best = 0.0
        text, model = seat.offers.get("text"), seat.offers.get("model")
        if text is not None and text.draft is not None:
            learned = self.acceptance["text"]
            rates = [learned.probability(c) for c in text.draft.confidence[: min(text.tokens, self.longest)]]
            length, gain = self._best_length(plan, rates)
            if gain > best:
                best = gain
                plan.source, plan.limit, plan.reason = "text", length, f"text repeats: {length} tokens offered pay"
            else:
                plan.reason = "text draft off: its match is too short to pay"
        if model is not None and self.costs.draft is not None:
            mean = seat.pace.acceptance["model"]
            step_s = self._step_s(sequences)
            first_s = self.costs.draft.seconds(max(model.lag, sequences), seat.context)
            gain = self._gain(plan, 1.0, mean, 0, first_s, step_s)
            probing = gain <= best and plan.limit == 0 and seat.pace.idle >= seat.pace.probe_after
            if gain > best or probing:
                plan.source = "model"
                plan.limit = min(model.tokens, PROBE_LENGTH if probing else self.longest)
                plan.reason = f"model draft {'tried again' if probing else 'on'}: acceptance {mean:.2f}"
            elif plan.limit == 0:
                plan.reason = (
                    f"model draft off: {step_s / plain_s:.2f} of a target step per token, has {mean:.2f} acceptance"
                )
        return plan

    def _step_s(self, sequences: int) -> float:
        return 0.0 if self.costs.draft is None else self.costs.draft.seconds(sequences)

    def _speed(self, plan: Plan) -> float:
        """Tokens per second to beat: what was achieved, at least plain decoding."""
        assert plan.plain_s is not None
        return max(plan.seat.pace.tokens_per_s, 1 / plan.plain_s)

    def _gain(self, plan: Plan, survival: float, mean: float, drafted: int, first_s: float, step_s: float) -> float:
        """Best expected tokens, net of ρ × cost, from drafting 1..LOOK_AHEAD more tokens after `drafted` ones."""
        seconds, context = self.costs.target.seconds, plan.seat.context
        rows = plan.other_rows + 1 + drafted
        base_s, speed = seconds(rows, context), self._speed(plan)
        best, tokens, reach = -1.0, 0.0, survival
        for m in range(1, LOOK_AHEAD + 1):
            reach *= mean
            tokens += reach
            cost_s = first_s + (m - 1) * step_s + seconds(rows + m, context) - base_s
            best = max(best, tokens - speed * cost_s)
        return best

    def _best_length(self, plan: Plan, rates: Sequence[float]) -> tuple[int, float]:
        """Length in 0..len(rates) with the largest expected gain, and that gain in tokens."""
        seconds, context = self.costs.target.seconds, plan.seat.context
        rows, speed = plan.other_rows + 1, self._speed(plan)
        base_s = seconds(rows, context)
        best, length, tokens, reach = 0.0, 0, 0.0, 1.0
        for n, rate in enumerate(rates, 1):
            reach *= rate
            tokens += reach
            gain = tokens - speed * (seconds(rows + n, context) - base_s)
            if gain > best:
                best, length = gain, n
        return length, best
