"""What speculation needs from a language model, and nothing more.

`spec_local.llama` implements it with llama.cpp, in this process (`padded.open_context`) or in a child
(`hosted.HostedContext`); `tests/` with a table-driven toy, on which every rule is checked exactly.

Whatever a model remembers its tokens by, it is one thing to the layers above: a cache that can be cut back. How far a
cut may have to go back is asked (`foothold`) before it is made (`trim`), and what a rejected draft will have to come
back to is said beforehand (`mark`). Only the model knows whether cells, a window, snapshots or saved states are behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
"""One row per token asked for: float32 [rows, n_vocab]."""
States = npt.NDArray[np.float32]
"""The model's last hidden state of each token of a chunk, before the output layer: float32 [tokens, state_width]."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence, appended to what its cache already holds."""

    seq: int
    """The sequence (cache slot) the tokens belong to."""
    tokens: Sequence[int]
    """At least one token id; the first one sits at position `length(seq)`."""
    rows: int
    """Logits are wanted after each of the last `rows` tokens; 0 for prefill that only fills the cache."""
    states: bool = False
    """The hidden states of all its tokens are wanted too; only a `StatesModel` of `state_width` > 0 has them."""


class MemoryKind(StrEnum):
    """What a model's memory of its tokens allows."""

    ANYWHERE = "anywhere"
    """Cells of single tokens, all kept: it can be cut to any length."""
    WINDOW = "window"
    """Cells of the last tokens only: it can be cut as long as what the window must hold has not been given up."""
    SNAPSHOTS = "snapshots"
    """A running state and the states a few tokens back, of the last pass only; further back, as `CHECKPOINTS`."""
    CHECKPOINTS = "checkpoints"
    """A running state: it can be cut to lengths that were marked; tokens behind the mark are decoded again."""
    NOWHERE = "nowhere"
    """It can only be emptied: nothing can be drafted."""


@dataclass(frozen=True, slots=True)
class Memory:
    """How a cache can be cut back, and what that costs."""

    kind: MemoryKind = MemoryKind.ANYWHERE
    depth: int = 0
    """`SNAPSHOTS`: tokens of one pass that can be taken back without a mark."""
    seconds: float = 0.0
    """What marking and going back to the mark take together; 0.0 where neither is needed."""
    reason: str = ""
    """Why it is not `ANYWHERE`, for a person."""

    @property
    def cuttable(self) -> bool:
        """Whether rejected tokens can be taken out at all."""
        return self.kind is not MemoryKind.NOWHERE

    @property
    def free(self) -> bool:
        """Whether a rejected draft costs nothing but its own rows."""
        return self.kind in (MemoryKind.ANYWHERE, MemoryKind.WINDOW)


class LanguageModel(Protocol):
    """A causal language model with one cache per sequence that can be cut back."""

    @property
    def n_vocab(self) -> int:
        """Entries in a row of logits."""

    @property
    def n_ctx(self) -> int:
        """Tokens the cache of one sequence can hold."""

    @property
    def n_batch(self) -> int:
        """Most tokens one `decode` takes, over all its chunks."""

    @property
    def memory(self) -> Memory:
        """How its caches can be cut back."""

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

    def foothold(self, seq: int, length: int) -> int:
        """The longest beginning, of at most `length` tokens, that the cache of `seq` can be cut back to."""

    def mark(self, seq: int, ahead: int | None = None) -> None:
        """Make the present length of `seq` one that its cache can be cut back to. Free where every length is.

        Args:
            seq: The sequence.
            ahead: The next pass may append so many tokens too many; a memory that can take them back anyway need not
                do anything, and the next mark of this kind takes the place of this one. None: the mark is for later
                turns, and stays until the cache is cut to less (or others of this kind are newer).
        """

    def trim(self, seq: int, length: int) -> None:
        """Cut the cache of `seq` back to its first `length` tokens, and check that it was done.

        Raises:
            CacheError: This cache cannot be cut there: see `foothold`.
        """


@runtime_checkable
class SharingModel(LanguageModel, Protocol):
    """A model whose sequences can take over the beginning of one another's cache, at little or no cost."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the cache of `target` the first `length` tokens of that of `source`.

        Raises:
            CacheError: This cache cannot be copied in part; that of `target` is empty then.
        """


@runtime_checkable
class StatesModel(LanguageModel, Protocol):
    """A model that can hand out what it computed last of each token, before the output layer.

    Drafters that continue from the target's own computation (MTP heads, EAGLE) are fed with these.
    """

    @property
    def state_width(self) -> int:
        """Floats in the state of one token; 0 if this model, or this context of it, gives none."""

    def states(self) -> list[States | None]:
        """What the last `decode` computed of the chunks that asked for it.

        Returns:
            For each chunk of the last `decode`, in its order: float32 [len(chunk.tokens), state_width], valid until
            the next `decode`; None if the chunk did not ask. Empty before the first pass and after one that failed.
        """
