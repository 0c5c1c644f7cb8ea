"""What a pass costs on this machine: seconds as a function of rows, for the target and for the draft.

The curves start from a microbenchmark (or a saved profile) and follow what rounds really took. One sample never moves
an estimate by more than its clamp, so a stall cannot flip a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spec_local.language_model import Memory, MemoryKind

CLAMP = 0.25
"""Largest relative innovation one sample may bring."""
SCALE_WEIGHT, RUN_MOST = 0.1, 8
"""Weight of one sample in the running scale of a whole curve (context length, clock, other load). In a run of samples
that reach the clamp on the same side it grows with each one, up to so many times: a stall is over after one or two, a
machine that has become busy stays so."""
SHAPE_WEIGHT = 0.03
"""Weight of one sample in the shape at the rows it measured: slower, since what slows one width mostly slows all."""
ROWS = 64
"""Curves are tabulated for 1..ROWS rows, and go on with their last slope beyond."""
_READ_AGAIN = 2
"""Accepted tokens that a target with saved states reads again after a rejection, about."""
STALE_SCALE, STALE_SHAPE = 1.6, 1.35
"""Factors by which rounds may disagree with the measurement before it should be made again."""
IMPOSSIBLE = 2.0
"""No pass takes so many times what a pass over more rows takes, tiles or not."""
FASTER_SAMPLES, FASTER_SHARE = 8, 0.75
"""So many passes, and this share of all, that were faster than the measurement by more than the scale's factor: it was
made on a busy machine. The scale itself moves too slowly for an answer or two to show that."""
TILES, TILE_GAIN, TILE_LOSS = (8, 4, 2), 0.95, 1.03
"""Sizes of a kernel's tile of rows that are looked for: filling all passes up to whole tiles must save this much on
average and may cost this much for one width."""


class Curve:
    """Seconds of one pass over n rows: a shape over n, and one scale per power of two of cached tokens.

    Kernels work in tiles of rows, and a last tile that is not full may cost more than a full one: then a pass is
    cheaper with rows of no use added to it. `width` says with how many rows, `seconds` what the pass takes then.

    Args:
        points: Measured seconds by rows, at least one entry; between points the curve is linear, beyond the last it
            keeps the mean slope (after a single point each further row costs 60 % of it).
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        self.points = {int(n): float(s) for n, s in sorted(points.items())}
        if not self.points or not all(n >= 1 and s > 0 for n, s in self.points.items()):
            raise ValueError(f"no curve: {self.points}")
        self._tile = _tile(self.points)
        whole = {n: s for n, s in self.points.items() if self.width(n) == n}
        table = _tabulate(whole)
        self._table = [table[min(self.width(n), ROWS)] for n in range(ROWS + 1)]  # seconds at scale 1
        self._scales: dict[int, float] = {}
        self._scaled: dict[int, list[float]] = {}  # tables asked for since the last update
        self._samples = self._faster = 0  # passes seen, and those that were far faster than measured
        self._run = 0  # latest samples in a row that reached the clamp: above it > 0, below it < 0

    def width(self, rows: int) -> int:
        """Rows with which a pass over `rows` rows takes least."""
        return rows if rows <= 2 else _up(rows, self._tile)

    def seconds(self, rows: int, context: int = 0) -> float:
        """Seconds of a pass over `rows` rows with `context` tokens cached; 0.0 for no rows."""
        if rows <= 0:
            return 0.0
        if rows <= ROWS:
            return self.table(context)[rows]
        scale = self._scale(context)
        slope = (self._table[ROWS] - self._table[ROWS // 2]) / (ROWS - ROWS // 2)
        return (self._table[ROWS] + slope * (rows - ROWS)) * scale

    def per_row(self, context: int = 0) -> float:
        """Seconds that one more row takes in a pass over many."""
        return (self.seconds(16, context) - self.seconds(1, context)) / 15

    def table(self, context: int = 0) -> list[float]:
        """Seconds for 0..ROWS rows; to be read only."""
        bucket = context.bit_length()
        table = self._scaled.get(bucket)
        if table is None:
            scale = self._scale(context)
            table = self._scaled[bucket] = [seconds * scale for seconds in self._table]
        return table

    def update(self, rows: int, seconds: float, context: int = 0) -> None:
        """Take in one measured pass."""
        if rows < 1 or seconds <= 0:
            return
        innovation = self.scale_by(seconds / self.seconds(rows, context), context)
        if 1 < rows <= ROWS:
            for n in range(2, ROWS + 1):
                if self.width(n) == self.width(rows):
                    self._table[n] *= 1 + SHAPE_WEIGHT * innovation
            self._scaled.clear()

    def scale_by(self, ratio: float, context: int = 0) -> float:
        """Take in that passes took `ratio` times what the curve says; returns the clamped innovation."""
        self._samples += 1
        self._faster += ratio * self._scale(context) < 1 / STALE_SCALE
        innovation = min(max(ratio - 1, -CLAMP), CLAMP)
        side = (innovation == CLAMP) - (innovation == -CLAMP)
        self._run = self._run + side if side * self._run > 0 else side
        weight = SCALE_WEIGHT * min(max(abs(self._run), 1), RUN_MOST)
        self._scales[context.bit_length()] = self._scale(context) * (1 + weight * innovation)
        self._scaled.clear()
        return innovation

    @property
    def stale(self) -> bool:
        """Whether rounds have come to disagree with the measured points so much that they no longer describe this
        machine: another clock or load at short contexts, or another shape. Or the points cannot be true in themselves:
        the machine was busy while they were measured."""
        if self._faster >= max(FASTER_SAMPLES, FASTER_SHARE * self._samples):
            return True
        seconds = list(self.points.values())
        if any(min(seconds[i:]) * IMPOSSIBLE < s for i, s in enumerate(seconds)):
            return True  # more rows cannot take so much less: the machine was busy in the middle of measuring
        scale = self._scales[min(self._scales)] if self._scales else 1.0
        shape = [self._table[n] / s for n, s in self.points.items() if n <= ROWS and self.width(n) == n]
        return not (1 / STALE_SCALE < scale < STALE_SCALE and max(shape) < STALE_SHAPE and min(shape) > 1 / STALE_SHAPE)

    def _scale(self, context: int) -> float:
        if not self._scales:
            return 1.0
        bucket = context.bit_length()
        if bucket not in self._scales:
            bucket = min(self._scales, key=lambda known: abs(known - bucket))
        return self._scales[bucket]


def _up(rows: int, tile: int) -> int:
    return -(-rows // tile) * tile


def _tile(points: Mapping[int, float]) -> int:
    """The largest size of whole tiles that passes should be filled up to, by the points that show it; 1 for none."""
    for tile in TILES:
        pairs = [(s, points[_up(n, tile)]) for n, s in points.items() if n > 2 and n % tile and _up(n, tile) in points]
        saves = sum(full for _, full in pairs) < TILE_GAIN * sum(part for part, _ in pairs)
        if len(pairs) > 1 and saves and all(full < TILE_LOSS * part for part, full in pairs):
            return tile
    return 1


def _tabulate(points: dict[int, float]) -> list[float]:
    rows = np.fromiter(points, dtype=np.float64)
    seconds = np.fromiter(points.values(), dtype=np.float64)
    slope = (seconds[-1] - seconds[0]) / (rows[-1] - rows[0]) if len(rows) > 1 else 0.6 * seconds[0]
    at = np.arange(ROWS + 1, dtype=np.float64)
    table = np.interp(at, rows, seconds)
    beyond = at > rows[-1]
    table[beyond] = seconds[-1] + slope * (at[beyond] - rows[-1])
    table[0] = 0.0
    return [float(seconds) for seconds in table]


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The least acceptance with which drafting is no loss."""

    acceptance: float
    """Chance of each drafted token, all before it accepted, at the best fixed length; 0 ≤ it < 1, 0: free."""
    length: int
    """That length."""


def _acceptance(length: int, cost: float) -> float | None:
    """The α in [0, 1] with Σ_{i≤length} αⁱ = cost; None where there is none."""
    if cost <= 0:
        return 0.0
    if cost >= length:
        return None
    low, high = 0.0, 1.0
    for _ in range(24):
        middle = (low + high) / 2
        tokens = 0.0
        for _ in range(length):
            tokens = middle * (1 + tokens)
        low, high = (middle, high) if tokens < cost else (low, middle)
    return high


@dataclass(slots=True)
class CostProfile:
    """The costs a controller decides with."""

    target: Curve
    draft: Curve | None = None
    """None where there is no draft model."""
    identity: dict[str, str] = field(default_factory=dict)
    """What the profile belongs to (machine, build, files); compared by whoever loads it."""
    rollback_s: float = 0.0
    """Seconds that a round with a draft takes besides its rows, where the target's memory cannot simply be cut: saving
    its state, going back to it, reading accepted tokens again. Found at every load, never saved."""

    @property
    def stale(self) -> bool:
        """Whether it should be measured again; see `Curve.stale`."""
        return self.target.stale or (self.draft is not None and self.draft.stale)

    def with_memory(self, memory: Memory) -> CostProfile:
        """This profile, with what a rejected draft costs where the target remembers its tokens like that."""
        if memory.kind is MemoryKind.CHECKPOINTS:  # what was accepted is read again in the next pass
            again = self.target.seconds(1 + _READ_AGAIN) - self.target.seconds(1)
            self.rollback_s = memory.seconds + max(0.0, again)
        return self

    def break_even(
        self, rows: int = 1, sequences: int = 1, context: int = 0, longest: int = 16, free: bool = False
    ) -> BreakEven | None:
        """Least constant acceptance at which drafting any number of tokens pays; None where none does.

        A draft of γ pays where Σ_{i≤γ} αⁱ > γ·c + v(γ+1) − 1, in units of a plain pass.

        Args:
            rows: Rows of the plain pass, of all sequences.
            sequences: Sequences that draft together.
            context: Tokens cached.
            longest: Most tokens in a draft.
            free: Drafts cost no steps (they come from the text), instead of those of the draft model.
        """
        if self.draft is None and not free:
            return None
        plain_s = self.target.seconds(rows, context)
        step_s = 0.0 if free or self.draft is None else self.draft.seconds(sequences, context) / sequences
        best: BreakEven | None = None
        for length in range(1, longest + 1):
            pass_s = self.target.seconds(rows + length, context) + self.rollback_s
            alpha = _acceptance(length, (length * step_s + pass_s) / plain_s - 1)
            if alpha is not None and (best is None or alpha < best.acceptance - 1e-9):
                best = BreakEven(alpha, length)
        return best

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
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a saved cost profile") from error
