"""When to stop drafting: an optimal stopping problem, solved backwards and kept as a table of thresholds.

State: k tokens drafted, S = probability that all of them are accepted. Drawing another costs `step` seconds and shows
its confidence; submitting it costs `V(k+2) − V(k+1)` seconds more in the target pass and brings S·a tokens. With a
second worth ρ tokens, the value of going on (in tokens, above submitting what is there) is

    G_k(S) = max(0, −ρ·step + E_a[ max(0, S·a − ρ·(V(k+2) − V(k+1)) + G_{k+1}(S·a)) ])

where the expectation is over the acceptance a that confidences were worth lately, and the inner 0 is the token drawn
and dropped again. G grows with S, so the rule is: draw one more iff S exceeds the threshold of k. The look-ahead is
complete, so V may have steps and need not be monotonic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SIZE = 41
_SURVIVALS = np.linspace(1.0, 0.0, _SIZE)
"""Grid of S. G is made of straight lines in S, so what is interpolated between its points is wrong at kinks only."""


@dataclass(frozen=True, slots=True)
class StoppingTable:
    """The solution for one set of costs and one distribution of acceptance."""

    thresholds: tuple[float, ...]
    """Entry k: drawing token k + 1 pays iff S > this; above 1 where it never does."""
    value: float
    """Tokens a draft is worth above plain decoding, its first step paid; ≤ 0: do not draft."""

    def more(self, drafted: int, survival: float) -> bool:
        """Whether to draw another token after `drafted` ones that survive with this probability."""
        return drafted < len(self.thresholds) and survival > self.thresholds[drafted]


def solve(rates: Sequence[float], weights: Sequence[float], step: float, rows: Sequence[float]) -> StoppingTable:
    """Solve the recursion.

    Args:
        rates: Acceptance a of each kind of token [b].
        weights: How often each kind is drawn [b], summing to 1.
        step: Cost of a draft step, in tokens (ρ × seconds).
        rows: Entry k: cost in tokens of submitting k + 1 tokens instead of k; its length is the longest draft.
    """
    gains = (_SURVIVALS[:, None] * np.asarray(rates)).ravel()  # [s·b]: every S·a
    at = (_SIZE - 1) * (1.0 - gains)  # [s·b]: its place in the grid
    before = np.minimum(at.astype(np.intp), _SIZE - 2)
    part = at - before
    lookup = np.zeros((len(gains), _SIZE))  # [s·b, s]: interpolates G at every S·a
    each = np.arange(len(gains))
    lookup[each, before] = 1.0 - part
    lookup[each, before + 1] += part
    expect = np.asarray(weights)
    value = np.zeros(_SIZE)  # G_{k+1} on the grid
    thresholds = [0.0] * len(rows)
    first = 0.0
    for k in range(len(rows) - 1, -1, -1):
        shown = lookup @ value  # [s·b]
        shown += gains
        shown -= rows[k]
        np.maximum(shown, 0.0, out=shown)
        value = shown.reshape(_SIZE, -1) @ expect - step  # [s], falling
        thresholds[k] = _root(value.tolist())
        first = float(value[0])
        np.maximum(value, 0.0, out=value)
    return StoppingTable(tuple(thresholds), first)


def _root(falling: list[float]) -> float:
    """The S at which a function given on the grid becomes positive."""
    if falling[0] <= 0:
        return 2.0
    for i in range(1, _SIZE):
        if falling[i] <= 0:
            part = falling[i - 1] / (falling[i - 1] - falling[i])
            return float(_SURVIVALS[i - 1] + part * (_SURVIVALS[i] - _SURVIVALS[i - 1]))
    return 0.0
