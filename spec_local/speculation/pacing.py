"""How much of a prompt may be read in a pass in which others are being written.

A prompt is read fastest in wide chunks, and each chunk holds up whoever is being decoded in the same pass. This finds
out from the passes themselves what one more row takes, and keeps the wait of a live sequence to a few of its rounds.
"""

from __future__ import annotations

PATIENCE = 2.0
"""A round with a chunk in it may take so many times a usual one. Three is where a person sees a stutter; the estimate
is off by up to half on a busy machine."""
_FIRST = 8
"""Tokens of the first chunk, before anything is known: what small kernels do for little more than one row."""
_WEIGHT = 0.25
"""Weight of one pass in the running means."""


class Pacing:
    """Running estimates of a usual round and of a row that is read with it, both in seconds."""

    def __init__(self) -> None:
        self._round_s: float | None = None
        self._row_s: float | None = None

    def room(self) -> int:
        """Tokens of prompts, at least 1, that the next pass may read besides live sequences."""
        if self._round_s is None or self._row_s is None:
            return _FIRST
        return max(1, int((PATIENCE - 1) * self._round_s / self._row_s))

    def observe(self, rows: int, read: int, seconds: float) -> float:
        """Take in one step.

        Args:
            rows: Rows of sequences being decoded.
            read: Tokens of prompts that were read, by any model.
            seconds: What the step took.

        Returns:
            Seconds of it that went into reading.
        """
        if not read:
            self._round_s = _blend(self._round_s, seconds)
            return 0.0
        if not rows:
            if self._row_s is None:  # a pass of its own: a row of it takes less than one beside others
                self._row_s = seconds / read
            return seconds
        share = seconds * read / (rows + read)
        reading_s = share if self._round_s is None else max(0.0, seconds - self._round_s)
        self._row_s = _blend(self._row_s, max(reading_s, share / 4) / read)
        return reading_s


def _blend(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _WEIGHT * (value - mean)
