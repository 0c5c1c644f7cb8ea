"""Chance without floats: every outcome of a program is played, and its probability is a fraction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction as F
from functools import cache
from typing import Any, TypeVar

import numpy as np

from spec_local.sampling import Purpose, Row


class ExactRow(Row):
    """A row of rationals; `probs` is an object array."""

    def prob(self, token: int) -> F:  # type: ignore[override]
        at = np.flatnonzero(self.ids == token)
        return self.probs[at[0]] if len(at) else F(0)


def exact_row(weights: dict[int, F]) -> ExactRow:
    kept = {token: F(weight) for token, weight in sorted(weights.items()) if weight}
    total = sum(kept.values())
    return ExactRow(np.array(list(kept), np.int32), np.array([weight / total for weight in kept.values()], object))


T = TypeVar("T", bound=Hashable)


@cache
def race(first: tuple[tuple[int, F], ...], x: int, second: tuple[tuple[int, F], ...], y: int) -> F:
    """P(argmin E/q = x and argmin E/p = y) of two exponential races on the same noise E, in closed form.

    With a = E(x), b = E(y) = r·a, every other z needs E(z) ≥ max(q(z)/q(x), r·p(z)/p(y))·a. Integrating over a leaves
    ∫ dr / L(r)² with L piecewise linear, from q(y)/q(x) to p(y)/p(x).
    """
    q, p = dict(first), dict(second)
    if x not in q or y not in p:
        return F(0)
    others = (q.keys() | p.keys()) - {x, y}
    if x == y:
        return 1 / (1 + sum((max(q.get(z, F(0)) / q[x], p.get(z, F(0)) / p[x]) for z in others), F(0)))
    low = q.get(y, F(0)) / q[x]
    high = p[y] / p[x] if x in p else None  # None: without bound
    if high is not None and high <= low:
        return F(0)
    kinks = sorted(
        {
            r
            for z in others
            if z in q and z in p and (r := q[z] / q[x] * p[y] / p[z]) > low and (high is None or r < high)
        }
    )
    total = F(0)
    ends: list[F | None] = [*kinks, high]
    for left, right in zip([low, *kinks], ends, strict=True):
        inside = left + 1 if right is None else (left + right) / 2
        constant, slope = F(1), F(1)
        for z in others:
            from_q, from_p = q.get(z, F(0)) / q[x], p.get(z, F(0)) / p[y]
            if from_q >= from_p * inside:
                constant += from_q
            else:
                slope += from_p
        total += (1 / (constant + slope * left) - (0 if right is None else 1 / (constant + slope * right))) / slope
    return total


class Tape:
    """One path through the random decisions: those of `script` first, then always the first branch."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.probability = F(1)
        self.siblings: list[tuple[int, ...]] = []

    def decide(self, options: Iterable[tuple[T, F]]) -> T:
        possible = [(value, probability) for value, probability in options if probability]
        assert sum(probability for _, probability in possible) == 1
        depth = len(self.taken)
        if depth < len(self.script):
            branch = self.script[depth]
        else:
            branch = 0
            self.siblings += [(*self.taken, other) for other in range(1, len(possible))]
        self.taken.append(branch)
        value, probability = possible[branch]
        self.probability *= probability
        return value


class ExactChance:
    """Enumerated `Chance` with the streams of `Noise`: a number asked for twice is the same number.

    `merged` purposes are (wrongly) fed from the shared stream; `per_round=False` (wrongly) forgets the round.
    """

    def __init__(self, tape: Tape, merged: frozenset[Purpose] = frozenset(), per_round: bool = True) -> None:
        self.tape = tape
        self.merged = merged
        self.per_round = per_round
        self.start: int | None = None
        self.below: dict[Hashable, tuple[F, F]] = {}  # what is known of each uniform: low < u ≤ high
        self.drawn: dict[Hashable, tuple[tuple[tuple[int, F], ...], int]] = {}

    def for_round(self, start: int) -> ExactChance:
        self.start = start
        return self

    def _key(self, purpose: Purpose, position: int) -> Hashable:
        if purpose in self.merged:
            purpose = Purpose.SHARED
        keyed = self.per_round and purpose in (Purpose.ACCEPT, Purpose.DRAFT)
        return purpose, position, self.start if keyed else None

    def happens(self, purpose: Purpose, position: int, probability: float) -> bool:
        key = self._key(purpose, position)
        low, high = self.below.get(key, (F(0), F(1)))
        limit = min(max(F(probability), low), high)
        yes = self.tape.decide([(True, (limit - low) / (high - low)), (False, (high - limit) / (high - low))])
        self.below[key] = (low, limit) if yes else (limit, high)
        return yes

    def choose(self, purpose: Purpose, position: int, ids: np.ndarray, weights: np.ndarray) -> int:
        total = sum(weights, F(0))
        row = tuple((int(token), weight / total) for token, weight in zip(ids, weights, strict=True))
        key = self._key(purpose, position)
        if key not in self.drawn:
            token = self.tape.decide(row)
            self.drawn[key] = row, token
            return token
        before, x = self.drawn.pop(key)  # a third race on one noise has no entry here and would be a wrong law:
        self.drawn[key] = (), -1  # make it fail loudly
        assert before, "three races on one noise"
        return self.tape.decide((y, race(before, x, row, y) / dict(before)[x]) for y, _ in row)


def enumerate_law(program: Callable[[Tape], T]) -> dict[T, F]:
    """The exact law of what `program` returns."""
    law: defaultdict[T, F] = defaultdict(F)
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        tape = Tape(scripts.pop())
        law[program(tape)] += tape.probability
        scripts += tape.siblings
    assert sum(law.values()) == 1
    return law


def total_variation(a: Mapping[Any, F], b: Mapping[Any, F]) -> F:
    return sum((abs(a.get(key, F(0)) - b.get(key, F(0))) for key in a.keys() | b.keys()), F(0)) / 2
