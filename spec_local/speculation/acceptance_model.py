"""How likely drafted tokens are to be accepted, learned from what was.

What a drafter's confidence *means* for acceptance is nearly the same in all texts (measured: neither the text's
average, nor entropies, nor what another drafter says adds anything to the draft model's own probability): bins of
counts with a prior, shared by all sequences. What differs from text to text is kept per sequence by the controller: how
confident a draft model tends to be, and by how much a text drafter is better or worse than usual.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

FORGETTING = 0.998
"""Factor on a bin's counts per new sample in it: about its last 500 samples count."""
NUDGE = 0.02
"""Step per surprise, in log-odds, of a bin that is not to be moved by one text alone."""
LEAST, MOST = 0.02, 0.999
"""Bounds of a single estimate."""

MODEL_EDGES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
MODEL_PRIOR = (0.19, 0.29, 0.4, 0.49, 0.59, 0.66, 0.8, 0.92, 0.96, 0.975, 0.993, 0.999)
"""Acceptance by the draft model's probability of its token: as measured on recorded answers."""
MODEL_DRAWN = (0.03, 0.03, 0.04, 0.04, 0.045, 0.045, 0.05, 0.065, 0.06, 0.065, 0.1, 0.43)
"""How often each bin is drawn, before anything is known of a text."""
TEXT_EDGES = (0.12, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.96)
TEXT_PRIOR = (0.08, 0.19, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.89, 0.94, 0.975)
"""Acceptance by the text drafter's own estimate: what it says."""


class Bins:
    """Acceptance by a number that comes with the token.

    Args:
        edges: Ascending inner edges of the bins (len(edges) + 1 bins).
        prior: Expected acceptance of each bin before any sample.
        weight: Samples the prior is worth.
    """

    def __init__(self, edges: Sequence[float], prior: Sequence[float], weight: float) -> None:
        assert len(prior) == len(edges) + 1
        self.edges = tuple(edges)
        self._kept = [weight * p for p in prior]
        self._seen = [weight] * len(prior)
        self.rates = [min(max(p, LEAST), MOST) for p in prior]
        """Estimated acceptance of every bin; to be read only."""

    def find(self, number: float) -> int:
        """Index of the bin that holds `number`."""
        return bisect_right(self.edges, number)

    def learn(self, b: int, kept: bool) -> None:
        """One token of bin `b` was tested."""
        self._kept[b] = self._kept[b] * FORGETTING + kept
        self._seen[b] = self._seen[b] * FORGETTING + 1.0
        self.rates[b] = min(max(self._kept[b] / self._seen[b], LEAST), MOST)

    def nudge(self, b: int, surprise: float) -> None:
        """Move bin `b` a little towards what happened: `surprise` is 1 or 0 less what was expected of this token."""
        self.rates[b] = shifted(self.rates[b], NUDGE * surprise)
        self._kept[b] = self._seen[b] * self.rates[b]


def shifted(rate: float, level: float) -> float:
    """A probability whose log-odds are moved by `level`."""
    odds = rate * math.exp(level)
    return min(max(odds / (odds + 1.0 - rate), LEAST), MOST)
