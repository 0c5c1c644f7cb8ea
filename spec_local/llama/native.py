"""`NativeContext`: llama.cpp's own context, its calls with plain types, and nothing decided about them."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from spec_local.errors import BackendError, CacheError, UsageError
from spec_local.language_model import Logits, States
from spec_local.llama.batch import Batch
from spec_local.llama.kernels.library import offered
from spec_local.llama.library import HiddenStates, first_error, forget_log, hidden_states, llama
from spec_local.llama.model import Model
from spec_local.llama.model_context import CACHE_TYPES, ContextOptions
from spec_local.llama.processor import physical_cores

ABORTED = 2
"""llama_decode: the abort flag was seen."""
NO_ROOM = 1
"""llama_decode: no cells for the batch; nothing was computed."""
WHOLE, UNCUTTABLE = 0, 1
"""Parts of a sequence's state: all of it, or only what cannot be cut (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)."""
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_MOST_CELLS = 2**31 - 1


class NativeContext:
    """A `llama_context`.

    Args:
        model: Stays open as long as the context.
        options: How it is made; `pad_width` is no matter of llama.cpp.
        abort_flag: Two bytes that stop the passes while the first is not zero, where they shall lie in memory that
            others see too.

    Raises:
        BackendError: llama.cpp cannot make the context (most often: not enough memory).
        UsageError: An option does not exist.
    """

    def __init__(self, model: Model, options: ContextOptions, abort_flag: Any = None) -> None:
        self.lib = llama()
        self.handle: Any = None
        self.n_vocab: int = model.vocabulary.size
        self.n_swa: int = model.n_swa
        self.name = model.path.name
        """Of the model file, for messages."""
        # One sequence only: a pass over several may move a state to another cell, which leaves its snapshots behind.
        # llama.cpp wants room for all of them and two tokens in a batch, which is never longer than the context.
        most = options.n_ctx - 2 if model.recurrent and options.n_seq == 1 else 0
        snapshots = max(0, min(options.snapshots, most))
        self.n_batch: int = max(options.n_batch, options.max_rows, options.n_seq, snapshots + 2)
        """Most tokens in one pass."""
        forget_log()
        with offered(options.kernels):
            self.handle = self.lib.llama_init_from_model(model.handle, self._params(options, snapshots))
        if not self.handle:
            raise BackendError(
                f"llama.cpp cannot make a context of {options.n_ctx} tokens for {self.name}{first_error()}.",
                "Try a smaller --n-ctx, or other cache types (--cache-type-k, --cache-type-v); quantised values need "
                "--flash-attn.",
            )
        self._memory = self.lib.llama_get_memory(self.handle)
        self.batch = Batch(self.lib, self.n_batch)
        self._abort_flag = abort_flag if abort_flag is not None else ctypes.create_string_buffer(2)
        callback = ctypes.cast(_strlen(), self.lib.ggml_abort_callback)
        self.lib.llama_set_abort_callback(self.handle, callback, ctypes.cast(self._abort_flag, ctypes.c_void_p))
        self.state_width = 0
        """Floats in the hidden state of one token; 0: passes leave none."""
        self.no_states = "they were not asked for"
        """Why `state_width` is 0."""
        if options.states:
            self._switch_states_on(model)

    def _params(self, options: ContextOptions, snapshots: int) -> Any:
        for name in (options.cache_type_k, options.cache_type_v):
            if name not in CACHE_TYPES:
                raise UsageError(f"Cache type {name!r} does not exist.", f"Use one of {', '.join(CACHE_TYPES)}.")
        if options.flash_attention not in _FLASH_ATTENTION:
            raise UsageError(f"Flash attention cannot be {options.flash_attention!r}.", "Use auto, on or off.")
        params = self.lib.llama_context_default_params()
        cells = options.n_ctx * options.n_seq
        if cells > _MOST_CELLS:
            raise UsageError(f"A context of {cells} tokens over all sequences is too large.", "Take a smaller --n-ctx.")
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_seq_max = options.n_seq
        params.n_outputs_max = min(options.most_rows, self.n_batch)
        params.n_threads = params.n_threads_batch = options.threads or physical_cores()
        params.flash_attn_type = _FLASH_ATTENTION[options.flash_attention]
        params.type_k, params.type_v = CACHE_TYPES[options.cache_type_k], CACHE_TYPES[options.cache_type_v]
        params.swa_full = options.whole_window
        params.n_rs_seq = snapshots
        params.kv_unified = options.unified
        params.no_perf = True
        return params

    # -- passes --------------------------------------------------------------------------------------------------------

    def decode(self) -> int:
        """One pass over what `batch` holds; llama.cpp's status, 0 for success."""
        return int(self.lib.llama_decode(self.handle, self.batch.view()))

    def logits(self, rows: int) -> Logits:
        """The rows asked for of the last pass, where llama.cpp wrote them: float32 [rows, n_vocab]."""
        if not rows:
            return np.empty((0, self.n_vocab), np.float32)
        found: Logits = np.ctypeslib.as_array(self.lib.llama_get_logits(self.handle), shape=(rows, self.n_vocab))
        return found

    def states(self) -> States:
        """Hidden states of all tokens of the last pass, where llama.cpp wrote them: float32 [tokens, state_width].

        Raises:
            BackendError: There are none.
        """
        access = hidden_states()
        pointer = access.read(self.handle) if access is not None and self.state_width else None
        if not pointer:
            raise BackendError(f"llama.cpp gives no hidden states of {self.name}: {self.no_states or 'no rows'}.")
        found: States = np.ctypeslib.as_array(pointer, shape=(self.batch.size, self.state_width))
        return found

    def _switch_states_on(self, model: Model) -> None:
        """Have passes leave hidden states, and look whether they do."""
        access = hidden_states()
        if access is None:
            self.no_states = "this build of llama.cpp exports no function that hands them out"
            return
        access.switch(self.handle, True, False)  # not masked: of every token, not of those with logits alone
        self.state_width = int(self.lib.llama_model_n_embd_out(model.handle))
        self.no_states = self._miss_states(access, model)
        if self.no_states:
            access.switch(self.handle, False, False)
            self.state_width = 0

    def _miss_states(self, access: HiddenStates, model: Model) -> str:
        """Why passes leave no hidden states though they were asked to; empty where they do. Empties sequence 0.

        A graph that knows nothing of them leaves the rows as they were, and says nothing. So they are made NaN after
        one pass, and the next one must write numbers there.
        """
        tokens, written = [1, 2][: self.n_batch], False
        for _ in range(2):
            self.batch.clear()
            self.batch.add(tokens, 0, 0, 0)
            status = self.decode()
            self.remove(0, 0)
            if status != 0:
                return f"a pass that was to show them failed with status {status}"
            if not access.read(self.handle):
                written = False
                break
            found = self.states()
            written = bool(np.isfinite(found).all() and found.any(axis=1).all())
            found[...] = np.nan
        return "" if written else f"llama.cpp's graph for {model.architecture} models does not hand them out"

    @property
    def stopped(self) -> bool:
        """Whether passes are to stop."""
        return bool(self._abort_flag[0] != b"\x00")

    def abort(self, stop: bool) -> None:
        """Stop passes, or allow them again."""
        self._abort_flag[0] = b"\x01" if stop else b"\x00"

    # -- caches --------------------------------------------------------------------------------------------------------

    def length(self, seq: int) -> int:
        """Highest position in the cache of `seq` + 1; 0 after `close`."""
        if self.handle is None:
            return 0
        return int(self.lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def remove(self, seq: int, length: int) -> None:
        """Take everything behind the first `length` tokens of `seq` out of its cache, and check that it is out.

        Raises:
            CacheError: It is not.
        """
        before = self.length(seq)
        done = self.lib.llama_memory_seq_rm(self._memory, seq, length if length else -1, -1)
        after = self.length(seq)
        if not done or after != length:
            raise CacheError(
                f"The cache of {self.name} cannot be cut from {before} to {length} tokens (it holds {after})."
            )

    def copy(self, source: int, target: int, length: int) -> None:
        """Append the first `length` tokens of `source` (-1: all) to the empty cache of `target`."""
        self.lib.llama_memory_seq_cp(self._memory, source, target, 0 if length >= 0 else -1, length)

    def window_holds(self, seq: int, length: int) -> bool:
        """Whether the cache of `seq` has what the token behind `length` tokens looks back at in sliding-window layers.

        Even a cache of full size gives cells to others whose tokens have left the window, once it has been filled.
        """
        if not self.n_swa:
            return True
        oldest = int(self.lib.llama_memory_seq_pos_min(self._memory, seq))
        return oldest <= max(0, length - self.n_swa + 1)

    @property
    def snapshots(self) -> int:
        """Older states that a running state keeps."""
        return int(self.lib.llama_n_rs_seq(self.handle))

    def save(self, seq: int, part: int) -> npt.NDArray[np.uint8]:
        """A part of the state of `seq`, for `load`: uint8 [bytes].

        Raises:
            CacheError: llama.cpp does not give it.
        """
        size = self.lib.llama_state_seq_get_size_ext(self.handle, seq, part)
        state = np.empty(size, np.uint8)
        written = self.lib.llama_state_seq_get_data_ext(self.handle, _bytes(state), size, seq, part)
        if not size or written != size:
            raise CacheError(f"llama.cpp gives {written} of the {size} bytes of a state.")
        return state

    def load(self, seq: int, state: npt.NDArray[np.uint8], part: int) -> bool:
        """Bring a part of the state of `seq` back; whether llama.cpp took it."""
        return bool(
            self.lib.llama_state_seq_set_data_ext(self.handle, _bytes(state), state.size, seq, part) == state.size
        )

    def close(self) -> None:
        """Free the caches; harmless when done twice."""
        if self.handle is not None:
            self.lib.llama_free(self.handle)
            self.handle = None


def _bytes(array: npt.NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


@cache
def _strlen() -> Any:
    """C's strlen, as the abort callback: of a one-byte flag it is 0 (go on) or 1 (stop).

    llama.cpp asks after every graph node from its compute threads. A Python callback there would take the
    interpreter lock a thousand times in a pass; a C function that looks at one byte costs nothing.
    """
    return (ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)).strlen
