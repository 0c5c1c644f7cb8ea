"""How likely the next drafted token is to be accepted, learned from what was: one model per draft source.

Two effects are kept apart. What a confidence means is learned slowly and for all texts, in bins of counts with a
prior. How well the source does on *this* text is one number per sequence, its level: a shift of the log-odds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FORGETTING = 0.998
"""Factor on a bin's counts per new sample in it: about its last 500 samples count."""
PRIOR_WEIGHT = 6.0
"""Samples the prior of a bin is worth."""
LEVEL_STEP = 0.2
"""How far one surprise moves a level, in log-odds."""
LEVEL_MEMORY = 0.98
"""Factor on a level per sample: without news a text is like the others."""
LEAST, MOST = 0.02, 0.995
"""Bounds of a single estimate."""


class AcceptanceModel:
    """Acceptance by the drafter's confidence.

    Args:
        edges: Ascending inner edges of the bins (len(edges) + 1 bins).
        prior: Expected acceptance of each bin before any sample.
    """

    def __init__(self, edges: Sequence[float], prior: Sequence[float]) -> None:
        assert len(prior) == len(edges) + 1
        self.edges = tuple(edges)
        self._kept = [PRIOR_WEIGHT * p for p in prior]
        self._seen = [PRIOR_WEIGHT] * len(prior)
        self._drawn = [1.0] * len(prior)

    def probability(self, confidence: float, level: float = 0.0) -> float:
        """Estimated acceptance of a token drafted with this confidence."""
        b = self._bin(confidence)
        return shifted(self._kept[b] / self._seen[b], level)

    def rates(self, level: float = 0.0) -> list[float]:
        """Estimated acceptance of every bin."""
        return [shifted(kept / seen, level) for kept, seen in zip(self._kept, self._seen, strict=True)]

    def weights(self) -> list[float]:
        """How often each bin was drawn lately, summing to 1."""
        total = sum(self._drawn)
        return [drawn / total for drawn in self._drawn]

    def observe(self, confidences: Sequence[float], accepted: int, tested: int, level: float = 0.0) -> float:
        """Learn from a verified draft: its accepted tokens and the first rejected one, none behind it.

        Returns:
            The new level of the sequence.
        """
        for i in range(min(accepted + 1, tested)):
            b = self._bin(confidences[i])
            kept = i < accepted
            level = LEVEL_MEMORY * level + LEVEL_STEP * (kept - shifted(self._kept[b] / self._seen[b], level))
            self._kept[b] = self._kept[b] * FORGETTING + kept
            self._seen[b] = self._seen[b] * FORGETTING + 1.0
        return level

    def saw(self, confidences: Sequence[float]) -> None:
        """Learn which confidences are drawn, whatever became of them."""
        for confidence in confidences:
            self._drawn = [0.99 * drawn for drawn in self._drawn]
            self._drawn[self._bin(confidence)] += 1.0

    def _bin(self, confidence: float) -> int:
        b = 0
        for edge in self.edges:
            if confidence < edge:
                break
            b += 1
        return b


def shifted(rate: float, level: float) -> float:
    """A probability whose log-odds are moved by `level`, within the bounds of an estimate."""
    if level:
        odds = rate * math.exp(level)
        rate = odds / (odds + 1.0 - rate)
    return min(max(rate, LEAST), MOST)


def for_model() -> AcceptanceModel:
    """Prior for the draft model's probability of its token."""
    edges = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
    prior = (0.2, 0.28, 0.35, 0.44, 0.52, 0.6, 0.68, 0.78, 0.86, 0.92, 0.95, 0.97)
    return AcceptanceModel(edges, prior)


def for_text() -> AcceptanceModel:
    """Prior for match lengths: two tokens say little, sixteen say nearly everything."""
    edges = (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48)
    prior = (0.3, 0.4, 0.5, 0.55, 0.62, 0.68, 0.74, 0.8, 0.86, 0.9, 0.92, 0.94)
    return AcceptanceModel(edges, prior)
