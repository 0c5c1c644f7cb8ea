"""Tail probabilities and power, without a statistics library.

χ² of k equal cells has k-1 degrees of freedom; under an alternative that moves probability TV between cells, spread
evenly, it is noncentral with λ = 4·N·TV², so the smallest TV that N samples show with a given power follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_CONSTANT = 1e-9
"""Relative differences of a score up to here are rounding."""


@dataclass(frozen=True, slots=True)
class Tested:
    """The outcome of one statistical test."""

    name: str
    samples: int
    statistic: float
    p_value: float
    detects: float | None = None
    """Smallest total variation this many samples show with power 0.99 at the level in use; None: not stated."""


def chi_square_tail(statistic: float, df: int) -> float:
    """P(χ²_df > statistic): the regularised upper incomplete gamma function Q(df/2, statistic/2).

    By series below, by Lentz's continued fraction above df/2 + 1 (Press et al., Numerical Recipes, 6.2).
    """
    a, x = df / 2, statistic / 2
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - front * total)
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    h = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b or tiny)
        c = b + an / c or tiny
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return min(1.0, front * h)


def noncentral_tail(statistic: float, df: int, shift: float) -> float:
    """P(χ²_df(λ) > statistic) for noncentrality λ = `shift`: a Poisson(λ/2) mixture of central tails."""
    mean = shift / 2
    width = 12 * math.sqrt(mean) + 12
    total = 0.0
    for j in range(max(0, int(mean - width)), int(mean + width) + 1):
        weight = math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) if mean > 0 else float(j == 0)
        total += weight * chi_square_tail(statistic, df + 2 * j)
    return min(1.0, total)


def chi_square_quantile(level: float, df: int) -> float:
    """The statistic whose tail probability is `level`."""
    return _bisect(lambda x: chi_square_tail(x, df) < level, 0.0, df + 40 * math.sqrt(df) + 200)


@cache
def detectable(samples: int, cells: int, level: float, power: float = 0.99) -> float:
    """Smallest total variation between two laws on equal cells that `samples` show with this power at this level."""
    df = cells - 1
    critical = chi_square_quantile(level, df)
    shift = _bisect(lambda x: noncentral_tail(critical, df, x) >= power, 1e-9, 2000.0, 1e-4)
    return min(1.0, math.sqrt(shift / (4 * samples)))


def uniformity(name: str, values: Sequence[float], level: float) -> Tested:
    """χ² of numbers that should be uniform on (0, 1), in 4 to 32 equal cells of at least 8 expected."""
    samples = len(values)
    cells = max(2, min(32, samples // 8))
    counts = np.histogram(values, bins=cells, range=(0.0, 1.0))[0]
    expected = samples / cells
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return Tested(name, samples, statistic, chi_square_tail(statistic, cells - 1), detectable(samples, cells, level))


class Drift:
    """Σ [f(y_t) - E f] over draws y_t from known laws, with the exact variance and skewness of the sum."""

    def __init__(self) -> None:
        self.samples = 0
        self._sum = self._variance = self._third = 0.0

    def add(self, probs: Floats, values: Floats, drawn: float) -> None:
        """One draw: the law float64 [k], f float64 [k] over it, and f of the token drawn."""
        self.samples += 1
        usual = float(values[probs.argmax()])
        values = values - usual  # so that what rounding makes of Σp moves the small differences only
        if np.abs(values).max() <= _CONSTANT * abs(usual):
            return  # f says nothing here: a draft that is the target, for one; its spread would be rounding
        mean = float(probs @ values)
        away = values - mean
        self._sum += drawn - usual - mean
        weighted = probs * away * away
        self._variance += float(weighted.sum())
        self._third += float(weighted @ away)

    def test(self, name: str) -> Tested:
        """Two-sided, standard normal after Cornish and Fisher's correction for skewness."""
        if self._variance <= 0.0:
            p_value = 1.0 if abs(self._sum) < 1e-9 else 0.0
            return Tested(name, self.samples, 0.0, p_value)
        deviation = math.sqrt(self._variance)
        z = self._sum / deviation
        corrected = z - self._third / deviation**3 / 6 * (z * z - 1)
        # The correction is an expansion about 0; far out it must not turn a large z into a small one.
        if abs(corrected) < abs(z) / 2:
            corrected = z / 2
        return Tested(name, self.samples, z, math.erfc(abs(corrected) / math.sqrt(2)))


def _bisect(reached: Callable[[float], bool], low: float, high: float, precision: float = 1e-10) -> float:
    """The smallest x in [low, high] at which a monotone condition holds."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
        if high - low < precision * high:
            break
    return high
