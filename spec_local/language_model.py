"""What speculation needs from a language model, and nothing more.

Two implementations exist: `spec_local.llama.context.Context` (llama.cpp) and the table-driven toy in
`tests/`, on which every rule is checked exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
"""One row per token asked for: float32 [rows, n_vocab]."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence, appended to what its cache already holds."""

    seq: int
    """The sequence (cache slot) the tokens belong to."""
    tokens: Sequence[int]
    """At least one token id; the first one sits at position `length(seq)`."""
    rows: int
    """Logits are wanted after each of the last `rows` tokens; 0 for prefill that only fills the cache."""


class LanguageModel(Protocol):
    """A causal language model with one trimmable cache per sequence."""

    @property
    def n_vocab(self) -> int:
        """Entries in a row of logits."""

    @property
    def n_ctx(self) -> int:
        """Tokens the cache of one sequence can hold."""

    @property
    def n_batch(self) -> int:
        """Most tokens one `decode` takes, over all its chunks."""

    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """Evaluate all chunks in one pass and append them to their caches.

        Returns:
            For each chunk float32 [chunk.rows, n_vocab], read in place: valid until the next `decode`.

        Raises:
            CacheError: There is no room for the tokens.
            BackendError: The pass failed.
            Aborted: The pass was stopped on request.
            After each of these the caches are as they were before the pass, or empty where that cannot be had:
            `length` tells.
        """

    def length(self, seq: int) -> int:
        """Tokens the cache of `seq` really holds (its own highest position + 1)."""

    def trim(self, seq: int, length: int) -> None:
        """Cut the cache of `seq` back to its first `length` tokens, and check that it was done.

        Raises:
            CacheError: This cache cannot be cut there.
        """


@runtime_checkable
class SharingModel(LanguageModel, Protocol):
    """A model whose sequences can take over the beginning of one another's cache, at no cost worth counting."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the cache of `target` the first `length` tokens of that of `source`.

        Raises:
            CacheError: This cache cannot be copied in part; that of `target` is empty then.
        """
