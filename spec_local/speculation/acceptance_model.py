"""How likely the next drafted token is to be accepted, learned from what was: one model per draft source."""

from __future__ import annotations

from collections.abc import Sequence

FORGETTING = 0.998
"""Factor on a bin's counts per new sample in it: about the last 500 samples count."""
PRIOR_WEIGHT = 4.0
"""Samples the prior of a bin is worth."""


class AcceptanceModel:
    """Beta counts over bins of the drafter's confidence.

    Args:
        edges: Ascending inner edges of the bins (len(edges) + 1 bins).
        prior: Expected acceptance of each bin before any sample.
    """

    def __init__(self, edges: Sequence[float], prior: Sequence[float]) -> None:
        assert len(prior) == len(edges) + 1 and list(edges) == sorted(edges)
        self.edges = tuple(edges)
        self._kept = [PRIOR_WEIGHT * p for p in prior]
        self._seen = [PRIOR_WEIGHT] * len(prior)
        self.samples = 0

    def probability(self, confidence: float) -> float:
        """Estimated acceptance of a token drafted with this confidence, in (0, 1)."""
        b = self._bin(confidence)
        return self._kept[b] / self._seen[b]

    def observe(self, confidences: Sequence[float], accepted: int, tested: int) -> None:
        """Learn from a verified draft: its accepted tokens and the first rejected one, none behind it."""
        for i in range(min(accepted + 1, tested)):
            b = self._bin(confidences[i])
            self._kept[b] = self._kept[b] * FORGETTING + (i < accepted)
            self._seen[b] = self._seen[b] * FORGETTING + 1.0
            self.samples += 1

    def _bin(self, confidence: float) -> int:
        b = 0
        for edge in self.edges:
            if confidence < edge:
                break
            b += 1
        return b


def for_model() -> AcceptanceModel:
    """Prior for max q of a draft model: well calibrated in the middle, over-confident at the top."""
    edges = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
    prior = (0.2, 0.28, 0.35, 0.44, 0.52, 0.6, 0.68, 0.78, 0.86, 0.92, 0.95, 0.97)
    return AcceptanceModel(edges, prior)


def for_text() -> AcceptanceModel:
    """Prior for match lengths: two tokens say little, sixteen say nearly everything."""
    edges = (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48)
    prior = (0.3, 0.4, 0.5, 0.55, 0.62, 0.68, 0.74, 0.8, 0.86, 0.9, 0.92, 0.94)
    return AcceptanceModel(edges, prior)
