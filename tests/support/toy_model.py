"""A language model small enough to reason about: logits from a table, caches that are lists, faults at will.

It is strict where llama.cpp is silent: a token outside the vocabulary, a slot named twice or a batch that is too long
is a failed assertion, and a row turns into NaN with the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from spec_local.errors import Aborted, BackendError, CacheError
from spec_local.language_model import Chunk, Logits, Memory, MemoryKind, States


class Table:
    """Logits float32 [n_vocab] as a deterministic function of the last `order` tokens.

    Args:
        n_vocab: Entries of a row.
        seed: Another seed, another table.
        order: How many last tokens matter.
        scale: Standard deviation of the logits: the larger, the surer the model.
        near: A table to stay close to: logits are its own plus noise of `scale`.
    """

    def __init__(
        self, n_vocab: int, seed: int = 0, *, order: int = 2, scale: float = 2.0, near: Table | None = None
    ) -> None:
        self.n_vocab = n_vocab
        self.seed = seed
        self.order = order
        self.scale = scale
        self.near = near
        self._rows: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

    def __call__(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        key = tuple(tokens[-self.order :])
        row = self._rows.get(key)
        if row is None:
            noise = np.random.default_rng([self.seed, len(key), *key]).normal(size=self.n_vocab) * self.scale
            base = np.zeros(self.n_vocab) if self.near is None else np.resize(self.near(tokens), self.n_vocab)
            row = self._rows[key] = (base + noise).astype(np.float32)
        return row


class ToyModel:
    """`LanguageModel` over a table.

    Args:
        logits: Row after a list of tokens, at least one; float32 [n_vocab].
        n_vocab: Entries of a row.
        n_ctx: Tokens one slot can hold.
        n_batch: Most tokens in one pass.
        slots: Sequences.
        memory: How its caches can be cut back.
        state_width: Floats in a hidden state; 0: it gives none. The state of a token is the ids of the last so many
            tokens up to it, the latest last and -1 where there are none: enough to look up in a table what follows it
            and a further token, and wrong for any other position.
    """

    def __init__(
        self,
        logits: Callable[[Sequence[int]], npt.NDArray[np.float32]],
        n_vocab: int,
        *,
        n_ctx: int = 512,
        n_batch: int = 64,
        slots: int = 4,
        memory: Memory | None = None,
        state_width: int = 0,
    ) -> None:
        self.logits = logits
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.state_width = state_width
        self._states: list[States | None] = []
        self.memory = memory or Memory()
        """A running state is strict here: what was not marked, and is in no snapshot, cannot be cut to."""
        self.marks: list[dict[int, bool]] = [{} for _ in range(slots)]
        """By slot: marked lengths, and whether they are for later turns."""
        self.undo = [0] * slots
        """By slot: tokens of the last pass that snapshots hold."""
        self.caches: list[list[int]] = [[] for _ in range(slots)]
        self.calls: list[list[Chunk]] = []
        """Every pass that was asked for, failed ones included."""
        self.trims: list[tuple[int, int]] = []
        """(slot, length) of every cut that was asked for."""
        self.copies: list[tuple[int, int, int]] = []
        """(source, target, length) of every copy that was asked for."""
        self.trim_mode: Literal["works", "refuses", "lies", "never"] = "works"
        """refuses: only emptying works; lies: says nothing and does nothing, but empties; never: not even that."""
        self.failures: dict[int, Exception] = {}
        """By index of the call: what it raises instead of computing."""
        self.loses_cache = False
        """A failed pass empties the caches it was about, as a running state that cannot be wound back would."""
        self._rows: Logits = np.empty((0, n_vocab), np.float32)

    def fail_at(self, *calls: int, error: type[Exception] = BackendError) -> None:
        """Let the passes with these indices (counted from 0 over the model's life) fail."""
        for call in calls:
            self.failures[call] = error(f"pass {call} was made to fail")

    def abort_at(self, *calls: int) -> None:
        """Let the passes with these indices be stopped."""
        self.fail_at(*calls, error=Aborted)

    @property
    def decoded(self) -> int:
        """Tokens evaluated so far."""
        return sum(len(chunk.tokens) for call in self.calls for chunk in call)

    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        assert chunks
        assert len({chunk.seq for chunk in chunks}) == len(chunks), "a slot stands twice in one pass"
        assert sum(len(chunk.tokens) for chunk in chunks) <= self.n_batch, "the batch is too long"
        for chunk in chunks:
            assert 0 <= chunk.rows <= len(chunk.tokens)
            assert len(chunk.tokens) > 0
            assert self.state_width or not chunk.states, "states of a model that has none"
            assert all(0 <= token < self.n_vocab for token in chunk.tokens), "no such token"
            if len(self.caches[chunk.seq]) + len(chunk.tokens) > self.n_ctx:
                raise CacheError("the toy's context is full")
        for states in self._states:
            if states is not None:
                states[...] = np.nan
        self._states = []
        self._rows[...] = np.nan  # rows are valid until the next pass, and not a moment longer
        index = len(self.calls)
        self.calls.append([Chunk(chunk.seq, list(chunk.tokens), chunk.rows, chunk.states) for chunk in chunks])
        if index in self.failures:
            if self.loses_cache:
                for chunk in chunks:
                    self.caches[chunk.seq].clear()
                    self.marks[chunk.seq].clear()
                    self.undo[chunk.seq] = 0
            raise self.failures[index]
        self._rows = np.empty((sum(chunk.rows for chunk in chunks), self.n_vocab), np.float32)
        views, at = [], 0
        for chunk in chunks:
            cache = self.caches[chunk.seq]
            self.undo[chunk.seq] = min(self.memory.depth, len(chunk.tokens) - 1)
            view = self._rows[at : at + chunk.rows]
            states = np.empty((len(chunk.tokens), self.state_width), np.float32) if chunk.states else None
            self._states.append(states)
            for i, token in enumerate(chunk.tokens):
                cache.append(token)
                if states is not None:
                    states[i] = ([-1] * self.state_width + cache)[-self.state_width :]
                row = i - (len(chunk.tokens) - chunk.rows)
                if row >= 0:
                    view[row] = self.logits(cache)
            at += chunk.rows
            view.flags.writeable = False
            views.append(view)
        return views

    def states(self) -> list[States | None]:
        return list(self._states)

    def copy(self, source: int, target: int, length: int) -> None:
        assert source != target
        assert 0 < length <= len(self.caches[source])
        self.copies.append((source, target, length))
        self.caches[target].clear()
        assert self.memory.free, "a running state was copied in part"
        if self.trim_mode != "works":
            raise CacheError("the toy copies no parts")
        self.caches[target].extend(self.caches[source][:length])

    def length(self, seq: int) -> int:
        return len(self.caches[seq])

    def mark(self, seq: int, ahead: int | None = None) -> None:
        running = self.memory.kind in (MemoryKind.SNAPSHOTS, MemoryKind.CHECKPOINTS)
        if not running or not self.caches[seq] or (ahead is not None and ahead <= self.memory.depth):
            return
        kept = {at: lasting for at, lasting in self.marks[seq].items() if lasting or ahead is None}
        length = len(self.caches[seq])
        self.marks[seq] = {**kept, length: kept.get(length, False) or ahead is None}

    def foothold(self, seq: int, length: int) -> int:
        held = len(self.caches[seq])
        if self.memory.free or length >= held:
            return max(0, min(length, held))
        if self.memory.kind is MemoryKind.SNAPSHOTS and held - length <= self.undo[seq]:
            return max(0, length)
        return max((at for at in self.marks[seq] if at <= length), default=0)

    def trim(self, seq: int, length: int) -> None:
        cache = self.caches[seq]
        assert 0 <= length <= len(cache), f"cut to {length} of {len(cache)}"
        self.trims.append((seq, length))
        if length == len(cache):
            return
        if length and self.foothold(seq, length) != length:
            raise CacheError(f"the toy holds no state of {length} tokens")
        self.undo[seq] = 0
        self.marks[seq] = {at: lasting for at, lasting in self.marks[seq].items() if at <= length}
        if self.trim_mode == "never" or (self.trim_mode == "refuses" and length):
            raise CacheError(f"the toy refuses to be cut to {length} tokens")
        if self.trim_mode == "lies" and length:
            return
        del cache[length:]
