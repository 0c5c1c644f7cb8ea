"""`Stream`: one answer on its way, as an iterator over the events of its ticket."""

from __future__ import annotations

import queue
import weakref
from collections.abc import Callable, Iterator

from spec_local.session.generation import Event, Finished, Generation, Progress
from spec_local.session.loop import Loop
from spec_local.session.result import Piece, Result


class Stream(Iterator[Piece]):
    """An answer on its way: iterate for pieces, then read `result`. Closing or dropping it cancels the rest.

    Args:
        loop: Answers it, in its own thread.
        generation: The request.
        result: Makes the result of the finished generation.
        on_prefill: Called with (tokens read, tokens to read) of the prompt, in the thread that iterates.
    """

    def __init__(
        self,
        loop: Loop,
        generation: Generation,
        result: Callable[[Generation], Result],
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> None:
        self._generation = generation
        self._result = result
        self._on_prefill = on_prefill
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._ended = False
        self._ticket = loop.submit(generation, self._events.put)
        weakref.finalize(self, self._ticket.cancel).atexit = False
        loop.start()

    @property
    def result(self) -> Result:
        """The finished answer; after the last piece, or after `close`."""
        return self._result(self._generation)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about this request."""
        return tuple(self._generation.notices)

    def close(self) -> None:
        """Stop here. What was written stays; `result` then says "cancelled", unless the answer had ended."""
        self._ticket.cancel()
        while not self._ended:
            self._ended = isinstance(self._events.get(), Finished)

    def __next__(self) -> Piece:
        """The next piece, as soon as it is there.

        Raises:
            BackendError: The answer could not be finished; what was written was handed out.
        """
        while not self._ended:
            match self._events.get():
                case Piece() as piece:
                    return piece
                case Progress(done, total):
                    if self._on_prefill is not None:
                        self._on_prefill(done, total)
                case Finished():
                    self._ended = True
                    if self._generation.sequence.error is not None:
                        raise self._generation.sequence.error
        raise StopIteration
