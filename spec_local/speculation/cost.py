"""What a pass costs on this machine: seconds as a function of rows, for the target and for the draft.

The curves start from a microbenchmark (or a saved profile) and follow what rounds really took. One sample never moves
an estimate by more than its clamp, so a stall cannot flip a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

CLAMP = 0.25
"""Largest relative innovation one sample may bring."""
SMOOTHING = 0.1
"""Weight of one sample in the running mean of the rows it measured."""
SCALE_SMOOTHING = 0.1
"""Weight of one sample in the running scale of a whole curve (context length, clock, other load)."""
ROWS = 64
"""Curves are tabulated for 1..ROWS rows and extrapolated by their last slope beyond."""


class Curve:
    """Seconds of one pass over n rows: a shape over n, and one scale per power of two of cached tokens.

    Args:
        points: Measured seconds by rows, at least one entry; between points the curve is linear, beyond the last it
            keeps the mean slope (after a single point each further row costs 60 % of it).
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        self.points = {int(n): float(s) for n, s in sorted(points.items())}
        assert self.points and all(n >= 1 and s > 0 for n, s in self.points.items())
        self._table: npt.NDArray[np.float64] = _tabulate(self.points)
        self._scales: dict[int, float] = {}

    def seconds(self, rows: int, context: int = 0) -> float:
        """Seconds of a pass over `rows` rows with `context` tokens cached; 0.0 for no rows."""
        if rows <= 0:
            return 0.0
        scale = self._scale(context)
        if rows <= ROWS:
            return float(self._table[rows]) * scale
        slope = (self._table[ROWS] - self._table[ROWS // 2]) / (ROWS - ROWS // 2)
        return float(self._table[ROWS] + slope * (rows - ROWS)) * scale

    def table(self, context: int = 0) -> list[float]:
        """Seconds for 0..ROWS rows."""
        return [float(s) for s in self._table * self._scale(context)]

    def update(self, rows: int, seconds: float, context: int = 0) -> None:
        """Take in one measured pass."""
        if rows < 1 or seconds <= 0:
            return
        expected = self.seconds(rows, context)
        ratio = min(max(seconds / expected, 1 - CLAMP), 1 + CLAMP)
        bucket = context.bit_length()
        self._scales[bucket] = self._scale(context) * (1 + SCALE_SMOOTHING * (ratio - 1))
        if rows <= ROWS and rows != 1:
            self._table[rows] *= 1 + SMOOTHING * (ratio - 1)

    def _scale(self, context: int) -> float:
        if not self._scales:
            return 1.0
        bucket = context.bit_length()
        if bucket not in self._scales:
            bucket = min(self._scales, key=lambda known: abs(known - bucket))
        return self._scales[bucket]


def _tabulate(points: dict[int, float]) -> npt.NDArray[np.float64]:
    rows = np.fromiter(points, dtype=np.float64)
    seconds = np.fromiter(points.values(), dtype=np.float64)
    slope = (seconds[-1] - seconds[0]) / (rows[-1] - rows[0]) if len(rows) > 1 else 0.6 * seconds[0]
    at = np.arange(ROWS + 1, dtype=np.float64)
    table = np.interp(at, rows, seconds)
    beyond = at > rows[-1]
    table[beyond] = seconds[-1] + slope * (at[beyond] - rows[-1])
    table[0] = 0.0
    return table


@dataclass(slots=True)
class CostProfile:
    """The costs a controller decides with."""

    target: Curve
    draft: Curve | None = None
    """None where there is no draft model."""
    identity: dict[str, str] = field(default_factory=dict)
    """What the profile belongs to (machine, build, files); compared by whoever loads it."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; the measured points only, not what rounds taught since."""
        return {
            "identity": dict(self.identity),
            "target": {str(n): s for n, s in self.target.points.items()},
            "draft": None if self.draft is None else {str(n): s for n, s in self.draft.points.items()},
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> CostProfile:
        """The inverse of `as_dict`.

        Raises:
            ValueError: This is no saved profile.
        """
        try:
            target = Curve({int(n): float(s) for n, s in saved["target"].items()})
            draft = saved.get("draft")
            return cls(
                target,
                None if draft is None else Curve({int(n): float(s) for n, s in draft.items()}),
                {str(k): str(v) for k, v in saved.get("identity", {}).items()},
            )
        except (KeyError, TypeError, AttributeError, AssertionError) as error:
            raise ValueError("not a saved cost profile") from error
