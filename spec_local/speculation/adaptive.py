"""The controller that maximises tokens per second, zero drafted tokens included.

A round is a renewal: its reward is the emitted tokens, its time is the draft plus one pass. A second is worth ρ tokens,
the speed achieved lately, and everything is compared in tokens: a draft is made where the tokens it is expected to bring
exceed ρ × the seconds it adds to the round. Text drafts are weighed token by token with their own confidence; a model
draft, before it is made, with the optimal stopping table that will also end it (`stopping`).

Being wrong is bounded: a source that lost tokens against plain decoding on this text must promise more than it costs, a
draft model whose confidence no longer means anything is recognised after two or three tokens, and what a model that is
off may cost by being tried again is an account that one token in a hundred pays into.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_local.drafting.draft import NO_SOURCE, Draft
from spec_local.speculation.acceptance_model import (
    MODEL_DRAWN,
    MODEL_EDGES,
    MODEL_PRIOR,
    TEXT_EDGES,
    TEXT_PRIOR,
    Bins,
    shifted,
)
from spec_local.speculation.controller import Offer, Outcome, Pace, Plan, Seat
from spec_local.speculation.cost import CostProfile
from spec_local.speculation.stopping import StoppingTable, solve

SPEED_MEMORY = 0.95
"""Forgetting per round of the achieved speed."""
SPEED_START, ROUNDS_START = 1.3, 4.0
"""A new sequence is taken to have run this many rounds at this multiple of plain speed."""
DRAWN_MEMORY, DRAWN_MEMORY_ALL, DRAWN_START = 0.99, 0.999, 30.0
"""Forgetting per drawn token of a sequence's histogram of confidence and of everybody's, of which a new sequence starts
with this many tokens."""
MODEL_WEIGHT, TEXT_WEIGHT = 20.0, 20.0
"""Samples that the prior acceptance of a bin is worth."""
TRUST_START, TRUST_LEAST, TRUST_HAZARD = 0.999, 0.02, 0.0005
LOOSE = 0.1
"""Acceptance of a draft whose confidence means nothing."""
LEVEL_STEP, LEVEL_FIRST, LEVEL_MEMORY = 0.2, 1.0, 0.99
"""Step per surprise, and forgetting per sample, of the text drafter's level."""
BALANCE_MEMORY, BALANCE_MOST, BALANCE_FREE, BALANCE_PRICE = 0.98, 3.0, 1.0, 0.25
"""A source's balance forgets per round and is capped; each lost token beyond the free ones asks for this much gain."""
GUESSES = 1
GSAVE = 1.0
LATERCOST = 0.7
SHARE_MEMORY = 0.85
TABLE_ROUNDS, TABLE_SPEED = 16, 0.04
"""A stopping table is solved again after so many rounds, or when ρ has moved by this factor."""
PROBE_TOKENS, PROBE_FIRST, PROBE_LAST, PROBE_CHEAP = 3, 16.0, 256.0, 48.0
CREDIT_START, CREDIT_RATE, CREDIT_MOST = 10.0, 0.01, 10.0
"""The account for probes, in tokens: at start, per emitted token, and at most."""
HOPE_WEIGHTS = (0.0, 0.0, 0.02, 0.02, 0.03, 0.03, 0.05, 0.1, 0.1, 0.1, 0.15, 0.4)
"""Confidence a draft model that is off may turn out to have."""
HORIZON, CHANCE = 16, 0.25
"""Rounds in which a draft model that turns out useful earns what the trial cost, and how likely that is."""


class AdaptiveController:
    """See the module. One per engine; costs and what confidence means are shared by its sequences.

    Args:
        costs: Seconds per pass and draft step on this machine; follows what rounds take.
        longest: Most tokens in one draft.
        frozen: Believe `costs` as they are, so that no decision depends on the clock.
    """

    def __init__(self, costs: CostProfile, longest: int = 16, frozen: bool = False) -> None:
        self.costs = costs
        self.longest = longest
        self.frozen = frozen
        self.model = Bins(MODEL_EDGES, MODEL_PRIOR, MODEL_WEIGHT)
        self.text = Bins(TEXT_EDGES, TEXT_PRIOR, TEXT_WEIGHT)
        self.credit = CREDIT_START
        self._drawn = [100.0 * w for w in MODEL_DRAWN]
        self._rounds = 0
        self._needs: dict[int, tuple[int, float]] = {}

    # -- the protocol ----------------------------------------------------------------------------------------------

    def enter(self) -> Pace:
        """State for a new sequence."""
        scale = DRAWN_START / sum(self._drawn)
        return Pace(
            tokens=ROUNDS_START * SPEED_START,
            seconds=ROUNDS_START * self.costs.target.seconds(1),
            drawn=[scale * d for d in self._drawn],
            trust=TRUST_START,
            balance={"model": 0.0, "text": 0.0},
            probe_after=PROBE_FIRST,
        )

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        """One plan per seat; what earlier seats will submit counts as rows for those after them."""
        rows = len(seats)
        plans = []
        for seat in seats:
            plan = self._plan(seat, rows - 1, len(seats))
            rows += plan.limit if plan.source == "text" else 0
            plans.append(plan)
        return plans

    def more(self, plan: Plan, confidence: Sequence[float]) -> bool:
        """Whether the expected gain of one more token exceeds its cost."""
        drafted = len(confidence)
        if drafted >= plan.limit or plan.probe:
            return drafted < plan.limit
        survival = 1.0
        for rate in self._model_rates(confidence, plan.seat.pace):
            survival *= rate
        return self._table(plan).more(drafted, survival)

    def shorten(self, plan: Plan, draft: Draft) -> int:
        """The length with the largest expected gain; a text draft was already cut to it by the plan."""
        limit = min(plan.limit, len(draft))
        if draft.source != "model" or plan.probe:
            return limit
        return self._best_length(plan, self._model_rates(draft.confidence[:limit], plan.seat.pace))[0]

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
        plain_s = self.costs.target.seconds(other_rows + 1, seat.context)
        plan = Plan(NO_SOURCE, 0, "plain decoding: nothing to draft from", seat, plain_s, other_rows, sequences)
        text, model = seat.offers.get("text"), seat.offers.get("model")
        best = 0.0
        if text is not None and text.draft is not None:
            best = self._consider_text(plan, text, text.draft, model is not None)
        if model is not None and self.costs.draft is not None:
            self._consider_model(plan, model, best)
        return plan

    def _consider_text(self, plan: Plan, offer: Offer, draft: Draft, has_model: bool) -> float:
        """Plan the text draft if it pays; returns its gain in tokens."""
        pace = plan.seat.pace
        level, find, rate = pace.level, self.text.find, self.text.rate
        rates = [shifted(rate(find(c)), level) for c in draft.confidence[: min(offer.tokens, self.longest)]]
        length, gain = self._best_length(plan, rates)
        gain -= _penalty(pace.balance["text"])
        if has_model and length and self.costs.draft is not None:
            # What the text brings, a draft model that is in use must read later.
            slope = (self.costs.draft.seconds(16) - self.costs.draft.seconds(1)) / 15
            gain -= pace.share * self._speed(plan) * slope * length / 2
        if gain <= 0:
            plan.reason = f"text draft off: {rates[0]:.2f} acceptance expected does not pay for its rows"
            return 0.0
        plan.source, plan.limit = "text", length
        plan.reason = f"text draft on: this stood here before, {rates[0]:.2f} acceptance expected"
        return gain

    def _consider_model(self, plan: Plan, offer: Offer, best: float) -> None:
        """Plan the model draft if its gain exceeds `best`, or if it is time to try it again."""
        assert self.costs.draft is not None
        pace, context, sequences = plan.seat.pace, plan.seat.context, plan.sequences
        speed = self._speed(plan)
        step = speed * self.costs.draft.seconds(sequences, context) / sequences
        catch_up = speed * self.costs.draft.seconds(max(offer.lag, sequences), context) / sequences - step
        table = self._table(plan)
        # A model that is in use must catch up sooner or later, so only the rest of that cost is due to this draft.
        gain = pace.trust * table.value - (1 - pace.trust) * 2 * step
        gain += self._saved(plan, offer)
        gain -= (1 - pace.share) * catch_up + _penalty(pace.balance["model"])
        if gain > best:
            plan.source, plan.limit = "model", min(offer.tokens, self.longest)
            plan.reason = f"model draft on: {self._expected(pace):.2f} acceptance expected"
        elif plan.source == NO_SOURCE:
            plan.reason = self._off(plan)
            if pace.idle < pace.probe_after:
                return
            hope = solve(self.model.rates(), HOPE_WEIGHTS, step, self._row_costs(plan)).value
            cost = catch_up + PROBE_TOKENS * step
            pace.probe_after = min(max(2 * pace.probe_after, PROBE_FIRST), max(PROBE_CHEAP, 100 * cost), PROBE_LAST)
            if CHANCE * HORIZON * hope > cost and self.credit > cost:
                plan.source, plan.limit, plan.probe = "model", min(offer.tokens, PROBE_TOKENS), True
                plan.reason = f"model draft tried again after {pace.idle} tokens"

    def guess(self, plan: Plan, draft: Draft, rows: int) -> int:
        """Tokens worth reading along: each that the model would have drawn itself saves it a step."""
        if self.costs.draft is None or not GUESSES:
            return 0
        seconds, context = self.costs.draft.seconds, plan.seat.context
        step, base = seconds(plan.sequences, context), seconds(rows, context)
        best, length, reach, saved = 0.0, 0, 1.0, 0.0
        for n, rate in enumerate(self._text_rates(draft.confidence[: self.longest - 1], plan.seat.pace), 1):
            reach *= rate
            saved += reach * step
            gain = saved - (seconds(rows + n, context) - base)
            if gain > best:
                best, length = gain, n
            elif reach < 0.05:
                break
        return length

    def _saved(self, plan: Plan, offer: Offer) -> float:
        """Tokens that the steps are worth which reading the text draft along is expected to save."""
        text = plan.seat.offers.get("text")
        if text is None or text.draft is None:
            return 0.0
        assert self.costs.draft is not None
        draft, context = self.costs.draft.seconds, plan.seat.context
        length = self.guess(plan, text.draft, offer.lag)
        if not length: return 0.0
        step = draft(plan.sequences, context)
        rates = self._text_rates(text.draft.confidence[: length], plan.seat.pace)
        mean = min(self._expected(plan.seat.pace), 0.995)
        speed = self._speed(plan)
        tokens, alive, alone, along, reach = 0.0, 1.0, 0.0, draft(offer.lag + length, context) - draft(offer.lag, context), 1.0
        without = with_guess = -9.0
        rows = 0.0
        for n, row in enumerate(self._row_costs(plan), 1):
            alive *= mean
            tokens += alive
            rows += row
            alone += step
            if n > 1 and n - 2 < length:
                reach *= rates[n - 2]
                along += step * (1 - reach)
            else:
                along += step
            without = max(without, tokens - rows - speed * alone)
            with_guess = max(with_guess, tokens - rows - speed * along)
        return with_guess - without

    def _text_rates(self, confidence: Sequence[float], pace: Pace) -> list[float]:
        find, rate, level = self.text.find, self.text.rate, pace.level
        return [shifted(rate(find(c)), level) for c in confidence]

    def _off(self, plan: Plan) -> str:
        """Why the draft model is not used, in words."""
        assert self.costs.draft is not None
        assert plan.plain_s is not None
        ratio = self.costs.draft.seconds(plan.sequences, plan.seat.context) / plan.plain_s
        need = self._need(plan)
        has = f"has {self._expected(plan.seat.pace):.2f}"
        if need >= 1:
            return f"model draft off: {ratio:.2f} of a target step per token, no acceptance would pay, {has}"
        return f"model draft off: {ratio:.2f} of a target step per token, needs {need:.2f} acceptance, {has}"

    def _need(self, plan: Plan) -> float:
        """Break-even: the least constant acceptance at which some draft length pays; 1.0 where none does."""
        key = plan.other_rows
        known = self._needs.get(key)
        if known is not None and known[0] + 64 > self._rounds:
            return known[1]
        assert self.costs.draft is not None
        assert plan.plain_s is not None
        context = plan.seat.context
        step = self.costs.draft.seconds(plan.sequences, context) / plan.plain_s
        passes = [self.costs.target.seconds(plan.other_rows + 1 + k, context) / plan.plain_s for k in range(17)]

        def pays(alpha: float) -> bool:
            tokens, reach = 0.0, 1.0
            for k in range(1, len(passes)):
                reach *= alpha
                tokens += reach
                if tokens > k * step + passes[k] - passes[0]:
                    return True
            return False

        need = next((a / 100 for a in range(1, 100) if pays(a / 100)), 1.0)
        self._needs[key] = (self._rounds, need)
        return need

    def _expected(self, pace: Pace) -> float:
        """Acceptance the draft model's next token is expected to have."""
        total = sum(pace.drawn)
        mean = sum(d * r for d, r in zip(pace.drawn, self.model.rates(), strict=True)) / total
        return pace.trust * mean + (1 - pace.trust) * LOOSE

    def _model_rates(self, confidence: Sequence[float], pace: Pace) -> list[float]:
        """Acceptance of drafted tokens with these confidences."""
        find, rate, trust = self.model.find, self.model.rate, pace.trust
        loose = (1 - trust) * LOOSE
        return [trust * rate(find(c)) + loose for c in confidence]

    def _speed(self, plan: Plan) -> float:
        """ρ: tokens per second of all sequences together, at least plain decoding."""
        pace = plan.seat.pace
        assert plan.plain_s is not None
        return plan.sequences * max(pace.tokens / pace.seconds, 1 / plan.plain_s)

    def _table(self, plan: Plan) -> StoppingTable:
        """The stopping table of this sequence, solved anew when it no longer fits."""
        assert self.costs.draft is not None
        pace, speed = plan.seat.pace, self._speed(plan)
        known = pace.tables.get(plan.other_rows)
        if known is not None:
            table, made_in, made_at = known
            if made_in + TABLE_ROUNDS > self._rounds and abs(made_at / speed - 1) < TABLE_SPEED:
                return table  # type: ignore[no-any-return]
        total = sum(pace.drawn)
        step = speed * self.costs.draft.seconds(plan.sequences, plan.seat.context) / plan.sequences
        table = solve(self.model.rates(), [d / total for d in pace.drawn], step, self._row_costs(plan))
        if len(pace.tables) > 8:
            pace.tables.clear()
        pace.tables[plan.other_rows] = (table, self._rounds, speed)
        return table

    def _row_costs(self, plan: Plan) -> list[float]:
        """Entry k: tokens that submitting k + 1 drafted tokens instead of k costs."""
        seconds, context, speed = self.costs.target.seconds, plan.seat.context, self._speed(plan)
        passes = [seconds(plan.other_rows + 1 + k, context) for k in range(self.longest + 1)]
        return [speed * (after - before) for before, after in zip(passes, passes[1:], strict=False)]

    def _best_length(self, plan: Plan, rates: Sequence[float]) -> tuple[int, float]:
        """Length in 0..len(rates) with the largest expected gain, and that gain in tokens."""
        seconds, context, speed = self.costs.target.seconds, plan.seat.context, self._speed(plan)
        rows = plan.other_rows + 1
        base_s = seconds(rows, context)
        best, length, tokens, reach = 0.0, 0, 0.0, 1.0
        for n, rate in enumerate(rates, 1):
            reach *= rate
            tokens += reach
            gain = tokens - speed * (seconds(rows + n, context) - base_s)
            if gain > best:
                best, length = gain, n
        return length, best

    # -- learning --------------------------------------------------------------------------------------------------

    def _learn_costs(self, outcomes: Sequence[Outcome]) -> None:
        context = max(o.plan.seat.context for o in outcomes)
        first = outcomes[0].round
        self.costs.target.update(sum(o.round.width for o in outcomes), first.verify_s, context)
        drafts = [o for o in outcomes if o.plan.source == "model" and o.round.drafted]
        curve = self.costs.draft
        if not drafts or curve is None or first.draft_s <= 0:
            return
        expected = curve.seconds(sum(o.plan.seat.offers["model"].lag for o in drafts), context)
        for step in range(1, max(o.round.drafted for o in drafts)):
            expected += curve.seconds(sum(o.round.drafted > step for o in drafts), context)
        curve.scale_by(first.draft_s / expected, context)

    def _learn_speed(self, outcome: Outcome) -> None:
        r, plan = outcome.round, outcome.plan
        pace = plan.seat.pace
        assert plan.plain_s is not None
        pace.tokens = SPEED_MEMORY * pace.tokens + r.emitted
        pace.seconds = SPEED_MEMORY * pace.seconds + (self._modelled_s(outcome) if self.frozen else r.seconds)
        for source in pace.balance:
            pace.balance[source] *= BALANCE_MEMORY
        self.credit = min(self.credit + CREDIT_RATE * r.emitted, CREDIT_MOST)
        if r.source != NO_SOURCE:
            won = r.emitted - (self._modelled_s(outcome) if self.frozen else r.seconds) / plan.plain_s
            pace.balance[r.source] = min(pace.balance[r.source] + won, BALANCE_MOST)
            if plan.probe:
                self.credit += min(won, 0.0)

    def _modelled_s(self, outcome: Outcome) -> float:
        """Seconds the round should have taken, by the costs alone."""
        r, plan = outcome.round, outcome.plan
        total = self.costs.target.seconds(plan.other_rows + r.width, plan.seat.context)
        if r.source == "model" and self.costs.draft is not None:
            lag = plan.seat.offers["model"].lag
            total += self.costs.draft.seconds(lag, plan.seat.context)
            total += (r.drafted - 1) * self.costs.draft.seconds(1, plan.seat.context)
        return total

    def _learn_text(self, outcome: Outcome) -> None:
        """What the text drafter offered is compared with the text, whether it was submitted or not: it costs nothing."""
        offer = outcome.plan.seat.offers.get("text")
        if offer is None or offer.draft is None:
            return
        pace = outcome.plan.seat.pace
        for token, confidence, emitted in zip(offer.draft.tokens, offer.draft.confidence, outcome.emitted, strict=False):
            kept = token == emitted
            b = self.text.find(confidence)
            surprise = kept - shifted(self.text.rate(b), pace.level)
            pace.tested += 1
            pace.level = LEVEL_MEMORY * pace.level + max(LEVEL_STEP, LEVEL_FIRST / pace.tested) * surprise
            self.text.nudge(b, surprise)
            if not kept:
                break

    def _learn_model(self, outcome: Outcome) -> None:
        r, pace = outcome.round, outcome.plan.seat.pace
        used = r.source == "model"
        pace.share = SHARE_MEMORY * pace.share + (1 - SHARE_MEMORY) * used
        if not used:
            pace.idle += r.emitted
            return
        pace.idle = 0
        if not outcome.plan.probe:
            pace.probe_after = PROBE_FIRST
        for i, confidence in enumerate(outcome.draft.confidence):
            b = self.model.find(confidence)
            pace.drawn = [DRAWN_MEMORY * d for d in pace.drawn]
            self._drawn = [DRAWN_MEMORY_ALL * d for d in self._drawn]
            pace.drawn[b] += 1.0
            self._drawn[b] += 1.0
            if i > r.accepted or i >= r.tested:
                continue  # behind the first rejection nothing was tested
            kept, rate = i < r.accepted, self.model.rate(b)
            sound, loose = (rate, LOOSE) if kept else (1 - rate, 1 - LOOSE)
            trust = pace.trust * sound / (pace.trust * sound + (1 - pace.trust) * loose)
            pace.trust = max(trust * (1 - TRUST_HAZARD), TRUST_LEAST)
            self.model.learn(b, kept)


def _penalty(balance: float) -> float:
    """Gain in tokens asked of a source that lost tokens on this text."""
    return BALANCE_PRICE * max(0.0, -balance - BALANCE_FREE)


