"""`Loop`: the one owner of llama.cpp's thread, the cache slots and the clock. Everybody else hands in requests.

    submit(generation, sink)   from any thread; events come to the sink as they happen
    ticket.cancel()            from any thread; this request ends within a pass, no other one is touched
    call(function)             something that needs the models or caches, done between two passes
    step()                     one pass, for whoever drives the loop itself
    start()                    a thread that steps as long as there is work

A step takes in new tickets, drops the cancelled ones, and makes one pass for all that are left: whoever is decoded
plays a round, whoever has a prompt to read reads a part of it (`Speculator.step`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence as Many
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from spec_local.errors import Aborted, BackendError, UsageError, WorkerError
from spec_local.session.concurrency import Concurrency, Fixed
from spec_local.session.generation import Event, Finished, Generation, Progress
from spec_local.speculation.sequence import Sequence

T = TypeVar("T")
Sink = Callable[[Event], None]
"""Takes the events of one request in the loop's thread. It must not block: put them into a queue."""
_M_ARENA_MAX = -8


class Passes(Protocol):
    """`Speculator`, as a loop uses it."""

    def step(self, sequences: Many[Sequence]) -> object:
        """One pass for all."""

    def shared(self, slot: int, tokens: Many[int]) -> int:
        """Tokens at the start of `tokens` that `slot` holds."""

    def held(self, slot: int) -> int:
        """Tokens that `slot` holds."""


@dataclass(eq=False)
class Ticket:
    """A request that was handed in."""

    generation: Generation
    _sink: Sink
    _loop: Loop
    cancelled: bool = False
    started_s: float | None = None
    """The loop's clock when it was given a slot."""
    _told: int = field(default=0, init=False)

    def cancel(self) -> None:
        """End this request within one pass: it finishes as "cancelled". From any thread; harmless when done twice."""
        self._loop.cancel([self])


class Loop:
    """See the module.

    Args:
        passes: Plays the passes.
        slots: Cache slots there are.
        abort: `abort(True)` stops the pass that is running, `abort(False)` allows passes again; from any thread.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        passes: Passes,
        slots: int,
        abort: Callable[[bool], None] = lambda _stop: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.concurrency: Concurrency = Fixed(slots)
        """How many sequences are decoded together; a batch finds out how many are fastest."""
        self._passes = passes
        self._abort = abort
        self._clock = clock
        self._waiting: deque[Ticket] = deque()
        self._running: list[Ticket] = []
        self._suspects: deque[Ticket] = deque()
        """Who was in a pass that failed for several: each is tried alone, and the one whose fault it is fails."""
        self._free = list(range(slots))
        """Slots nobody is in, the one that was used longest ago first."""
        self._calls: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._in_pass: list[Ticket] = []
        self._work = threading.Condition()
        """Guards everything that other threads change: tickets, calls, the abort flag."""
        self._stepping = threading.Lock()
        """Held during a step: there is never a second one."""
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- any thread ------------------------------------------------------------------------------------------------

    def submit(self, generation: Generation, sink: Sink) -> Ticket:
        """Hand in a request; it is answered as soon as a slot is free.

        Raises:
            UsageError: The loop is closed.
        """
        ticket = Ticket(generation, sink, self)
        with self._work:
            self.require_open()
            self._waiting.append(ticket)
            self._work.notify()
        return ticket

    def cancel(self, tickets: Many[Ticket] | None = None) -> None:
        """End these requests, or all. The pass that is running is stopped if nobody else is in it."""
        with self._work:
            for ticket in self._tickets() if tickets is None else tickets:
                ticket.cancelled = True
            if self._in_pass and all(ticket.cancelled for ticket in self._in_pass):
                self._abort(True)
            self._work.notify()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` between two passes, in the thread that steps; what it raises is raised by the future.

        Raises:
            UsageError: The loop is closed.
        """
        future: Future[T] = Future()
        with self._work:
            self.require_open()
            self._calls.append((function, future))  # type: ignore[arg-type]
            self._work.notify()
        return future

    def start(self) -> None:
        """Step in a thread of its own from now on; harmless when done twice."""
        with self._work:
            self.require_open()
            if self._thread is None:
                _share_one_heap()
                self._thread = threading.Thread(target=self._run, name="spec-local loop", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End all requests and the thread; after this no pass is made. Harmless when done twice."""
        with self._work:
            self._closed = True
            self.cancel()
            self._abort(True)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._stepping:
            self._end_cancelled()
            for _, future in self._calls:
                future.cancel()

    def require_open(self) -> None:
        """Refuse if the loop is closed.

        Raises:
            UsageError: It is.
        """
        if self._closed:
            raise UsageError("This engine is closed.", "Load it again.")

    # -- the thread that steps -------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One pass for all; False if there was nothing to do."""
        with self._stepping:
            return self._step()

    def play(self, generation: Generation, between: Callable[[], None] = lambda: None) -> None:
        """Answer one request by steps in this thread.

        Args:
            generation: The request.
            between: Called before every pass; what it raises ends the request and is raised.

        Raises:
            SpecLocalError: What the answer failed with.
            Exception: A defect of ours, as it was raised.
        """
        ticket = self.submit(generation, lambda _event: None)
        try:
            while not generation.finished:
                between()
                self.step()
        finally:
            ticket.cancel()
            self.step()
        error = generation.sequence.error
        if error is not None:
            raise error.cause if isinstance(error, Defect) else error

    def _step(self) -> bool:
        called = self._make_calls()
        self._end_cancelled()
        self._admit()
        tickets = [self._suspects.popleft()] if self._suspects else list(self._running)
        if not tickets:
            return called
        with self._work:
            if all(ticket.cancelled for ticket in tickets):
                return True
            self._in_pass = tickets
            self._abort(self._closed)
        started = self._clock()
        try:
            self._pass(tickets)
        finally:
            with self._work:
                self._in_pass = []
                self._abort(self._closed)
        self._observe(tickets, self._clock() - started)
        for ticket in tickets:
            self._report(ticket)
        return True

    def _observe(self, tickets: list[Ticket], seconds: float) -> None:
        """A pass in which nobody read a prompt tells how fast so many sequences are together."""
        before = [ticket.generation for ticket in tickets]
        if all(g.sequence.reading.done for g in before):
            self.concurrency.observe(len(before), sum(g.untold for g in before), seconds)

    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._closed or self._calls or self._tickets())
                if self._closed:
                    return
            try:
                self.step()
            except Exception as error:  # a defect of ours: nobody is left waiting
                with self._work:
                    failed = self._tickets()
                for ticket in failed:
                    ticket.generation.sequence.fail(Defect(error))
                    ticket.cancelled = True
                self._end_cancelled()

    def _pass(self, tickets: list[Ticket]) -> None:
        """Play it; what stops it becomes the finish of the requests that it concerns."""
        sequences = [ticket.generation.sequence for ticket in tickets]
        try:
            self._passes.step(sequences)
        except Aborted:
            for sequence in sequences:
                sequence.cancel()
        except WorkerError as error:  # the model is gone with the worker
            for sequence in sequences:
                sequence.fail(error)
        except Exception as error:
            if len(tickets) > 1:  # whose fault it was shows when each is tried alone
                self._suspects.extend(tickets)
                return
            sequences[0].fail(error if isinstance(error, BackendError) else Defect(error))

    def _make_calls(self) -> bool:
        with self._work:
            calls = list(self._calls)
            self._calls.clear()
        for function, future in calls:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
        return bool(calls)

    def _admit(self) -> None:
        """Give waiting requests a slot, first come first served."""
        with self._work:
            admitted = []
            while self._waiting and self._free and len(self._running) < self.concurrency.limit:
                ticket = self._waiting.popleft()
                self._running.append(ticket)
                admitted.append(ticket)
                ticket.generation.sequence.slot = self._choose_slot(ticket.generation.sequence.tokens)
                ticket.started_s = self._clock()
        for ticket in admitted:
            self._report(ticket)  # it may have ended before it began

    def _choose_slot(self, tokens: Many[int]) -> int:
        """The free slot whose text this request goes on with, else the one that was used longest ago: what it shares
        with others is copied, so a conversation is not given up for a request that only begins like it."""
        shared = {slot: self._passes.shared(slot, tokens) for slot in self._free}
        going_on = [slot for slot in self._free if 2 * shared[slot] >= max(1, self._passes.held(slot))]
        slot = max(going_on, key=shared.__getitem__) if going_on else self._free[0]
        self._free.remove(slot)
        return slot

    def _end_cancelled(self) -> None:
        with self._work:
            ended = [ticket for ticket in self._tickets() if ticket.cancelled]
            for ticket in ended:
                ticket.generation.sequence.cancel()
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                    self._running.append(ticket)
        for ticket in ended:
            self._report(ticket)

    def _report(self, ticket: Ticket) -> None:
        """Tell the sink what the pass brought; a request that has ended gives its slot back."""
        generation, events = ticket.generation, list[Event]()
        reading = generation.sequence.reading
        if reading.computed > ticket._told:
            ticket._told = reading.computed
            events.append(Progress(reading.computed, reading.lacking))
        piece = generation.piece()
        if piece.text or piece.tokens:
            events.append(piece)
        if generation.finished:
            with self._work:
                self._running.remove(ticket)
                if ticket in self._suspects:
                    self._suspects.remove(ticket)
                if ticket.started_s is not None:
                    self._free.append(generation.sequence.slot)
            events.append(Finished(generation))
        for event in events:
            try:
                ticket._sink(event)
            except Exception:  # whoever listens badly loses this request and nobody else's
                ticket.cancelled = True

    def _tickets(self) -> list[Ticket]:
        return [*self._running, *self._waiting]


class Defect(BackendError):
    """Something that should not happen happened in a pass; `cause` is what was raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"Something unexpected happened: {type(cause).__name__}: {cause}.")
        self.cause = cause


def _share_one_heap() -> None:
    """Let the threads that come take memory from the main thread's heap. With glibc each has a heap of its own, which
    gives back to the system what a pass frees, to be mapped anew by the next: a tenth of the speed of decoding."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
