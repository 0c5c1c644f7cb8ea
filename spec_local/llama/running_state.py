"""The way back of recurrent and hybrid models, whose running state no cut can wind back.

Two things help: snapshots, the states after each of the last tokens of the last pass, which some architectures keep;
and states that were saved beforehand, at lengths that were marked.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_local.language_model import Chunk, Memory, MemoryKind
from spec_local.llama.checkpoints import Checkpoints
from spec_local.llama.native import NativeContext


class RunningStateRollback:
    """See `Rollback`; for a memory that goes `NOWHERE`, nothing is saved.

    llama.cpp answers "done" to a cut by snapshots older than its last pass, so what they hold is counted here.
    """

    def __init__(self, native: NativeContext, memory: Memory) -> None:
        self._native = native
        self._depth = memory.depth
        self._saves = memory.kind is not MemoryKind.NOWHERE
        self._checkpoints = Checkpoints(native)
        self._undo: dict[int, int] = {}  # by sequence: tokens of its last pass that snapshots can take back now
        self._unsure: set[int] = set()  # sequences in which an interrupted cut may have left cells behind the tokens

    def before_pass(self, chunks: Sequence[Chunk]) -> None:
        """See `Rollback`."""
        for chunk in chunks:
            self._undo[chunk.seq] = 0  # until the pass is booked: an interrupt may come between
            if chunk.seq in self._unsure:
                self._native.remove(chunk.seq, self._native.length(chunk.seq))
                self._unsure.discard(chunk.seq)

    def after_pass(self, chunks: Sequence[Chunk]) -> None:
        """See `Rollback`."""
        for chunk in chunks:
            self._undo[chunk.seq] = min(self._depth, len(chunk.tokens) - 1)

    def after_failure(self, seq: int, start: int, computed: bool) -> None:
        """See `Rollback`.

        Part of the pass may be in the state whatever length it claims: llama.cpp takes a failed pass back through
        snapshots that the pass has not written. What was saved before it, or nothing, is right.
        """
        if computed or self._native.length(seq) > start:
            self._go_back(seq, self._checkpoints.best(seq, start))

    def foothold(self, seq: int, length: int, held: int) -> int:
        """See `Rollback`."""
        return length if held - length <= self._undo.get(seq, 0) else self._checkpoints.best(seq, length)

    def mark(self, seq: int, ahead: int | None) -> None:
        """See `Rollback`: a copy of the state is saved, unless snapshots can take the draft back."""
        if self._saves and (ahead is None or ahead > self._depth):
            self._checkpoints.save(seq, self._native.length(seq), lasting=ahead is None)

    def cut(self, seq: int, length: int, held: int) -> None:
        """See `Rollback`."""
        if length == 0 or held - length <= self._undo.get(seq, 0):
            self._undo[seq] = 0  # a snapshot is gone back to once
            self._native.remove(seq, length)
            self._unsure.discard(seq)
            self._checkpoints.forget(seq, length)
        else:
            self._go_back(seq, length)

    def forget(self, seq: int) -> None:
        """See `Rollback`."""
        self._undo[seq] = 0
        self._checkpoints.forget(seq, 0)

    def _go_back(self, seq: int, length: int) -> None:
        self._undo[seq] = 0
        self._unsure.add(seq)
        self._checkpoints.go_back(seq, length)
        self._unsure.discard(seq)
