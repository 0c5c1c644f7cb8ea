"""`Context`: a model with its key/value caches, as the `LanguageModel` the rest of the program speaks to.

Batches are filled through numpy views of memory that llama.cpp reads directly, and logits are read where
llama.cpp wrote them: no row of the vocabulary is copied here, except where a padded decode takes several passes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from spec_local.errors import Aborted, BackendError, CacheError, UsageError
from spec_local.language_model import Chunk, Logits, Memory, MemoryKind
from spec_local.llama.batch import Batch, pieces
from spec_local.llama.checkpoints import Checkpoints
from spec_local.llama.kernels.library import Taken, offered
from spec_local.llama.library import first_error, forget_log, llama
from spec_local.llama.model import Model

CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
"""Cache element types and their ggml numbers."""
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_ABORTED = 2
_MOST_CELLS = 2**31 - 1
_NO_ROOM = 1
"""llama_decode: no cells for the batch; nothing was computed."""
_RUNNING = (MemoryKind.SNAPSHOTS, MemoryKind.CHECKPOINTS, MemoryKind.NOWHERE)


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How a context is made."""

    n_ctx: int
    """Tokens one sequence can hold."""
    n_seq: int = 1
    """Sequences (cache slots)."""
    n_batch: int = 512
    """Most tokens in one pass."""
    max_rows: int = 32
    """Most logits rows asked for in one pass; llama.cpp reserves n_vocab floats for each."""
    pad_width: int = 0
    """Evaluate every pass over exactly this many tokens of one sequence, in a cache of its own, so that its bits do not
    depend on how much is asked for at once, nor on the other sequences; 0 is off."""
    threads: int = 0
    """CPU threads; 0 takes the physical cores this process may use."""
    flash_attention: str = "auto"
    """auto, on or off."""
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    snapshots: int = 0
    """Older states that a running state keeps, so that so many tokens of a pass can be taken back; where the
    architecture cannot, or with several sequences, states are saved instead."""
    kernels: Taken = ()
    """Products that our own kernels compute, where the weights lie in this machine's memory; see `kernels.choice`."""
    whole_window: bool = True
    """Let sliding-window layers keep the whole context: what has left a window cannot be cut back into it."""

    @property
    def most_rows(self) -> int:
        """Rows of logits there is room for: those of the widest pass."""
        return max(self.max_rows, self.pad_width, self.n_seq)


class Context:
    """Caches of `n_seq` sequences over one model. Used from one thread; only `abort` may come from another.

    Args:
        model: Stays open as long as the context.
        options: How it is made.
        abort_flag: Two bytes that stop the passes while the first is not zero, where they shall lie in memory that
            others see too.

    Raises:
        BackendError: llama.cpp cannot make the context (most often: not enough memory).
        UsageError: An option does not exist.
    """

    def __init__(self, model: Model, options: ContextOptions, abort_flag: Any = None) -> None:
        self._lib = llama()
        self._handle: Any = None
        self.model = model
        self.options = options
        self.n_vocab: int = model.vocabulary.size
        self.n_ctx: int = options.n_ctx
        # One sequence only: a pass over several may move a state to another cell, which leaves its snapshots behind.
        # llama.cpp wants room for all of them and two tokens in a batch, which is never longer than the context.
        most = options.n_ctx + options.pad_width - 2 if model.recurrent and options.n_seq == 1 else 0
        self._snapshots = max(0, min(options.snapshots, most))
        least = max(options.pad_width, options.n_seq, self._snapshots + 2)
        self.n_batch: int = max(options.n_batch, options.max_rows, least)
        self._most_tokens = least if options.pad_width else self.n_batch  # in one pass of llama.cpp
        self.width: Callable[[int], int] = int
        """Rows with which a pass over so many rows is evaluated, where there is room: set where more are faster."""
        forget_log()
        with offered(options.kernels):
            self._handle = self._lib.llama_init_from_model(model.handle, self._params(options))
        if not self._handle:
            raise BackendError(
                f"llama.cpp cannot make a context of {options.n_ctx} tokens for {model.path.name}{first_error()}.",
                "Try a smaller --n-ctx, or other cache types (--cache-type-k, --cache-type-v).",
            )
        self._memory = self._lib.llama_get_memory(self._handle)
        self._checkpoints = Checkpoints(self._lib, self._handle)
        self._undo: dict[int, int] = {}  # by sequence: tokens of its last pass that snapshots can take back now
        self._padding: dict[int, int] = {}  # by sequence: padding behind its tokens, to be taken back with them
        self._unsure: set[int] = set()  # sequences in which an interrupted cut may have left cells behind the tokens
        self.memory = self._claimed_memory()
        """How its caches can be cut back: what the model says of itself, until `memory_probe.classify` has tried it."""
        self._batch = Batch(self._lib, self._most_tokens)
        self._abort_flag = abort_flag if abort_flag is not None else ctypes.create_string_buffer(2)
        callback = ctypes.cast(_strlen(), self._lib.ggml_abort_callback)
        self._lib.llama_set_abort_callback(self._handle, callback, ctypes.cast(self._abort_flag, ctypes.c_void_p))

    def _params(self, options: ContextOptions) -> Any:
        for name in (options.cache_type_k, options.cache_type_v):
            if name not in CACHE_TYPES:
                raise UsageError(f"Cache type {name!r} does not exist.", f"Use one of {', '.join(CACHE_TYPES)}.")
        if options.flash_attention not in _FLASH_ATTENTION:
            raise UsageError(f"Flash attention cannot be {options.flash_attention!r}.", "Use auto, on or off.")
        params = self._lib.llama_context_default_params()
        cells = (options.n_ctx + options.pad_width) * options.n_seq
        if cells > _MOST_CELLS:
            raise UsageError(f"A context of {cells} tokens over all sequences is too large.", "Take a smaller --n-ctx.")
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = self._most_tokens
        params.n_seq_max = options.n_seq
        params.n_outputs_max = min(options.most_rows, self._most_tokens)
        params.n_threads = params.n_threads_batch = options.threads or physical_cores()
        params.flash_attn_type = _FLASH_ATTENTION[options.flash_attention]
        params.type_k, params.type_v = CACHE_TYPES[options.cache_type_k], CACHE_TYPES[options.cache_type_v]
        params.swa_full = options.whole_window
        params.n_rs_seq = self._snapshots
        # In one cache for all, what one sequence rejects is filled by another, whose attention is then summed in
        # another order: padded passes, which shall give the same bits whoever else is there, have a cache each.
        params.kv_unified = not options.pad_width
        params.no_perf = True
        return params

    def _claimed_memory(self) -> Memory:
        name = self.model.path.name
        if self.model.recurrent:
            depth = int(self._lib.llama_n_rs_seq(self._handle))
            kind = MemoryKind.SNAPSHOTS if depth else MemoryKind.CHECKPOINTS
            return Memory(kind, depth, reason=f"{name} keeps a running state (recurrent or hybrid model)")
        if self.model.n_swa and not self.options.whole_window:
            reason = f"the sliding window of {name} forgets what has left it"
            return Memory(MemoryKind.WINDOW, reason=reason)
        return Memory()

    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """Evaluate all chunks in one pass, or padded ones in passes of their own; see `LanguageModel.decode`."""
        starts = [self.length(chunk.seq) for chunk in chunks]
        if any(start + len(chunk.tokens) > self.n_ctx for chunk, start in zip(chunks, starts, strict=True)):
            raise CacheError(
                f"The context of {self.n_ctx} tokens is full.", "Start with a larger --n-ctx or a shorter prompt."
            )
        ends = np.cumsum([chunk.rows for chunk in chunks])
        wanted = int(ends[-1])
        assert wanted <= self.options.most_rows, f"{wanted} rows wanted, {self.options.most_rows} reserved"
        if self._handle is None:
            raise BackendError(f"The context of {self.model.path.name} is closed.")
        if self._stopped():  # backends that cannot stop inside a pass stop before the next one
            raise Aborted("A pass was stopped before it began.")
        forget_log()
        width = self.options.pad_width
        passes = [[piece] for chunk in chunks for piece in pieces(chunk, width)] if width else [chunks]
        read: list[Logits] = []
        for parts in passes:
            status = _ABORTED if self._stopped() else self._pass(parts)
            if status != 0:
                self._roll_back(chunks, starts, status)
            rows = self._logits(parts)
            read.append(rows if len(passes) == 1 else rows.copy())  # the next pass writes its own over them
        rows = read[0] if len(read) == 1 else np.concatenate(read)
        return [rows[end - chunk.rows : end] for chunk, end in zip(chunks, ends, strict=True)]

    def _pass(self, chunks: Sequence[Chunk]) -> int:
        """One pass of llama.cpp over `chunks`, the last of them padded, and the padding taken out; its status."""
        running = self.memory.kind in _RUNNING
        wanted = sum(chunk.rows for chunk in chunks)
        batch = self._batch
        batch.clear()
        for chunk in chunks:
            length = self.length(chunk.seq)
            # The output layer is part of a padded pass, so it is computed for all rows or none.
            rows = len(chunk.tokens) if wanted and self.options.pad_width else chunk.rows
            batch.add(chunk.tokens, length, chunk.seq, rows)
            if running:
                if self._padding.get(chunk.seq) or chunk.seq in self._unsure:
                    self._remove(chunk.seq, length)
                self._undo[chunk.seq] = 0  # until the pass is booked: an interrupt may come between
        last = chunks[-1]
        end = self.length(last.seq) + len(last.tokens)
        padding = self._missing(batch.size, wanted, end)
        if padding:
            batch.add([0] * padding, end, last.seq, padding if wanted else 0)
        status = int(self._lib.llama_decode(self._handle, batch.view()))
        if status == 0 and running:  # a snapshot is gone back to once, so padding and a rejected draft go together
            for chunk in chunks:
                self._undo[chunk.seq] = min(self.memory.depth, len(chunk.tokens) - 1)
            if padding:
                self._padding[last.seq] = padding
                self._undo[last.seq] = min(self.memory.depth - padding, len(last.tokens) - 1)
        elif status == 0 and padding:
            self.trim(last.seq, end)
        return status

    def _missing(self, size: int, wanted: int, end: int) -> int:
        """Tokens of padding for a pass over `size`, with so many rows wanted, the last of which would be at `end`."""
        if self.options.pad_width:
            return self.options.pad_width - size
        padding = self.width(wanted) - wanted if wanted == size else 0
        return padding if wanted + padding <= self.options.most_rows and end + padding <= self.n_ctx else 0

    def _logits(self, chunks: Sequence[Chunk]) -> Logits:
        """The rows wanted of the last pass, which was over `chunks`, where llama.cpp wrote them."""
        wanted = sum(chunk.rows for chunk in chunks)
        if not wanted:
            return np.empty((0, self.n_vocab), np.float32)
        before = len(chunks[0].tokens) - wanted if self.options.pad_width else 0
        pointer = self._lib.llama_get_logits(self._handle)
        rows: Logits = np.ctypeslib.as_array(pointer, shape=(before + wanted, self.n_vocab))
        return rows[before:]

    def _stopped(self) -> bool:
        return bool(self._abort_flag[0] != b"\x00")

    def _roll_back(self, chunks: Sequence[Chunk], starts: Sequence[int], status: int) -> None:
        """A failed pass may leave what it finished in the caches; take that out before saying so."""
        reason = "was stopped" if status == _ABORTED else f"failed with status {status}{first_error()}"
        for chunk, start in zip(chunks, starts, strict=True):
            if self.memory.kind in _RUNNING and status != _NO_ROOM:
                # Part of the pass may be in the state whatever length it claims: llama.cpp takes a failed pass back
                # through snapshots that the pass has not written. What was saved before it, or nothing, is right.
                self._go_back(chunk.seq, self._checkpoints.best(chunk.seq, start))
            elif self.length(chunk.seq) > start:
                try:
                    self.trim(chunk.seq, start)
                except CacheError:
                    self.trim(chunk.seq, 0)
        error = {1: CacheError, _ABORTED: Aborted}.get(status, BackendError)
        raise error(f"A pass over {sum(len(chunk.tokens) for chunk in chunks)} tokens {reason}.")

    def length(self, seq: int) -> int:
        """Tokens in the cache of `seq`, by the cache's own account."""
        if self._handle is None:
            return 0
        return int(self._lib.llama_memory_seq_pos_max(self._memory, seq)) + 1 - self._padding.get(seq, 0)

    def foothold(self, seq: int, length: int) -> int:
        """See `LanguageModel.foothold`."""
        held = self.length(seq)
        if length <= 0 or length >= held:
            return max(0, min(length, held))
        if self._cut_free(seq, length, held):
            return length
        return self._checkpoints.best(seq, length)

    def mark(self, seq: int, ahead: int | None = None) -> None:
        """See `LanguageModel.mark`: of a running state, a copy is saved."""
        memory = self.memory
        if memory.kind in (MemoryKind.ANYWHERE, MemoryKind.NOWHERE) or self._handle is None:
            return
        if ahead is not None and (memory.free or max(ahead, self.options.pad_width - 1) <= memory.depth):
            return
        length = self.length(seq)
        if self._padding.get(seq):
            self._remove(seq, length)
        self._checkpoints.save(seq, length, lasting=ahead is None)

    def trim(self, seq: int, length: int) -> None:
        """Cut the cache of `seq` back to `length` tokens; see `LanguageModel.trim`."""
        before = self.length(seq)
        assert 0 <= length <= before, f"trim to {length} of {before}"
        if length == before:
            return
        name = self.model.path.name
        if self.foothold(seq, length) != length:
            raise CacheError(
                f"The cache of {name} cannot be cut from {before} to {length} tokens: {self.memory.reason}."
            )
        if length == 0 or self._cut_free(seq, length, before):
            self._remove(seq, length)
        else:
            self._go_back(seq, length)
        self._checkpoints.forget(seq, length)
        if length and not self.model.recurrent and not self._window_holds(seq, length):
            raise CacheError(f"The sliding window of {name} has forgotten what a cut to {length} tokens needs.")

    def _window_holds(self, seq: int, length: int) -> bool:
        """Whether the cache of `seq` has what the token behind `length` tokens looks back at in sliding-window layers.

        Even a cache of full size gives cells to others whose tokens have left the window, once it has been filled.
        """
        window = self.model.n_swa
        oldest = int(self._lib.llama_memory_seq_pos_min(self._memory, seq)) if window else 0
        return oldest <= max(0, length - window + 1)

    def _cut_free(self, seq: int, length: int, held: int) -> bool:
        """Whether the cache of `seq` can be cut from `held` to `length` > 0 tokens without a saved state."""
        match self.memory.kind:
            case MemoryKind.ANYWHERE | MemoryKind.WINDOW:
                return self._window_holds(seq, length)
            case MemoryKind.SNAPSHOTS:
                return held - length <= self._undo.get(seq, 0)
            case _:
                return False

    def _remove(self, seq: int, length: int) -> None:
        """Take everything behind the first `length` tokens of `seq` out of the cache, padding too, and check it."""
        before = self.length(seq) + self._padding.get(seq, 0)
        done = self._lib.llama_memory_seq_rm(self._memory, seq, length if length else -1, -1)
        self._undo[seq] = self._padding[seq] = 0
        self._unsure.discard(seq)
        after = self.length(seq)
        if not done or after != length:
            name = self.model.path.name
            raise CacheError(f"The cache of {name} cannot be cut from {before} to {length} tokens (it holds {after}).")

    def _go_back(self, seq: int, length: int) -> None:
        """Bring `seq` back to `length` tokens by the state saved there, or to none where that fails (0: saved nowhere).

        Raises:
            CacheError: The saved state is not taken back; the cache is empty then.
        """
        self._undo[seq] = self._padding[seq] = 0
        self._unsure.add(seq)
        try:
            if length:
                self._checkpoints.restore(seq, length)
            self._remove(seq, length)
        except CacheError:
            self._checkpoints.forget(seq, 0)
            self._remove(seq, 0)
            raise

    def copy(self, source: int, target: int, length: int) -> None:
        """See `SharingModel.copy`. In one cache for all, cells are shared, not copied, so this takes no room either.
        From cache to cache (padded) llama.cpp copies with the next pass: no `checkpoint` or `restore` before that."""
        self.trim(target, 0)
        if not self.memory.free or self.foothold(source, length) != length:
            raise CacheError(f"The first {length} tokens cannot be taken over: {self.memory.reason}.")
        if self.options.pad_width:  # llama.cpp copies only whole sequences from cache to cache
            self._lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self._remove(target, length)
        else:
            self._lib.llama_memory_seq_cp(self._memory, source, target, 0, length)
        if (copied := self.length(target)) != length:  # a running state is copied whole or not at all
            self.trim(target, 0)
            raise CacheError(f"Of {length} tokens to be copied the cache took {copied}.")

    def checkpoint(self, seq: int) -> bytes:
        """The whole state of one sequence, for `restore`."""
        if self._padding.get(seq):
            self._remove(seq, self.length(seq))
        size = self._lib.llama_state_seq_get_size(self._handle, seq)
        buffer = (ctypes.c_uint8 * size)()
        return ctypes.string_at(buffer, self._lib.llama_state_seq_get_data(self._handle, buffer, size, seq))

    def restore(self, seq: int, state: bytes) -> None:
        """Bring sequence `seq` back to a state from `checkpoint`.

        Raises:
            CacheError: llama.cpp does not take the state.
        """
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        self._checkpoints.forget(seq, 0)
        self._undo[seq] = self._padding[seq] = 0
        if self._lib.llama_state_seq_set_data(self._handle, buffer, len(state), seq) == 0:
            raise CacheError(f"A saved state of {self.model.path.name} could not be restored.")

    def abort(self, stop: bool) -> None:
        """Stop the pass that is running and every further one (True), or allow passes again. Any thread may call it."""
        self._abort_flag[0] = b"\x01" if stop else b"\x00"

    def sibling(self, options: ContextOptions) -> Context:
        """Another context over the same weights; raises as the constructor."""
        return Context(self.model, options)

    def close(self) -> None:
        """Free the caches; harmless when done twice."""
        if self._handle is not None:
            self._lib.llama_free(self._handle)
            self._handle = None


@cache
def _strlen() -> Any:
    """C's strlen, as the abort callback: of a one-byte flag it is 0 (go on) or 1 (stop).

    llama.cpp asks after every graph node from its compute threads. A Python callback there would take the
    interpreter lock a thousand times in a pass; a C function that looks at one byte costs nothing.
    """
    return (ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)).strlen


@cache
def physical_cores() -> int:
    """Physical cores this process may run on: hyper-threads do not help memory-bound passes."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
