"""`Context`: a model with its caches, one pass for one `decode`.

Batches are filled through numpy views of memory that llama.cpp reads directly, and logits and hidden states are read
where llama.cpp wrote them: nothing as wide as the vocabulary is copied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spec_local.errors import Aborted, BackendError, CacheError
from spec_local.language_model import Chunk, Logits, Memory, MemoryKind, States
from spec_local.llama.library import first_error, forget_log
from spec_local.llama.model import Model
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.native import ABORTED, NO_ROOM, WHOLE, NativeContext
from spec_local.llama.rollback import CellRollback, Rollback, WindowRollback
from spec_local.llama.running_state import RunningStateRollback

_ERRORS = {NO_ROOM: CacheError, ABORTED: Aborted}


class Context:
    """Caches of `n_seq` sequences over one model. Used from one thread; only `abort` may come from another.

    Args:
        model: Stays open as long as the context.
        options: How it is made; `padded.open_context` makes one whose passes are padded.
        abort_flag: Two bytes that stop the passes while the first is not zero, where they shall lie in memory that
            others see too.

    Raises:
        BackendError: llama.cpp cannot make the context (most often: not enough memory).
        UsageError: An option does not exist.
    """

    def __init__(self, model: Model, options: ContextOptions, abort_flag: Any = None) -> None:
        assert not options.pad_width, "this context pads nothing: see `padded.open_context`"
        self.model = model
        self.options = options
        self.native = NativeContext(model, options, abort_flag)
        self.n_vocab: int = self.native.n_vocab
        self.n_ctx: int = options.n_ctx
        self.n_batch: int = self.native.n_batch
        self.state_width: int = self.native.state_width
        self.no_states: str = self.native.no_states
        self._computed: Sequence[Chunk] = ()
        """The last pass, if it succeeded."""
        self.memory = self._claimed_memory()

    @property
    def memory(self) -> Memory:
        """How its caches can be cut back: what the model says of itself, until `memory_probe.classify` has tried it.
        To set it chooses the way back anew, so the caches must be emptied before they are used again."""
        return self._memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self._memory = memory
        self._rollback: Rollback
        if memory.kind is MemoryKind.ANYWHERE:
            self._rollback = CellRollback(self.native)
        elif memory.kind is MemoryKind.WINDOW:
            self._rollback = WindowRollback(self.native)
        else:
            self._rollback = RunningStateRollback(self.native, memory)

    def _claimed_memory(self) -> Memory:
        name = self.model.path.name
        if self.model.recurrent:
            depth = self.native.snapshots
            kind = MemoryKind.SNAPSHOTS if depth else MemoryKind.CHECKPOINTS
            return Memory(kind, depth, reason=f"{name} keeps a running state (recurrent or hybrid model)")
        if self.model.n_swa and not self.options.whole_window:
            return Memory(MemoryKind.WINDOW, reason=f"the sliding window of {name} forgets what has left it")
        return Memory()

    # -- passes --------------------------------------------------------------------------------------------------------

    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """Evaluate all chunks in one pass; see `LanguageModel.decode`."""
        self._computed = ()
        native = self.native
        starts = [native.length(chunk.seq) for chunk in chunks]
        for chunk, start in zip(chunks, starts, strict=True):
            require_room(self.n_ctx, start, chunk)
        wanted = sum(chunk.rows for chunk in chunks)
        assert wanted <= self.options.most_rows, f"{wanted} rows wanted, {self.options.most_rows} reserved"
        assert self.state_width or not any(chunk.states for chunk in chunks), f"no hidden states: {self.no_states}"
        if native.handle is None:
            raise BackendError(f"The context of {native.name} is closed.")
        if native.stopped:  # backends that cannot stop inside a pass stop before the next one
            raise Aborted("A pass was stopped before it began.")
        forget_log()
        self._rollback.before_pass(chunks)
        native.batch.clear()
        for chunk, start in zip(chunks, starts, strict=True):
            native.batch.add(chunk.tokens, start, chunk.seq, chunk.rows)
        status = native.decode()
        if status != 0:
            self._undo(chunks, starts, status)
        self._rollback.after_pass(chunks)
        self._computed = chunks
        rows, views, at = native.logits(wanted), [], 0
        for chunk in chunks:
            views.append(rows[at : at + chunk.rows])
            at += chunk.rows
        return views

    def states(self) -> list[States | None]:
        """See `StatesModel.states`; they are read where llama.cpp wrote them."""
        if not any(chunk.states for chunk in self._computed):
            return [None] * len(self._computed)
        rows, found, at = self.native.states(), [], 0
        for chunk in self._computed:
            end = at + len(chunk.tokens)
            found.append(rows[at:end] if chunk.states else None)
            at = end
        return found

    def _undo(self, chunks: Sequence[Chunk], starts: Sequence[int], status: int) -> None:
        """A failed pass may leave what it finished in the caches; take that out before saying so."""
        reason = "was stopped" if status == ABORTED else f"failed with status {status}{first_error()}"
        for chunk, start in zip(chunks, starts, strict=True):
            self._rollback.after_failure(chunk.seq, start, computed=status != NO_ROOM)
        raise _ERRORS.get(status, BackendError)(
            f"A pass over {sum(len(chunk.tokens) for chunk in chunks)} tokens {reason}."
        )

    def abort(self, stop: bool) -> None:
        """See `ModelContext.abort`."""
        self.native.abort(stop)

    # -- caches --------------------------------------------------------------------------------------------------------

    def length(self, seq: int) -> int:
        """Tokens in the cache of `seq`, by the cache's own account."""
        return self.native.length(seq)

    def foothold(self, seq: int, length: int) -> int:
        """See `LanguageModel.foothold`."""
        held = self.native.length(seq)
        if not 0 < length < held:
            return max(0, min(length, held))
        return self._rollback.foothold(seq, length, held)

    def mark(self, seq: int, ahead: int | None = None) -> None:
        """See `LanguageModel.mark`: of a running state, a copy is saved."""
        if self.native.handle is not None:
            self._rollback.mark(seq, ahead)

    def trim(self, seq: int, length: int) -> None:
        """Cut the cache of `seq` back to `length` tokens; see `LanguageModel.trim`."""
        held = self.native.length(seq)
        assert 0 <= length <= held, f"trim to {length} of {held}"
        if length == held:
            return
        if self.foothold(seq, length) != length:
            raise CacheError(
                f"The cache of {self.native.name} cannot be cut from {held} to {length} tokens: {self.memory.reason}."
            )
        self._rollback.cut(seq, length, held)

    def copy(self, source: int, target: int, length: int) -> None:
        """See `SharingModel.copy`. In one cache for all, cells are shared, not copied, so this takes no room either.
        From cache to cache llama.cpp copies with the next pass: no `checkpoint` or `restore` before that."""
        self.trim(target, 0)
        if not self.memory.free or self.foothold(source, length) != length:
            raise CacheError(f"The first {length} tokens cannot be taken over: {self.memory.reason}.")
        if self.options.unified:
            self.native.copy(source, target, length)
        else:  # only whole sequences are copied from cache to cache
            self.native.copy(source, target, -1)
            self.native.remove(target, length)
        if (copied := self.length(target)) != length:  # a running state is copied whole or not at all
            self.trim(target, 0)
            raise CacheError(f"Of {length} tokens to be copied the cache took {copied}.")

    def checkpoint(self, seq: int) -> bytes:
        """See `ModelContext.checkpoint`."""
        return self.native.save(seq, WHOLE).tobytes()

    def restore(self, seq: int, state: bytes) -> None:
        """See `ModelContext.restore`."""
        self._rollback.forget(seq)
        if not self.native.load(seq, np.frombuffer(state, np.uint8), WHOLE):
            raise CacheError(f"A saved state of {self.native.name} could not be restored.")

    def close(self) -> None:
        """Free the caches; harmless when done twice."""
        self._computed = ()
        self.native.close()


def require_room(n_ctx: int, held: int, chunk: Chunk) -> None:
    """Refuse a chunk for which there is no room behind the `held` tokens of its sequence.

    Raises:
        CacheError: There is none.
    """
    if held + len(chunk.tokens) > n_ctx:
        raise CacheError(f"The context of {n_ctx} tokens is full.", "Start with a larger --n-ctx or a shorter prompt.")
