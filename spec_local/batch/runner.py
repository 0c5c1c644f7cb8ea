"""A batch is a window of tickets: as many requests are handed to the loop as it answers at once, and a few more stand
by, tokenised, so that one takes the place of another before the next pass.

A failing item ends itself only. Nothing here depends on which items are neighbours: an item's answer is a function of
its own request.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from spec_local.batch.failures import Failure, ItemError, failure_message, failure_type
from spec_local.batch.feed import Feed
from spec_local.batch.records import BadLine, Id, Item
from spec_local.errors import BackendError, WorkerError
from spec_local.session.concurrency import Concurrency, Fixed
from spec_local.session.generation import Event, Finished, Generation, Request
from spec_local.session.loop import Loop, Ticket
from spec_local.session.result import Piece, Result

_DEAD_AFTER = 3
"""Items failed by the backend in a row after which it is the backend that is given up."""
_IDLE_WAIT_S, _BUSY_WAIT_S = 0.1, 0.002
"""Seconds to wait for an item: with nothing else to do, and while others are being decoded."""
_STANDING_BY = 2
"""Requests prepared besides those that are being answered: two items may end in one pass."""


class BatchEngine(Protocol):
    """The part of `Engine` that a batch needs."""

    loop: Loop

    def prepare(self, request: Request) -> Generation:
        """Check and tokenise."""

    def result(self, generation: Generation) -> Result:
        """What a finished generation amounts to."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One input line, done: answered or failed."""

    line: int
    id: Id
    result: Result | None
    error: Exception | None = None
    fields: Mapping[str, Any] | None = None
    """The line as it was read."""
    fingerprint: str | None = None

    def record(self, echo: bool = False) -> dict[str, Any]:
        """The output record, plain JSON types.

        Args:
            echo: Include the line's own fields under "input".
        """
        record: dict[str, Any] = {"id": self.id, "line": self.line}
        if self.fields is not None and "custom_id" in self.fields:
            record["custom_id"] = self.fields["custom_id"]
        if self.result is not None:
            record |= self.result.as_dict()
        else:
            assert self.error is not None
            record["error"] = {"type": failure_type(self.error), "message": failure_message(self.error)}
        if self.fingerprint is not None:
            record["fingerprint"] = self.fingerprint
        if echo:
            record["input"] = None if self.fields is None else dict(self.fields)
        return record


@dataclass(slots=True, eq=False)
class _Active:
    """An item that was prepared."""

    item: Item
    generation: Generation
    ticket: Ticket | None = None
    late: bool = False
    """It was cancelled because it took too long."""


class Runner:
    """Answers items over one engine. `drain` and `stop` may be called from any thread.

    Args:
        engine: Where answers come from.
        slots: Cache slots of the engine.
        request: What to ask the engine for an item; raises `ItemError` where the item cannot be asked.
        fingerprint: Kept in the item's record; see `Recipe.fingerprint`.
        concurrency: How many slots to use; None: all.
        timeout_s: Seconds one item may take, prefill included; None: any.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        engine: BatchEngine,
        slots: int,
        request: Callable[[Item], Request],
        *,
        fingerprint: Callable[[Item], str] | None = None,
        concurrency: Concurrency | None = None,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = engine
        self.concurrency = concurrency or Fixed(slots)
        self.emitted = 0
        """Tokens of all sequences so far."""
        self.on_step: Callable[[], None] | None = None
        """Called after events, in the thread that iterates `run`."""
        self._request = request
        self._fingerprint = fingerprint
        self._timeout_s = timeout_s
        self._clock = clock
        self._slots = slots
        self._active: list[_Active] = []
        """Handed in and not ended."""
        self._standby: deque[_Active] = deque()
        self._guard = threading.Lock()
        """Held while these two change: an item that ends is replaced in the loop's thread."""
        self._events: queue.SimpleQueue[tuple[_Active, Event] | None] = queue.SimpleQueue()
        self._draining = threading.Event()
        self._stopped = threading.Event()
        self._failed_in_a_row = 0

    @property
    def active(self) -> int:
        """Items being answered now."""
        return len(self._active)

    def drain(self) -> None:
        """Begin no further item; what is in flight is finished."""
        self._draining.set()

    def stop(self) -> None:
        """End now: what is in flight is dropped without a record."""
        self._stopped.set()
        self._draining.set()
        self._cancel()
        self._events.put(None)

    @property
    def draining(self) -> bool:
        """Whether no further item is begun."""
        return self._draining.is_set()

    def run(self, items: Iterator[Item | BadLine]) -> Iterator[Outcome]:
        """Answer everything; outcomes come as they end, in no order.

        Raises:
            BackendError: The backend fails whatever it is given. What is in flight then has no outcome.
            UsageError: The source cannot be read.
        """
        self.engine.loop.concurrency = self.concurrency
        with Feed(items, 2 * self._slots + 2) as feed:
            try:
                while not self._stopped.is_set():
                    yield from self._refill(feed)
                    if self._active:
                        self.engine.loop.start()
                    elif self._events.empty() and (feed.ended or self.draining):
                        return
                    yield from self._listen()
            finally:
                self._cancel()

    # -- refill ----------------------------------------------------------------------------------------------------

    def _refill(self, feed: Feed[Item | BadLine]) -> Iterator[Outcome]:
        while not self.draining:
            with self._guard:
                while self._standby and len(self._active) < self.concurrency.limit:
                    self._hand_in(self._standby.popleft())
                if len(self._standby) >= _STANDING_BY:
                    return
            entry = feed.take(_BUSY_WAIT_S if self._active else _IDLE_WAIT_S)
            if entry is None:
                return
            if isinstance(entry, BadLine):
                yield Outcome(entry.line, entry.id, None, entry.error, entry.fields)
                continue
            try:
                self._standby.append(_Active(entry, self.engine.prepare(self._request(entry))))
            except Exception as error:  # one item's trouble, a defect of ours included, is not the others'
                yield self._failure(entry, error)

    def _hand_in(self, active: _Active) -> None:
        self._active.append(active)
        active.ticket = self.engine.loop.submit(active.generation, partial(self._hear, active))

    # -- events ----------------------------------------------------------------------------------------------------

    def _hear(self, active: _Active, event: Event) -> None:
        """The sink of an item, in the loop's thread."""
        if isinstance(event, Finished):
            with self._guard:
                self._active.remove(active)
                if self._standby and not self.draining and len(self._active) < self.concurrency.limit:
                    self._hand_in(self._standby.popleft())
        self._events.put((active, event))

    def _listen(self) -> Iterator[Outcome]:
        """Take what has happened, waiting a moment for something to happen."""
        wait_s = _IDLE_WAIT_S
        while True:
            try:
                heard = self._events.get(timeout=wait_s)
            except queue.Empty:
                break
            wait_s = 0.0
            if heard is None:
                break
            active, event = heard
            if isinstance(event, Piece):
                self.emitted += len(event.tokens)
            elif isinstance(event, Finished):
                yield from self._finish(active)
        with self._guard:
            late = [active for active in self._active if not active.late and self._late(active.ticket)]
        for active in late:
            active.late = True
            assert active.ticket is not None
            active.ticket.cancel()
        if self.on_step is not None:
            self.on_step()

    def _finish(self, active: _Active) -> Iterator[Outcome]:
        """The outcome of an item that has ended; none if it was dropped by `stop`.

        Raises:
            BackendError: It is the last of several in a row that the backend failed, or a worker took the model.
        """
        item, generation = active.item, active.generation
        sequence = generation.sequence
        if sequence.finish == "error":
            error = sequence.error or BackendError("The sequence failed.")
            self._failed_in_a_row += isinstance(error, BackendError)
            if self._failed_in_a_row >= _DEAD_AFTER or isinstance(error, WorkerError):  # no line's fault
                raise error
            yield self._failure(item, error)
            return
        if sequence.finish == "cancelled":
            if active.late:
                done = len(sequence.emitted)
                message = f"The item took longer than {self._timeout_s:g} s; {done} tokens were written."
                yield self._failure(item, ItemError(Failure.TIMEOUT, message))
            return
        self._failed_in_a_row = 0
        yield Outcome(item.line, item.id, self.engine.result(generation), None, item.fields, self._mark(item))

    def _failure(self, item: Item, error: Exception) -> Outcome:
        return Outcome(item.line, item.id, None, error, item.fields, self._mark(item))

    def _cancel(self) -> None:
        with self._guard:
            running = [active.ticket for active in self._active if active.ticket is not None]
        for ticket in running:
            ticket.cancel()

    def _mark(self, item: Item) -> str | None:
        return None if self._fingerprint is None else self._fingerprint(item)

    def _late(self, ticket: Ticket | None) -> bool:
        started = None if ticket is None else ticket.started_s
        return self._timeout_s is not None and started is not None and self._clock() - started > self._timeout_s
