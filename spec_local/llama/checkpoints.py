"""Saved states of sequences whose memory is a running state: the way back for models that cannot be cut.

Only what cannot be cut is saved. Of a hybrid model that is the running state alone: its attention layers keep a cell
for every token and are simply cut, so a saved state stays good for as long as the tokens before it are not cut away.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spec_local.errors import CacheError

_PARTIAL = 1
"""LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: only what cannot be cut."""
_LASTING = 3
"""Marks for later turns kept of one sequence."""
SAVED_STATES = _LASTING + 1
"""States saved of one sequence at most: those, and the one a draft may come back to."""


@dataclass(frozen=True, slots=True)
class _Saved:
    length: int
    """Tokens the sequence held."""
    state: npt.NDArray[np.uint8]
    lasting: bool


class Checkpoints:
    """The saved states of one context, by sequence."""

    def __init__(self, lib: Any, context: Any) -> None:
        self._lib = lib
        self._context = context
        self._saved: dict[int, list[_Saved]] = {}  # oldest first, lengths ascending

    def save(self, seq: int, length: int, lasting: bool) -> None:
        """Remember the state of `seq`, which holds `length` tokens."""
        if length == 0:
            return  # emptying needs no saved state
        kept = [s for s in self._saved.get(seq, []) if s.length < length and (s.lasting or lasting)]
        there = next((s for s in self._saved.get(seq, []) if s.length == length), None)
        state = self._read(seq) if there is None else there.state
        kept.append(_Saved(length, state, lasting or (there is not None and there.lasting)))
        surplus = sum(s.lasting for s in kept) - _LASTING
        if surplus > 0:  # the first one stays: what every later turn begins with
            kept = [kept[0], *kept[1 + surplus :]]
        self._saved[seq] = kept

    def best(self, seq: int, length: int) -> int:
        """The longest saved beginning of at most `length` tokens; 0 where there is none."""
        return max((s.length for s in self._saved.get(seq, []) if s.length <= length), default=0)

    def forget(self, seq: int, length: int) -> None:
        """`seq` was cut to `length` tokens: states behind that are of another text."""
        self._saved[seq] = [s for s in self._saved.get(seq, []) if s.length <= length]

    def restore(self, seq: int, length: int) -> None:
        """Bring the running state of `seq` back to `length` tokens, of which there is a saved state.

        Raises:
            CacheError: llama.cpp does not take the state.
        """
        state = next(s.state for s in self._saved[seq] if s.length == length)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if self._lib.llama_state_seq_set_data_ext(self._context, pointer, state.size, seq, _PARTIAL) != state.size:
            self._saved[seq] = []
            raise CacheError(f"llama.cpp does not take back a state of {length} tokens that it gave.")

    def _read(self, seq: int) -> npt.NDArray[np.uint8]:
        size = self._lib.llama_state_seq_get_size_ext(self._context, seq, _PARTIAL)
        state = np.empty(size, np.uint8)  # [size]
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = self._lib.llama_state_seq_get_data_ext(self._context, pointer, size, seq, _PARTIAL)
        if not size or written != size:
            raise CacheError(f"llama.cpp gives {written} of the {size} bytes of a state.")
        return state
