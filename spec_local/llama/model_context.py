"""What a context is to the layers above: a model with its caches, and how it is made.

`padded.open_context` makes one in this process, `hosted.Host.open` one in a child process; who has one need not know
which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spec_local.language_model import SharingModel, StatesModel
from spec_local.llama.kernels.library import Taken
from spec_local.llama.model import Model

CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
"""Cache element types and their ggml numbers."""


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
    unified: bool = True
    """One cache for all sequences, which fill the cells that others give up, or (False) one for each."""
    states: bool = False
    """Have passes leave the hidden states of all their tokens; `state_width` says whether this model can."""

    @property
    def most_rows(self) -> int:
        """Rows of logits there is room for: those of the widest pass."""
        return max(self.max_rows, self.pad_width, self.n_seq)


class ModelContext(SharingModel, StatesModel, Protocol):
    """Caches of `options.n_seq` sequences over one model. Used from one thread; only `abort` may come from another."""

    options: ContextOptions
    width: Callable[[int], int]
    """Rows with which a pass over so many rows is evaluated, where there is room and its memory is free to be cut: set
    where more are faster. Padded passes have a width of their own."""

    @property
    def model(self) -> Model:
        """Stays open as long as the context."""

    @property
    def no_states(self) -> str:
        """Why `state_width` is 0, for a person; empty where it is not."""

    def checkpoint(self, seq: int) -> bytes:
        """The whole state of one sequence, for `restore`."""

    def restore(self, seq: int, state: bytes) -> None:
        """Bring sequence `seq` back to a state from `checkpoint`.

        Raises:
            CacheError: llama.cpp does not take the state.
        """

    def abort(self, stop: bool) -> None:
        """Stop the pass that is running and every further one (True), or allow passes again. Any thread may call it."""

    def sibling(self, options: ContextOptions) -> ModelContext:
        """Another context over the same weights.

        Raises:
            BackendError: llama.cpp cannot make the context (most often: not enough memory).
            UsageError: An option does not exist.
        """

    def close(self) -> None:
        """Free the caches; harmless when done twice."""
