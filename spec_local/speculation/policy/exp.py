from __future__ import annotations
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from bisect import bisect_right
from typing import Any

from spec_local.drafting.draft import NO_SOURCE, Draft
from spec_local.speculation.controller import Offer, Outcome, Plan, Seat
from spec_local.speculation.cost import CostProfile
from spec_local.speculation.reading_along import gain_of_reading, worth_reading
from spec_local.speculation.stopping import StoppingTable, solve
from spec_local.speculation.policy.numbers import NUMBERS, Numbers

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
SAYS = (0.1, 0.2, 0.25, 0.35, 0.45, 0.55, 0.65, 0.77, 0.88, 0.935, 0.968, 0.99, 0.999)
MODEL_EDGES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
MODEL_PRIOR = (0.19, 0.29, 0.4, 0.49, 0.59, 0.66, 0.8, 0.92, 0.96, 0.975, 0.993, 0.999)
MODEL_DRAWN = (0.03, 0.03, 0.04, 0.04, 0.045, 0.045, 0.05, 0.065, 0.06, 0.065, 0.1, 0.43)

def shifted(rate, level, n):
    odds = rate * math.exp(level)
    return min(max(odds / (odds + 1.0 - rate), n.least), n.most)

@dataclass(slots=True)
class Ready:
    level: float = 0.0
    tested: int = 0

@dataclass(slots=True)
class Drawn:
    seen: list[float]
    trust: float
    level: float = 0.0
    tested: int = 0
    promise: float | None = None
    tables: dict = field(default_factory=dict)
    made: int = 0

@dataclass(slots=True)
class State:
    rounds: float
    tokens: float
    seconds: float
    account: float
    played: int = 0
    stalls: int = 0
    ready: dict[str, Ready] = field(default_factory=dict)
    drawn: dict[str, Drawn] = field(default_factory=dict)

@dataclass(slots=True)
class Notes:
    other_rows: int
    sequences: int
    speed: float
    unit: float
    rows: list[float]
    survival: tuple = (0, 1.0)

class ExpController:
    def __init__(self, costs: CostProfile, longest=16, frozen=False, apart=False, numbers: Numbers = NUMBERS):
        self.costs, self.longest, self.frozen, self.apart, self.n = costs, longest, frozen, apart, numbers
        n = numbers
        if n.use_bins:
            self.edges, self.rates = MODEL_EDGES, list(MODEL_PRIOR)
            self.kept = [n.bin_weight * p for p in self.rates]
            self.seen = [n.bin_weight] * len(self.rates)
        else:
            self.edges, self.rates = EDGES, list(SAYS)
        if n.use_bins:
            self.prior = list(MODEL_DRAWN)
        else:
            rest = (1 - n.sure_share) / (len(self.rates) - 1)
            self.prior = [rest] * (len(self.rates) - 1) + [n.sure_share]
        self.rounds = 0

    def enter(self) -> State:
        n = self.n
        return State(n.speed_rounds, n.speed_rounds * n.speed_start, n.speed_rounds * self.costs.target.seconds(1), n.stake)

    def _drawn(self, st: State, source: str) -> Drawn:
        d = st.drawn.get(source)
        if d is None:
            d = st.drawn[source] = Drawn([self.n.histogram_start * p for p in self.prior], self.n.trust_start)
        return d

    def _copy(self, st):
        import copy
        return copy.deepcopy(st)

    def opens(self, seat: Seat, read: int) -> str:
        source = self._plan(replace(seat, pace=self._copy(seat.pace)), 0, 1).source
        for name, o in seat.offers.items():
            if o.draft is None and source != name and self.costs.draft is not None:
                if o.lag * self.costs.draft.per_row(seat.context) > self.n.open_share * read * self.costs.target.per_row(seat.context):
                    continue
                if self._plan(replace(seat, pace=self._copy(seat.pace), offers={name: replace(o, lag=1)}), 0, 1).source == name:
                    return name
        return source

    def plan(self, seats):
        rows = len(seats)
        plans = []
        for seat in seats:
            p = self._plan(seat, 0 if self.apart else rows - 1, len(seats))
            o = seat.offers.get(p.source)
            rows += p.limit if o is not None and o.draft is not None else 0
            plans.append(p)
        return plans

    def _passes(self, k):
        return k if self.apart else 1

    def _plan(self, seat, other, sequences):
        n, st = self.n, seat.pace
        plain_s = self._passes(sequences) * self.costs.target.seconds(other + 1, seat.context)
        plan = Plan(NO_SOURCE, 0, "plain", seat, plain_s)
        unit = sequences / plain_s
        speed = max(sequences * st.tokens / st.seconds, unit)
        first = other + 1
        t = self.costs.target
        passes = [t.seconds(first + k, seat.context) for k in range(self.longest + 1)]
        passes[1:] = [p + self.costs.rollback_s for p in passes[1:]]
        plan.other_rows, plan.sequences = other, sequences
        plan.rows = [speed * (b - a) for a, b in pairwise(passes)]
        plan.speed = speed
        price = unit / speed
        best = 0.0
        text = None
        for source, o in seat.offers.items():
            if o.draft is None: continue
            text = source, o
            r = st.ready.get(source)
            if r is None: r = st.ready[source] = Ready()
            rates = self._ready_rates(r, o.draft.confidence[: min(o.tokens, self.longest)])
            reach, net, cost, length, top, sure = 1.0, 0.0, 0.0, 0, 0.0, 0
            later = 0.0
            if any(d.promise for d in st.drawn.values()) and self.costs.draft is not None:
                later = n.read_share * speed / sequences * self.costs.draft.per_row(seat.context)
            for k, (rate, row) in enumerate(zip(rates, plan.rows), 1):
                reach *= rate
                cost += row
                net += reach - row*(1+n.margin) - later
                if net > top and (not n.guard or n.cover * cost * price <= st.account):
                    top, length = net, k
            if top > best:
                best = top
                plan.source, plan.limit = source, length
        for source, o in seat.offers.items():
            if o.draft is not None or self.costs.draft is None: continue
            d = self._drawn(st, source)
            c = self.costs.draft
            step = speed * c.seconds(sequences, seat.context) / sequences
            catch = speed * c.seconds(o.lag + sequences - 1, seat.context) / sequences - step
            table = self._table(plan, d, step)
            gain = table.value
            if n.use_trust:
                gain = d.trust * gain - (1 - d.trust) * 2 * step
            if text is not None:
                gain += self._gain_of_reading(plan, d, text, o, step)
            promise = max(0.0, gain - best)
            if d.promise is None: d.promise = promise
            d.promise += n.promise_weight * (promise - d.promise)
            if n.charge_mode == "promise":
                reading = speed / sequences * c.per_row(seat.context) * st.tokens / st.rounds
                ok = self._horizon(seat) * (d.promise - reading) > catch
            else:
                ok = self._horizon(seat) * (gain - best) > catch
            free = st.played == 0 and n.charge_mode == "promise"
            # stake
            cost = 0.0 if free else catch
            limit = 0
            for k in range(min(o.tokens, self.longest)):
                cost += step + plan.rows[k]
                if n.guard and n.cover * cost * price > st.account: break
                limit = k + 1
            if not ok: gain -= catch
            if gain > best and limit:
                best = gain
                plan.source, plan.limit = source, limit
        return plan

    def _horizon(self, seat):
        st = seat.pace
        return min(max(self.n.horizon, st.played), seat.remaining * st.rounds / st.tokens)

    def _ready_rates(self, r, confidence):
        n = self.n
        out, e, cache = [], math.exp(r.level), {}
        for c in confidence:
            x = cache.get(c)
            if x is None:
                odds = c * e
                x = cache[c] = 1.0 if c >= 1.0 else min(max(odds / (odds + 1.0 - c), n.least), n.most)
            out.append(x)
        return out

    def _drawn_rates(self, d, confidence):
        n = self.n
        out = []
        for c in confidence:
            x = self.rates[bisect_right(self.edges, c)]
            if n.use_dlevel: x = shifted(x, d.level, n)
            if n.use_trust: x = d.trust * x + (1 - d.trust) * n.loose
            out.append(x)
        return out

    def _table(self, plan, d, step) -> StoppingTable:
        key = plan.other_rows, round(math.log(plan.speed) / self.n.table_speed), round(d.level / 0.25) if self.n.use_dlevel else 0
        known = d.tables.get(key)
        if known is not None and known[1] + self.n.table_rounds > self.rounds:
            return known[0]
        total = sum(d.seen)
        rates = [shifted(r, d.level, self.n) for r in self.rates] if self.n.use_dlevel else self.rates
        table = solve(rates, [w / total for w in d.seen], step, plan.rows)
        if len(d.tables) > 16: d.tables.clear()
        d.tables[key] = table, self.rounds
        return table

    def guess(self, plan, draft, rows):
        if self.costs.draft is None: return 0
        st = plan.seat.pace
        r = st.ready.get(draft.source) or Ready()
        s, context = self.costs.draft.seconds, plan.seat.context
        return worth_reading(self._ready_rates(r, draft.confidence[: self.longest - 1]), s(plan.sequences, context), lambda k: s(rows + k, context))

    def _gain_of_reading(self, plan, d, text, offer, step):
        source, o = text
        k = self.guess(plan, o.draft, offer.lag)
        if not k: return 0.0
        rates = self._ready_rates(plan.seat.pace.ready[source], o.draft.confidence[:k])
        s, c, q = self.costs.draft.seconds, plan.seat.context, plan.sequences
        first = plan.speed / q * (s(offer.lag + k + q - 1, c) - s(offer.lag + q - 1, c))
        total = sum(d.seen)
        rs = [shifted(r, d.level, self.n) for r in self.rates] if self.n.use_dlevel else self.rates
        mean = sum(a * b for a, b in zip(d.seen, rs)) / total
        if self.n.use_trust: mean = d.trust * mean + (1 - d.trust) * self.n.loose
        return gain_of_reading(rates, min(mean, 0.995), first, step, plan.rows)

    def more(self, plan, confidence):
        k = len(confidence)
        if k >= plan.limit: return False
        d = plan.seat.pace.drawn[plan.source]
        seen, s = plan.survival
        for rate in self._drawn_rates(d, confidence[seen:]): s *= rate
        plan.survival = k, s
        step = plan.speed * self.costs.draft.seconds(plan.sequences, plan.seat.context) / plan.sequences
        return self._table(plan, d, step).more(k, s)

    def shorten(self, plan, draft):
        limit = min(plan.limit, len(draft))
        if plan.seat.offers[plan.source].draft is not None: return limit
        rates = self._drawn_rates(plan.seat.pace.drawn[plan.source], draft.confidence[:limit])
        top, length, net, reach = 0.0, 0, 0.0, 1.0
        for k, (rate, row) in enumerate(zip(rates, plan.rows), 1):
            reach *= rate
            net += reach - row
            if net > top: top, length = net, k
        return length

    def observe(self, outcomes):
        self.rounds += 1
        n = self.n
        first = outcomes[0].round
        if not self.frozen:
            context = max(o.plan.seat.context for o in outcomes)
            passes = self._passes(len(outcomes))
            self.costs.target.update(sum(o.round.width for o in outcomes) // passes, first.verify_s / passes, context)
            e = self._drafting_s(outcomes)
            if self.costs.draft is not None and e > 0:
                self.costs.draft.scale_by(first.draft_s / e, context)
        for o in outcomes:
            self._learn(o)

    def _drafting_s(self, outcomes):
        if self.costs.draft is None: return 0.0
        context = max(o.plan.seat.context for o in outcomes)
        together = zip_longest(*(o.draft.passes for o in outcomes), fillvalue=0)
        return sum(self.costs.draft.seconds(sum(rows), context) for rows in together)

    def _learn(self, o):
        n, r, plan = self.n, o.round, o.plan
        st: State = plan.seat.pace
        seconds = self._passes(plan.sequences) * self.costs.target.seconds(plan.other_rows + r.width, plan.seat.context) + self._drafting_s([o])
        if not self.frozen:
            st.stalls = st.stalls + 1 if r.seconds > seconds * n.stall else 0
            seconds = min(max(r.seconds, seconds / n.stall), seconds * n.stall * max(st.stalls, 1))
        st.played += 1
        st.rounds = n.speed_memory * st.rounds + 1
        st.tokens = n.speed_memory * st.tokens + r.emitted
        st.seconds = n.speed_memory * st.seconds + seconds
        st.account += n.stake_rate * r.emitted
        if r.drafted:
            won = r.emitted - seconds / plan.plain_s
            st.account += won if won < 0 else n.earn * won
        st.account = min(st.account, n.stake_most)
        for source, offer in plan.seat.offers.items():
            if offer.draft is not None:
                rd = st.ready[source]
                for token, c, e in zip(offer.draft.tokens, offer.draft.confidence, o.emitted):
                    kept = token == e
                    surprise = kept - shifted(c, rd.level, n)
                    rd.tested += 1
                    rd.level = n.level_memory * rd.level + max(n.level_step, n.level_first / rd.tested) * surprise
                    rd.level = max(-n.level_most, min(n.level_most, rd.level))
                    if not kept: break
            elif source in st.drawn:
                d = st.drawn[source]
                if r.source != source:
                    m = n.idle_memory ** r.emitted
                    total = sum(d.seen)
                    if m < 1: d.seen = [m * s + (1 - m) * n.histogram_start * p for s, p in zip(d.seen, self.prior)]
                    d.trust = n.trust_start - (n.trust_start - d.trust) * m
                    d.level *= m
                    continue
                m = n.histogram_memory ** len(o.draft)
                d.seen = [m * s for s in d.seen]
                for i, c in enumerate(o.draft.confidence):
                    b = bisect_right(self.edges, c)
                    d.seen[b] += 1
                    if i > r.accepted or i >= r.tested: continue
                    kept, rate = i < r.accepted, self.rates[b]
                    if n.use_trust:
                        sound, loose = (rate, n.loose) if kept else (1 - rate, 1 - n.loose)
                        t = d.trust * sound / (d.trust * sound + (1 - d.trust) * loose)
                        d.trust = max(t * (1 - n.trust_hazard), n.trust_least)
                    if n.use_dlevel:
                        d.tested += 1
                        d.level = n.dlevel_memory * d.level + max(n.dlevel_step, n.dlevel_first / d.tested) * (kept - shifted(rate, d.level, n))
                    if n.use_bins:
                        self.kept[b] = self.kept[b] * n.bin_memory + kept
                        self.seen[b] = self.seen[b] * n.bin_memory + 1
                        self.rates[b] = min(max(self.kept[b] / self.seen[b], n.least), n.most)
