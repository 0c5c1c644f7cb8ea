"""Reading ahead in a thread: a slow pipe must not hold up the sequences that are being decoded."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
_POLL_S = 0.1


class Feed(Generic[T]):
    """Iterates `items` in a daemon thread, at most `room` of them ahead of what was taken.

    Args:
        items: The source; iterated in the thread only.
        room: Items held.
    """

    def __init__(self, items: Iterator[T], room: int) -> None:
        self._items = items
        self._queue: queue.Queue[tuple[Literal["item"], T] | tuple[Literal["end"], BaseException | None]] = queue.Queue(
            max(1, room)
        )
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="spec-local batch input", daemon=True)
        self.ended = False
        """Everything was taken."""

    def take(self, wait_s: float) -> T | None:
        """The next item; None where none came within `wait_s` seconds, or none will come any more (`ended`).

        Raises:
            Exception: What the source raised.
        """
        if self.ended:
            return None
        try:
            kind, value = self._queue.get(timeout=wait_s)
        except queue.Empty:
            return None
        if kind == "item":
            return value  # type: ignore[return-value]
        self.ended = True
        if value is not None:
            raise value  # type: ignore[misc]
        return None

    def __enter__(self) -> Feed[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop reading. A thread that is blocked in a read ends with the process."""
        self._closed.set()

    def _read(self) -> None:
        try:
            for item in self._items:
                self._put(("item", item))
                if self._closed.is_set():
                    return
        except BaseException as error:
            self._put(("end", error))
        else:
            self._put(("end", None))

    def _put(self, entry: tuple[Literal["item"], T] | tuple[Literal["end"], BaseException | None]) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(entry, timeout=_POLL_S)
                return
            except queue.Full:
                continue
