"""Contexts that add tokens of no use to their passes, and take them out of the caches again.

`PaddedContext` does so to make every pass the same, `FilledContext` to make some of them faster. Both are wrapped
around a plain `Context`, which knows nothing of it; `open_context` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spec_local.errors import Aborted, BackendError, CacheError
from spec_local.language_model import Chunk, Logits, Memory, States
from spec_local.llama.batch import pieces
from spec_local.llama.context import Context, require_room
from spec_local.llama.model import Model
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.native import NativeContext


def open_context(model: Model, options: ContextOptions, abort_flag: Any = None) -> LocalContext:
    """A context in this process.

    Args:
        model: Stays open as long as the context.
        options: How it is made.
        abort_flag: See `Context`.

    Raises:
        BackendError: llama.cpp cannot make the context (most often: not enough memory).
        UsageError: An option does not exist.
    """
    return (PaddedContext if options.pad_width else FilledContext)(model, options, abort_flag)


class LocalContext(ABC):
    """A `ModelContext` around a plain one: what both kinds have in common, which is to know their padding.

    Padding behind the tokens of a sequence is booked before its pass, so that no interrupt can make it look like
    tokens. A running state goes back by a snapshot once only: its padding is taken out together with a rejected draft,
    or before the next pass.
    """

    def __init__(self, inner: Context, options: ContextOptions) -> None:
        self.inner = inner
        """The plain context, whose caches these are."""
        self.options = options
        self.model = inner.model
        self.n_vocab: int = inner.n_vocab
        self.n_ctx: int = options.n_ctx
        self.n_batch: int = max(options.n_batch, options.max_rows, inner.n_batch)
        self.state_width: int = inner.state_width
        self.no_states: str = inner.no_states
        self.width: Callable[[int], int] = int
        """See `ModelContext.width`."""
        self._padding: dict[int, int] = {}  # by sequence: tokens of no use behind its own
        self._most_padding = 0

    @property
    def native(self) -> NativeContext:
        """llama.cpp's own context."""
        return self.inner.native

    @property
    def memory(self) -> Memory:
        """How its caches can be cut back; see `Context.memory`."""
        return self.inner.memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self.inner.memory = memory

    @abstractmethod
    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """See `LanguageModel.decode`."""

    @abstractmethod
    def states(self) -> list[States | None]:
        """See `StatesModel.states`."""

    def length(self, seq: int) -> int:
        """Tokens in the cache of `seq`, by the cache's own account."""
        return max(0, self.inner.length(seq) - self._padding.get(seq, 0))

    def foothold(self, seq: int, length: int) -> int:
        """See `LanguageModel.foothold`."""
        held = self.length(seq)
        if not 0 < length < held:
            return max(0, min(length, held))
        return self.inner.foothold(seq, length)

    def mark(self, seq: int, ahead: int | None = None) -> None:
        """See `LanguageModel.mark`: what the next pass appends too many may be padding."""
        if ahead is not None:
            ahead = max(ahead, self._most_padding)
        if ahead is None or ahead > self.memory.depth:
            self._take_out(seq)
        self.inner.mark(seq, ahead)

    def trim(self, seq: int, length: int) -> None:
        """Cut the cache of `seq` back to `length` tokens; see `LanguageModel.trim`."""
        held = self.length(seq)
        assert 0 <= length <= held, f"trim to {length} of {held}"
        if length == held and length:
            return
        self.inner.trim(seq, length)
        self._padding[seq] = 0

    def copy(self, source: int, target: int, length: int) -> None:
        """See `SharingModel.copy` and `Context.copy`."""
        if self.memory.free:
            self._take_out(source)
        self._padding[target] = 0
        self.inner.copy(source, target, length)

    def checkpoint(self, seq: int) -> bytes:
        """See `ModelContext.checkpoint`."""
        self._take_out(seq)
        return self.inner.checkpoint(seq)

    def restore(self, seq: int, state: bytes) -> None:
        """See `ModelContext.restore`."""
        self._padding[seq] = 0
        self.inner.restore(seq, state)

    def abort(self, stop: bool) -> None:
        """See `ModelContext.abort`."""
        self.inner.abort(stop)

    def sibling(self, options: ContextOptions) -> LocalContext:
        """See `ModelContext.sibling`."""
        return open_context(self.model, options)

    def close(self) -> None:
        """Free the caches; harmless when done twice."""
        self.inner.close()

    def _take_out(self, seq: int) -> None:
        """Take the padding out of the cache of `seq`."""
        if self._padding.get(seq):
            self.inner.trim(seq, self.length(seq))
            self._padding[seq] = 0

    def _decode_padded(self, chunks: Sequence[Chunk], padding: int) -> list[Logits]:
        """A pass of the plain context over `chunks`, of which the last ends with `padding` tokens of no use.

        Returns:
            All rows, of the padding too.
        """
        last = chunks[-1].seq
        self._padding[last] = padding
        try:
            rows = self.inner.decode(chunks)
        except (BackendError, Aborted):
            self._padding[last] = 0
            raise
        if self.memory.free:
            self._take_out(last)
        return rows


class FilledContext(LocalContext):
    """Fills a pass up to `width(rows)` rows of logits where that many are computed faster: kernels work in tiles."""

    def __init__(self, model: Model, options: ContextOptions, abort_flag: Any = None) -> None:
        super().__init__(Context(model, options, abort_flag), options)
        self._added = 0

    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """See `LanguageModel.decode`."""
        for chunk in chunks:
            self._take_out(chunk.seq)
        last = chunks[-1]
        self._added = added = self._missing(chunks)
        if not added:
            return self.inner.decode(chunks)
        filled = replace(last, tokens=[*last.tokens, *[0] * added], rows=last.rows + added)
        rows = self._decode_padded([*chunks[:-1], filled], added)
        rows[-1] = rows[-1][: last.rows]
        return rows

    def states(self) -> list[States | None]:
        """See `StatesModel.states`."""
        found = self.inner.states()
        if self._added and found and found[-1] is not None:
            found[-1] = found[-1][: -self._added]
        return found

    def _missing(self, chunks: Sequence[Chunk]) -> int:
        """Rows to be added to the pass: only where it wants a row of each token, and there is room for them."""
        wanted = sum(chunk.rows for chunk in chunks)
        if wanted != sum(len(chunk.tokens) for chunk in chunks) or not self.memory.free:
            return 0
        added = self.width(wanted) - wanted
        if added <= 0 or wanted + added > self.options.most_rows:
            return 0
        end = self.length(chunks[-1].seq) + len(chunks[-1].tokens)
        return added if end + added <= self.n_ctx else 0


class PaddedContext(LocalContext):
    """Evaluates every pass over exactly `options.pad_width` tokens of one sequence, in a cache of its own.

    In one cache for all, what one sequence rejects is filled by another, whose attention is then summed in another
    order. Here the bits of a row depend neither on how much is asked for at once nor on the other sequences.
    """

    def __init__(self, model: Model, options: ContextOptions, abort_flag: Any = None) -> None:
        width = options.pad_width
        plain = replace(options, pad_width=0, n_ctx=options.n_ctx + width, n_batch=width, max_rows=width, unified=False)
        super().__init__(Context(model, plain, abort_flag), options)
        self._most_padding = width - 1
        self._states: list[States | None] = []

    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """See `LanguageModel.decode`; as many passes as the chunks have pieces of the width."""
        self._states = []
        starts = [self.length(chunk.seq) for chunk in chunks]
        for chunk, start in zip(chunks, starts, strict=True):
            require_room(self.n_ctx, start, chunk)
        wanted = sum(chunk.rows for chunk in chunks)
        assert wanted <= self.options.most_rows, f"{wanted} rows wanted, {self.options.most_rows} reserved"
        parts = [list(pieces(chunk, self.options.pad_width)) for chunk in chunks]
        several = sum(map(len, parts)) > 1  # then the next pass writes its own rows over those of the last
        logits: list[Logits] = []
        states: list[States | None] = []
        try:
            for chunk, mine in zip(chunks, parts, strict=True):
                passes = [self._pass(piece, several) for piece in mine]
                logits.append(_joined([rows for rows, _ in passes]))
                states.append(_joined([found for _, found in passes if found is not None]) if chunk.states else None)
        except (BackendError, Aborted):
            self._undo(chunks, starts)
            raise
        self._states = states
        return logits

    def states(self) -> list[States | None]:
        """See `StatesModel.states`."""
        return list(self._states)

    def close(self) -> None:
        """Free the caches; harmless when done twice."""
        self._states = []
        super().close()

    def _pass(self, piece: Chunk, copied: bool) -> tuple[Logits, States | None]:
        """Logits and hidden states of one pass, without those of its padding."""
        width, count = self.options.pad_width, len(piece.tokens)
        padding = width - count
        # The output layer is part of a padded pass, so it is computed for all rows or none.
        full = replace(piece, tokens=[*piece.tokens, *[0] * padding], rows=width if piece.rows else 0)
        self._take_out(piece.seq)
        (rows,) = self._decode_padded([full], padding)
        (states,) = self.inner.states()
        rows = rows[count - piece.rows : count] if piece.rows else rows
        states = None if states is None else states[:count]
        return (rows.copy(), None if states is None else states.copy()) if copied else (rows, states)

    def _undo(self, chunks: Sequence[Chunk], starts: Sequence[int]) -> None:
        """One of several passes failed, and left its own sequence as it found it: take out what the others appended."""
        for chunk, start in zip(chunks, starts, strict=True):
            if self.length(chunk.seq) > start:
                try:
                    self.trim(chunk.seq, self.foothold(chunk.seq, start))
                except CacheError:
                    self.trim(chunk.seq, 0)


def _joined(parts: list[Logits]) -> Logits:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
