"""The controller that maximises tokens per second, zero drafted tokens included.

A round is a renewal: its reward is the emitted tokens, its time is the draft plus one pass. A second is worth ρ tokens,
the speed achieved lately, and everything is compared in tokens: a draft is made where the tokens it is expected to bring
exceed ρ × the seconds it adds to the round. Text drafts are weighed with their own matches; a model draft, before it is
made, with the optimal stopping table that will also end it (`stopping`).
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_local.drafting.draft import NO_SOURCE, Draft
from spec_local.speculation import acceptance_model as am
from spec_local.speculation.acceptance_model import Bins
from spec_local.speculation.controller import Outcome, Pace, Plan, Seat
from spec_local.speculation.cost import CostProfile
from spec_local.speculation.stopping import StoppingTable, solve

P = dict(
    speed_memory=0.95, table_rounds=16,speed_change=.04, ease_memory=0.85, probe_first=16, probe_last=256, horizon=16.0,lag_full=16,
    credit_start=6.0, credit_rate=0.01, credit_most=12.0, text_step=0.2, text_memory=0.99, hazard=0.0005, loose=0.1,
    guesses=True, text_prior=6., model_prior=20., text_margin=0.0,lagcost=0.0,drawn_prior=100.,drawn_weight=30.,drawn_memory=.99,drawn_slow=.999,trust=.999,
)


class AdaptiveController:
    """See the module. One per engine; costs and acceptance models are shared by its sequences.

    Args:
        costs: Seconds per pass and draft step on this machine.
        longest: Most tokens in one draft.
        frozen: Believe `costs` as they are, so that decisions do not depend on the clock.
    """

    def __init__(self, costs: CostProfile, longest: int = 16, frozen: bool = False, **p: float) -> None:
        self.p = {**P, **p}
        self.costs = costs
        self.longest = longest
        self.frozen = frozen
        self.model = Bins(am.MODEL_EDGES, am.MODEL_PRIOR, self.p['model_prior'])
        self.text = Bins(am.TEXT_EDGES, am.TEXT_PRIOR, self.p['text_prior'])
        self.drawn = [w * self.p['drawn_prior'] for w in am.MODEL_DRAWN]
        self.credit = self.p['credit_start']
        self._tokens = 4.0
        self._seconds = 4.0 * costs.target.seconds(1)
        self._rounds = 0

    def enter(self) -> Pace:
        """State for a new sequence."""
        total = sum(self.drawn)
        return Pace(drawn=[self.p['drawn_weight'] * w / total for w in self.drawn], trust=self.p['trust'])

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
        pace = plan.seat.pace
        survival = 1.0
        for c in confidence:
            survival *= self._trusted(self.model.rate(self.model.find(c)), pace)
        table = self._table(pace, plan.other_rows, plan.sequences, plan.seat.context, plan.guess)
        return table.more(len(confidence), survival)

    def _trusted(self, rate: float, pace: Pace) -> float:
        return pace.trust * rate + (1 - pace.trust) * self.p['loose']

    def shorten(self, plan: Plan, draft: Draft) -> int:
        """The length with the largest expected gain."""
        if draft.source == "text":
            return min(plan.limit, len(draft))
        pace = plan.seat.pace
        rates = [self._trusted(self.model.rate(self.model.find(c)), pace) for c in draft.confidence[: plan.limit]]
        return self._best_length(plan, rates)[0]

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
        m = self.p['speed_memory']
        self._tokens = self._tokens * m + sum(o.round.emitted for o in outcomes)
        self._seconds = self._seconds * m + seconds
        plain_s = outcomes[0].plan.plain_s
        assert plain_s is not None
        emitted = sum(o.round.emitted for o in outcomes)
        gain = emitted / len(outcomes) - seconds / plain_s if first.width > 1 or first.source != NO_SOURCE else 0.0
        self.credit = min(self.credit + gain + self.p['credit_rate'] * emitted, self.p['credit_most'])
        for outcome in outcomes:
            self._observe(outcome)

    def _observe(self, outcome: Outcome) -> None:
        r, pace, p = outcome.round, outcome.plan.seat.pace, self.p
        text = outcome.plan.seat.offers.get("text")
        if text is not None and text.draft is not None:
            tested = min(len(text.draft), len(outcome.emitted))
            for i in range(tested):
                kept = text.draft.tokens[i] == outcome.emitted[i]
                b = self.text.find(text.draft.confidence[i])
                level = pace.text_level
                pace.text_level = p['text_memory'] * level + p['text_step'] * (kept - am.shifted(self.text.rate(b), level))
                self.text.learn(b, kept)
                if not kept:
                    break
        if r.source == "model":
            bins = [self.model.find(c) for c in outcome.draft.confidence]
            for i, b in enumerate(bins):
                for d, f in ((pace.drawn, p['drawn_memory']), (self.drawn, p['drawn_slow'])):
                    for k in range(len(d)): d[k] *= f
                    d[b] += 1.0
                rate = self.model.rate(b)
                if i > r.accepted or i >= r.tested:
                    continue
                kept = i < r.accepted
                good, bad = (rate, p['loose']) if kept else (1 - rate, 1 - p['loose'])
                posterior = pace.trust * good / (pace.trust * good + (1 - pace.trust) * bad)
                pace.trust = posterior * (1 - p['hazard']) + (1 - posterior) * p['hazard']
                self.model.learn(b, kept)
            pace.idle = 0
            if outcome.plan.probe:
                pace.probe_after = min(2 * pace.probe_after, p['probe_last'])
            else:
                pace.probe_after = p['probe_first']
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
        pace = seat.pace
        text, model = seat.offers.get("text"), seat.offers.get("model")
        rates: list[float] = []
        if text is not None and text.draft is not None:
            level = pace.text_level
            rates = [am.shifted(self.text.rate(self.text.find(c)), level) for c in text.draft.confidence[: min(text.tokens, self.longest)]]
            length, gain = self._best_length(plan, rates)
            gain-=self.p['text_margin']
            if model: gain -= self.p['lagcost']*length
            if gain > best:
                best = gain
                plan.source, plan.limit, plan.reason = "text", length, f"text repeats: {length} tokens offered pay"
            else:
                plan.reason = "text draft off: its match is too short to pay"
        if model is not None and self.costs.draft is not None:
            draft = self.costs.draft.seconds
            step_s = draft(sequences)
            guess = self._guess(rates, sequences, step_s) if self.p['guesses'] else 0
            table = self._table(pace, other_rows, sequences, seat.context, guess)
            lag_cost = speed * (draft(max(model.lag, sequences), seat.context) - step_s)
            full = self.p['lag_full']
            if model.lag > full:
                over = speed * (draft(max(model.lag, sequences), seat.context) - draft(full))
                lag_cost = speed * (draft(full) - step_s) + over / self.p['horizon']
            gain = table.value * (pace.trust if table.value > 0 else 1) - (1 - pace.trust) * speed * step_s * 3 - lag_cost
            if gain > best:
                plan.source, plan.limit, plan.guess = "model", min(model.tokens, self.longest), guess
                plan.reason = f"model draft on: expected gain {gain:.2f} tokens per round"
            elif plan.limit == 0:
                plan.reason = f"model draft off: {step_s / plain_s:.2f} of a target step per token"
                if pace.idle >= pace.probe_after:
                    hopeful = self._table(Pace(drawn=[0.]*11+[1.]), other_rows, sequences, seat.context, 0)
                    if hopeful.value > 0 and self.credit > lag_cost + 1:
                        plan.source, plan.limit, plan.probe = "model", min(model.tokens, 2), True
                        plan.reason = "model draft tried again"
        return plan

    def _guess(self, rates: Sequence[float], sequences: int, step_s: float) -> int:
        """Tokens of the text draft worth feeding to the draft model in its first pass: each right one saves a step."""
        best, length, reach, saved = 0.0, 0, 1.0, 0.0
        draft = self.costs.draft.seconds
        base = draft(sequences)
        for n, rate in enumerate(rates[:15], 1):
            reach *= rate
            saved += reach * step_s
            gain = saved - (draft(sequences + n) - base)
            if gain > best:
                best, length = gain, n
        return length

    def _table(self, pace: Pace, other_rows: int, sequences: int, context: int, guess: int) -> StoppingTable:
        key = (other_rows, sequences, guess)
        known = pace.tables.get(key)
        plain_s = self.costs.target.seconds(other_rows + 1, context)
        speed = self.speed(plain_s)
        if known is not None and known[0] + self.p['table_rounds'] > self._rounds and abs(known[2] / speed - 1) < self.p['speed_change']:
            return known[1]
        assert self.costs.draft is not None
        seconds = self.costs.target.seconds
        passes = [seconds(other_rows + 1 + k, context) for k in range(self.longest + 1)]
        rows = [speed * (b - a) for a, b in zip(passes, passes[1:], strict=False)]
        draft = self.costs.draft.seconds
        step = draft(sequences, context)
        steps = [speed * step] * self.longest
        if guess:
            first = draft(sequences + guess, context)
            steps[: guess + 1] = [speed * (first / (guess + 1))] * (guess + 1)
            steps[0] = speed * first * 0.7
            for i in range(1, guess + 1): steps[i] = speed * first * 0.3 / guess
        total = sum(pace.drawn)
        table = solve(self.model.rates(), [d / total for d in pace.drawn], steps[: self.longest], rows)
        pace.tables[key] = (self._rounds, table, speed)
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
