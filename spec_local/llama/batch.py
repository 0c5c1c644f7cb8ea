"""`Batch`: the tokens of a pass, as llama.cpp reads them; and `pieces`, a chunk as the passes that it takes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spec_local.language_model import Chunk


class Batch:
    """A reusable `llama_batch` of at most `room` tokens, filled through numpy."""

    def __init__(self, lib: Any, room: int) -> None:
        self.size = 0
        self._token = np.zeros(room, np.int32)  # [room]
        self._pos = np.zeros(room, np.int32)  # [room]
        self._seq = np.zeros(room, np.int32)  # [room] one sequence for each token
        self._n_seq = np.ones(room, np.int32)  # [room]
        self._output = np.zeros(room, np.int8)  # [room] 1 where logits are wanted
        # llama.cpp wants a pointer to each token's list of sequences; each list is one cell of `_seq`.
        self._seq_at = self._seq.ctypes.data + 4 * np.arange(room + 1, dtype=np.uintp)
        self._seq_at[room] = 0
        int32, int8 = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int8)
        self._struct = lib.llama_batch(
            n_tokens=0,
            token=self._token.ctypes.data_as(int32),
            embd=None,
            pos=self._pos.ctypes.data_as(int32),
            n_seq_id=self._n_seq.ctypes.data_as(int32),
            seq_id=self._seq_at.ctypes.data_as(ctypes.POINTER(int32)),
            logits=self._output.ctypes.data_as(int8),
        )

    def clear(self) -> None:
        """Take all tokens out."""
        self.size = 0

    def add(self, tokens: Sequence[int], start: int, seq: int, rows: int) -> None:
        """Append `tokens` at positions from `start` of sequence `seq`; logits are wanted of the last `rows`."""
        count = len(tokens)
        end = self.size + count
        assert 0 < count and 0 <= rows <= count and end <= len(self._token), (count, rows, end, len(self._token))
        here = slice(self.size, end)
        self._token[here] = tokens
        self._pos[here] = np.arange(start, start + count, dtype=np.int32)
        self._seq[here] = seq
        self._output[here] = 0
        self._output[end - rows : end] = 1
        self.size = end

    def view(self) -> Any:
        """The `llama_batch`, valid until it is filled anew."""
        self._struct.n_tokens = self.size
        return self._struct


def pieces(chunk: Chunk, width: int) -> Iterator[Chunk]:
    """`chunk` cut into chunks of at most `width` tokens, each with those of the wanted rows that fall into it."""
    first = len(chunk.tokens) - chunk.rows
    for start in range(0, len(chunk.tokens), width):
        tokens = chunk.tokens[start : start + width]
        yield replace(chunk, tokens=tokens, rows=min(len(tokens), max(0, start + len(tokens) - first)))
