"""The draft model as a drafter: a smaller model races ahead, one batched step for all sequences at a time.

Its cache holds a prefix of each sequence. A drafted token is decoded only when another one is drawn after it, so the
last token of every draft, and a draft that is never made, cost no step; what the cache lacks is caught up in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spec_local.drafting.draft import Draft
from spec_local.drafting.drafter import DraftRequest
from spec_local.errors import CacheError
from spec_local.language_model import Chunk, LanguageModel, Logits
from spec_local.sampling.row import Row


@dataclass(slots=True)
class _Stream:
    """One sequence while its draft is being made."""

    request: DraftRequest
    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    def draw(self, logits: Logits) -> None:
        """Draw the next token from float32 [n_vocab] logits."""
        request = self.request
        position = len(request.tokens) + len(self.tokens)
        window = request.transform.history_length
        history = recent(request.tokens, self.tokens, window) if window else ()
        row = request.transform.row(logits[: request.transform.n_vocab], history, position)
        token = request.rule.draft_token(row, request.noise, position)
        self.tokens.append(token)
        self.rows.append(row)
        self.confidence.append(confidence(logits, token))

    def wants_more(self) -> bool:
        request = self.request
        if len(self.tokens) >= request.limit or self.tokens[-1] in request.transform.end_ids:
            return False
        return request.more(self.confidence)


class ModelDrafter:
    """Drafts with a language model that shares the target's vocabulary (longer or shorter tails are cut).

    Args:
        model: The draft model, one cache slot per sequence.
    """

    source = "model"

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._held: dict[int, list[int]] = {}
        """Token ids in the draft's cache, by slot."""

    def lag(self, slot: int, tokens: Sequence[int]) -> int:
        """Tokens of `tokens` the cache of `slot` does not hold yet."""
        return len(tokens) - common_prefix(self._held.get(slot, ()), tokens)

    def room(self, tokens: Sequence[int]) -> int:
        """Tokens that can be drafted after `tokens` before the draft's own context is full."""
        return max(0, self.model.n_ctx - len(tokens) + 1)

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Bring the cache of `slot` up to `tokens`, in batches.

        Raises:
            Aborted: Stopped on request; what was decoded stays.
        """
        held = self._sync(slot, tokens)
        while len(held) < len(tokens):
            self._decode([Chunk(slot, tokens[len(held) : len(held) + self.model.n_batch], 0)])

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request; all live drafts take each step in one pass."""
        streams = [_Stream(request) for request in requests]
        live = [stream for stream in streams if self.room(stream.request.tokens) > 0]
        chunks = [self._first_step(stream.request, self.model.n_batch // len(live)) for stream in live]
        while live:
            for stream, logits in zip(live, self._decode(chunks), strict=True):
                stream.draw(logits[0])
            live = [s for s in live if self.room(s.request.tokens) > len(s.tokens) and s.wants_more()]
            chunks = [Chunk(s.request.slot, s.tokens[-1:], 1) for s in live]
        return [Draft(s.tokens, s.rows, self.source, s.confidence) for s in streams]

    def forget(self, slot: int, length: int) -> None:
        """The history of `slot` is now only its first `length` tokens."""
        held = self._held.get(slot, [])
        if len(held) > length:
            self._cut(slot, length)

    def _first_step(self, request: DraftRequest, room: int) -> Chunk:
        """Everything the cache lacks, the last token included, as one chunk of at most `room` tokens."""
        slot, tokens = request.slot, request.tokens
        held = self._sync(slot, tokens[:-1])
        if len(tokens) - len(held) > room:
            self.prefill(slot, tokens[:-room])
        return Chunk(slot, tokens[len(held) :], 1)

    def _sync(self, slot: int, tokens: Sequence[int]) -> list[int]:
        """Cut the cache of `slot` back to what it shares with `tokens`; returns the ids it holds."""
        held = self._held.setdefault(slot, [])
        shared = common_prefix(held, tokens)
        if shared < len(held):
            self._cut(slot, shared)
        return self._held[slot]

    def _cut(self, slot: int, length: int) -> None:
        held = self._held[slot]
        try:
            self.model.trim(slot, length)
        except CacheError:
            if length == 0:
                raise
            self.model.trim(slot, 0)  # what cannot be cut is read again from its start
            length = 0
        del held[length:]

    def _decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        try:
            rows = self.model.decode(chunks)
        except Exception:
            for chunk in chunks:  # a failed pass may have cost more than itself: believe the cache
                del self._held[chunk.seq][self.model.length(chunk.seq) :]
            raise
        for chunk in chunks:
            self._held[chunk.seq].extend(chunk.tokens)
        return rows


def confidence(logits: Logits, token: int) -> float:
    """How sure a row of float32 [n_vocab] logits is of `token`: its probability, at most 1 (an upper bound).

    The normaliser sums the maxima of 64 interleaved blocks' columns instead of all entries: the few large ones, which
    are all that matters for telling sure from unsure, are nearly always in different columns, and it costs a tenth.
    """
    columns = len(logits) // 64
    maxima = np.maximum.reduce(logits[: 64 * columns].reshape(64, columns), axis=0) if columns else logits
    own, top = float(logits[token]), float(maxima.max())
    top = max(top, own)
    total = float(np.exp(maxima - np.float32(top)).sum())
    return min(1.0, float(np.exp(own - top)) / max(total, 1e-30))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two token lists."""
    short = min(len(a), len(b))
    if a[:short] == b[:short]:
        return short
    low, high = 0, short  # invariant: the first `low` agree, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low


def recent(tokens: Sequence[int], drafted: Sequence[int], window: int) -> list[int]:
    """The last `window` of `tokens` followed by `drafted` (-1: all of them)."""
    if window < 0:
        return [*tokens, *drafted]
    kept = max(0, window - len(drafted))
    return [*(tokens[-kept:] if kept else ()), *drafted[-window:]]
