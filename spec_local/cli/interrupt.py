"""Ctrl-C while llama.cpp computes: the work runs in a thread, so the signal is seen at once."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")


_SAME_S = 0.3
"""Signals that come so close together are one request: `timeout`, for one, tells the process and then its group."""


class Interrupt:
    """Catches SIGINT and SIGTERM while it is entered. The first asks politely, a later one ends the program.

    Args:
        on_first: Called in the main thread at the first signal.
    """

    def __init__(self, on_first: Callable[[], None] | None = None) -> None:
        self.seen = False
        self.on_first = on_first
        self._first_at = 0.0
        self._old: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.seen:
            if time.monotonic() - self._first_at > _SAME_S:
                raise KeyboardInterrupt
            return
        self.seen, self._first_at = True, time.monotonic()
        if self.on_first is not None:
            self.on_first()


class InThread(Generic[T]):
    """Iterates an iterable in a daemon thread and yields its items here; errors are raised here."""

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        self._queue: queue.SimpleQueue[tuple[str, T | BaseException | None]] = queue.SimpleQueue()
        self._make = make
        self._thread = threading.Thread(target=self._run, name="spec-local engine", daemon=True)

    def __iter__(self) -> Iterator[T]:
        self._thread.start()
        while True:
            kind, value = self._queue.get()
            if kind == "item":
                yield value  # type: ignore[misc]
            elif kind == "error":
                assert isinstance(value, BaseException)
                raise value
            else:
                self._thread.join()
                return

    def _run(self) -> None:
        try:
            for item in self._make():
                self._queue.put(("item", item))
        except BaseException as error:
            self._queue.put(("error", error))
        else:
            self._queue.put(("end", None))
