"""`Stream`: one answer on its way, as an iterator of pieces."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from spec_local.session.generation import Generation, Progress
from spec_local.session.result import Piece, Result

if TYPE_CHECKING:
    from spec_local.session.engine import Engine


class Stream:
    """An answer on its way: iterate for pieces, then read `result`. Closing it early cancels the rest."""

    def __init__(self, engine: Engine, generation: Generation, on_prefill: Progress | None) -> None:
        self._engine = engine
        self._generation = generation
        self._pieces = _play(engine, generation, on_prefill)

    @property
    def result(self) -> Result:
        """The finished answer; after the last piece, or after `close`."""
        return self._engine.result(self._generation)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about this request."""
        return tuple(self._generation.notices)

    def close(self) -> None:
        """Stop here. What was written stays; `result` then says "cancelled"."""
        self._pieces.close()
        self._generation.sequence.cancel()
        self._generation.stream.finish()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces


def _play(engine: Engine, generation: Generation, on_prefill: Progress | None) -> Generator[Piece, None, None]:
    """The pieces of a stream. It knows nothing of the `Stream`, so a stream that is dropped lets go of the engine."""
    with engine.hold():
        if not generation.finished:
            engine.prefill(generation, on_prefill)
        while not generation.finished:
            engine.step([generation])
            piece = generation.piece()
            if piece.text or piece.tokens:
                yield piece
        if generation.sequence.error is not None:
            raise generation.sequence.error
