"""How many sequences to decode together: a number, or the one that proves fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Concurrency(Protocol):
    """Tells a loop how many sequences may be active."""

    @property
    def limit(self) -> int:
        """Most active sequences now, ≥ 1."""

    @property
    def speeds(self) -> Mapping[int, float]:
        """Measured tokens per second of all sequences together, by their number; empty where nothing was compared."""

    def observe(self, active: int, emitted: int, seconds: float) -> None:
        """One step: `active` sequences together emitted `emitted` tokens in `seconds`."""


class Fixed:
    """Always the same number."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.speeds: dict[int, float] = {}

    def observe(self, active: int, emitted: int, seconds: float) -> None:
        pass


class Measured:
    """Doubles the number of sequences while the tokens per second of all of them together grow, then stays.

    More rows in a pass cost little while the machine waits for memory, and their full price once it computes; where
    that turns depends on machine, model and on how many rows the drafts fill already. So it is measured on the work
    itself: each level runs for `rounds` rounds and `seconds`, and the next must be `gain` times faster.

    Args:
        most: Slots there are.
        rounds: Rounds measured for each level, at least.
        seconds: Seconds measured for each level, at least.
        gain: How much faster the next level must be to be kept.
    """

    def __init__(self, most: int, rounds: int = 24, seconds: float = 2.0, gain: float = 1.05) -> None:
        self.most = most
        self.settled = most == 1
        """The choice has been made."""
        self.limit = 1
        self.speeds: dict[int, float] = {}
        self._before: int | None = None
        self._rounds, self._seconds, self._gain = rounds, seconds, gain
        self._start()

    def _start(self) -> None:
        self._seen, self._tokens, self._spent = -2, 0, 0.0  # the first two rounds of a level are still warming up

    def observe(self, active: int, emitted: int, seconds: float) -> None:
        if self.settled or active != self.limit:
            return
        self._seen += 1
        if self._seen <= 0:
            return
        self._tokens += emitted
        self._spent += seconds
        if self._seen < self._rounds or self._spent < self._seconds:
            return
        self.speeds[self.limit] = self._tokens / self._spent
        before = self._before
        if before is not None and self.speeds[self.limit] < self._gain * self.speeds[before]:
            self.limit, self.settled = before, True
        elif self.limit == self.most:
            self.settled = True
        else:
            self._before, self.limit = self.limit, min(2 * self.limit, self.most)
        self._start()
