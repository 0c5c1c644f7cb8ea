"""How the caches of a context are cut back: one small interface, and its implementations for cells.

Which one a context has follows from its `Memory` alone (`rollback_for`); that of running states is in `running_state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spec_local.errors import CacheError
from spec_local.language_model import Chunk
from spec_local.llama.checkpoints import Checkpoints
from spec_local.llama.native import NativeContext


class Rollback(Protocol):
    """The way back of every sequence of a context; between its own passes, nobody else changes the caches."""

    def before_pass(self, chunks: Sequence[Chunk]) -> None:
        """A pass over `chunks` comes."""

    def after_pass(self, chunks: Sequence[Chunk]) -> None:
        """It succeeded."""

    def after_failure(self, seq: int, start: int, computed: bool) -> None:
        """A pass that found `start` tokens in the cache of `seq` failed: bring those back, or a beginning of them.

        Args:
            seq: The sequence.
            start: Its length before the pass.
            computed: Whether something may have been computed, and be in the cache whatever its length says.

        Raises:
            CacheError: The cache is empty now.
        """

    def foothold(self, seq: int, length: int, held: int) -> int:
        """The longest beginning of at most `length` tokens, 0 < length < held, that can be cut back to."""

    def mark(self, seq: int, ahead: int | None) -> None:
        """See `LanguageModel.mark`."""

    def cut(self, seq: int, length: int, held: int) -> None:
        """Cut `seq` from `held` to `length` tokens: 0, or a foothold.

        Raises:
            CacheError: It was not done.
        """

    def forget(self, seq: int) -> None:
        """What is in the cache of `seq` now came from elsewhere: nothing known of it holds any more."""


class CellRollback:
    """Cells of single tokens: cut wherever the cells that a window looks back at are still there."""

    def __init__(self, native: NativeContext) -> None:
        self._native = native

    def before_pass(self, chunks: Sequence[Chunk]) -> None:
        """See `Rollback`."""

    def after_pass(self, chunks: Sequence[Chunk]) -> None:
        """See `Rollback`."""

    def after_failure(self, seq: int, start: int, computed: bool) -> None:
        """See `Rollback`: what the pass finished is in cells of its own."""
        held = self._native.length(seq)
        if held > start:
            try:
                self.cut(seq, self.foothold(seq, start, held) if start else 0, held)
            except CacheError:
                self.cut(seq, 0, held)

    def foothold(self, seq: int, length: int, held: int) -> int:
        """See `Rollback`."""
        return length if self._native.window_holds(seq, length) else 0

    def mark(self, seq: int, ahead: int | None) -> None:
        """See `Rollback`: every length is one to come back to."""

    def cut(self, seq: int, length: int, held: int) -> None:
        """See `Rollback`."""
        self._native.remove(seq, length)

    def forget(self, seq: int) -> None:
        """See `Rollback`."""


class WindowRollback(CellRollback):
    """Cells of a window only: what has left it comes back with a state that was saved for later turns."""

    def __init__(self, native: NativeContext) -> None:
        super().__init__(native)
        self._checkpoints = Checkpoints(native)

    def foothold(self, seq: int, length: int, held: int) -> int:
        """See `Rollback`."""
        return super().foothold(seq, length, held) or self._checkpoints.best(seq, length)

    def mark(self, seq: int, ahead: int | None) -> None:
        """See `Rollback`: a draft is shorter than what a window keeps spare."""
        if ahead is None:
            self._checkpoints.save(seq, self._native.length(seq), lasting=True)

    def cut(self, seq: int, length: int, held: int) -> None:
        """See `Rollback`."""
        if length == 0 or super().foothold(seq, length, held):
            super().cut(seq, length, held)
            self._checkpoints.forget(seq, length)
        else:
            self._checkpoints.go_back(seq, length)
            if not self._native.window_holds(seq, length):
                name = self._native.name
                raise CacheError(f"The sliding window of {name} has forgotten what a cut to {length} tokens needs.")

    def forget(self, seq: int) -> None:
        """See `Rollback`."""
        self._checkpoints.forget(seq, 0)
