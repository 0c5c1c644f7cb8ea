"""Saved states of sequences whose memory cannot be cut everywhere: the way back to lengths that were marked.

Only what cannot be cut is saved. Of a hybrid model that is the running state alone: its attention layers keep a cell
for every token and are simply cut, so a saved state stays good for as long as the tokens before it are not cut away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spec_local.errors import CacheError
from spec_local.llama.native import UNCUTTABLE, NativeContext

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

    def __init__(self, native: NativeContext) -> None:
        self._native = native
        self._saved: dict[int, list[_Saved]] = {}  # oldest first, lengths ascending

    def save(self, seq: int, length: int, lasting: bool) -> None:
        """Remember the state of `seq`, which holds `length` tokens."""
        if length == 0:
            return  # emptying needs no saved state
        kept = [s for s in self._saved.get(seq, []) if s.length < length and (s.lasting or lasting)]
        there = next((s for s in self._saved.get(seq, []) if s.length == length), None)
        state = self._native.save(seq, UNCUTTABLE) if there is None else there.state
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

    def go_back(self, seq: int, length: int) -> None:
        """Bring `seq` back to `length` tokens by the state saved there, or empty it (0).

        Raises:
            CacheError: The saved state is not taken back; the cache is empty then.
        """
        try:
            if length:
                state = next(s.state for s in self._saved[seq] if s.length == length)
                if not self._native.load(seq, state, UNCUTTABLE):
                    raise CacheError(f"llama.cpp does not take back a state of {length} tokens that it gave.")
            self._native.remove(seq, length)
        except CacheError:
            self.forget(seq, 0)
            self._native.remove(seq, 0)
            raise
        self.forget(seq, length)
