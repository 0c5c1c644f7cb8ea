"""The scheduler: as many sequences as there are slots, each refilled as soon as it is free.

    refill    free slots take the next items, whose prompts are read in one pass where they fit one; a prefix that
              another slot holds is copied, not computed
    step      ONE round for all active sequences together
    finish    what ended is handed out; its slot is free

A failing item ends itself only. Nothing here depends on which items are neighbours: an item's answer is a function of
its own request.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence as Many
from dataclasses import dataclass
from typing import Any, Protocol

from spec_local.batch.concurrency import Concurrency, Fixed
from spec_local.batch.failures import Failure, ItemError, failure_message, failure_type
from spec_local.batch.feed import Feed
from spec_local.batch.records import BadLine, Id, Item
from spec_local.errors import Aborted, BackendError, WorkerError
from spec_local.session.generation import Generation, Progress, Request
from spec_local.session.result import Result

_DEAD_AFTER = 3
"""Items failed by the backend in a row after which it is the backend that is given up."""
_IDLE_WAIT_S, _BUSY_WAIT_S = 0.1, 0.002
"""Seconds to wait for an item: with nothing else to do, and while others are being decoded."""


class BatchEngine(Protocol):
    """The part of `Engine` that a batch needs. What fails a generation there becomes its finish, not an exception."""

    def prepare(self, request: Request, slot: int = 0) -> Generation:
        """Check and tokenise."""

    def read_ahead(self, generations: Many[Generation]) -> None:
        """Bring several prompts into the target's cache together, where that is possible; `prefill` does the rest."""

    def prefill(self, generation: Generation, progress: Progress | None = None) -> None:
        """Bring the prompt into the caches."""

    def step(self, generations: Many[Generation]) -> None:
        """One round for all."""

    def result(self, generation: Generation) -> Result:
        """What a finished generation amounts to."""

    def cancel(self) -> None:
        """Stop what is running within one pass."""


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
    """An item in a slot."""

    item: Item
    generation: Generation
    started: float


class Runner:
    """Answers items on the slots of one engine. `drain` and `stop` may be called from any thread.

    Args:
        engine: Where answers come from; used from the thread that iterates `run`.
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
        self.active = 0
        """Sequences being decoded now."""
        self.emitted = 0
        """Tokens of all sequences so far."""
        self.on_step: Callable[[], None] | None = None
        """Called after every round, in the engine's thread."""
        self._request = request
        self._fingerprint = fingerprint
        self._timeout_s = timeout_s
        self._clock = clock
        self._free = list(range(slots))[::-1]
        self._running: dict[int, _Active] = {}
        self._draining = threading.Event()
        self._stopped = threading.Event()
        self._failed_in_a_row = 0
        self._suspects: deque[Item] = deque()

    def drain(self) -> None:
        """Begin no further item; what is in flight is finished."""
        self._draining.set()

    def stop(self) -> None:
        """End now: what is in flight is dropped without a record."""
        self._stopped.set()
        self._draining.set()
        self.engine.cancel()

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
        with Feed(items, 2 * len(self._free) + 2) as feed:
            while not self._stopped.is_set():
                yield from self._refill(feed)
                if self._running:
                    yield from self._step()
                elif not self._suspects and (feed.ended or self.draining):
                    return

    # -- refill ----------------------------------------------------------------------------------------------------

    def _refill(self, feed: Feed[Item | BadLine]) -> Iterator[Outcome]:
        begun: list[_Active] = []
        if self._suspects and not self._running:
            yield from self._prepare(self._suspects.popleft(), begun)
        while self._free and len(self._running) < self.concurrency.limit and not self._suspects and not self.draining:
            entry = feed.take(_BUSY_WAIT_S if self._running else _IDLE_WAIT_S)
            if entry is None:
                break
            if isinstance(entry, BadLine):
                yield Outcome(entry.line, entry.id, None, entry.error, entry.fields)
            else:
                yield from self._prepare(entry, begun)
        while begun:
            if len(begun) > 1:
                self.engine.read_ahead([active.generation for active in begun])
            yield from self._prefill(begun.pop(0))

    def _prepare(self, item: Item, begun: list[_Active]) -> Iterator[Outcome]:
        """Put an item into a free slot and into `begun`; its outcome where that is already its end."""
        started = self._clock()
        slot = self._free[-1]
        try:
            active = _Active(item, self.engine.prepare(self._request(item), slot), started)
        except Exception as error:  # one item's trouble, a defect of ours included, is not the others'
            yield self._failure(item, error)
            return
        if active.generation.finished:
            yield from self._finish(active)
            return
        self._free.pop()
        self._running[slot] = active
        self.active = len(self._running)
        begun.append(active)

    def _prefill(self, active: _Active) -> Iterator[Outcome]:
        """Read an item's prompt; its outcome where that is its end."""
        active.started = self._clock()  # the time of the prompts before it is not its own
        try:
            self.engine.prefill(active.generation, lambda _done, _total: self._check_time(active))
        except Exception as error:  # as above
            self._release(active)
            yield self._failure(active.item, error)
            return
        if active.generation.finished:
            self._release(active)
            yield from self._finish(active)

    def _check_time(self, active: _Active) -> None:
        """Called between the passes of a prefill, which may be long."""
        if self._late(active) or self._stopped.is_set():
            raise Aborted("The prefill was stopped.")

    # -- step ------------------------------------------------------------------------------------------------------

    def _step(self) -> Iterator[Outcome]:
        running = list(self._running.values())
        started = self._clock()
        self.engine.step([active.generation for active in running])
        if len(running) > 1 and all(active.generation.sequence.finish == "error" for active in running):
            # The pass failed for all together. Whose fault it was shows when each is tried again alone.
            for active in running:
                self._release(active)
                self._suspects.append(active.item)
            return
        emitted = sum(len(active.generation.piece().tokens) for active in running)
        self.emitted += emitted
        self.concurrency.observe(len(running), emitted, self._clock() - started)
        for active in running:
            if not active.generation.finished and self._late(active):
                active.generation.sequence.cancel()
            if active.generation.finished:
                self._release(active)
                yield from self._finish(active)
        if self.on_step is not None:
            self.on_step()

    # -- ends ------------------------------------------------------------------------------------------------------

    def _finish(self, active: _Active) -> Iterator[Outcome]:
        """The outcome of a generation that has ended; none where it was dropped by `stop`.

        Raises:
            BackendError: It is the last of several in a row that the backend failed, or a worker took the model.
        """
        item, sequence = active.item, active.generation.sequence
        if sequence.finish == "error":
            error = sequence.error or BackendError("The sequence failed.")
            self._failed_in_a_row += isinstance(error, BackendError)
            if self._failed_in_a_row >= _DEAD_AFTER or isinstance(error, WorkerError):  # no line's fault
                raise error
            yield self._failure(item, error)
            return
        if sequence.finish == "cancelled":
            if self._stopped.is_set():
                return
            done = len(sequence.emitted)
            message = f"The item took longer than {self._timeout_s:g} s; {done} tokens were written."
            yield self._failure(item, ItemError(Failure.TIMEOUT, message))
            return
        self._failed_in_a_row = 0
        yield Outcome(item.line, item.id, self.engine.result(active.generation), None, item.fields, self._mark(item))

    def _failure(self, item: Item, error: Exception) -> Outcome:
        return Outcome(item.line, item.id, None, error, item.fields, self._mark(item))

    def _release(self, active: _Active) -> None:
        slot = active.generation.sequence.slot
        del self._running[slot]
        self._free.append(slot)
        self.active = len(self._running)

    def _mark(self, item: Item) -> str | None:
        return None if self._fingerprint is None else self._fingerprint(item)

    def _late(self, active: _Active) -> bool:
        return self._timeout_s is not None and self._clock() - active.started > self._timeout_s
