"""The draft model as a drafter: a smaller model races ahead, one batched step for all sequences at a time.

Its cache holds a prefix of each sequence and, until the next draft, drafted tokens that were rejected. A drafted token
is decoded only when another one is drawn after it, so the last token of every draft, and a draft that is never made,
cost no step; what the cache lacks is caught up in one batch.

Where another drafter expects tokens (`DraftRequest.guess`), the model reads them along: a pass decodes them behind the
tokens it is for, and where the model draws the very same ones, the rows after them are there already. A draft is token
for token the same with or without; it only takes fewer passes.

Tokens are the target's, here and outside. What the model reads and its cache holds are *ids*: the model's own, as the
`VocabularyMap` spells the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spec_local.drafting.draft import MODEL_SOURCE, Draft
from spec_local.drafting.drafter import BaseDrafter, DraftRequest, Offer
from spec_local.drafting.token_cache import TokenCache, common_prefix
from spec_local.drafting.vocabulary_map import Spelling, VocabularyMap
from spec_local.errors import NoTokenError
from spec_local.language_model import Chunk, LanguageModel, Logits
from spec_local.sampling.constraint import Walk
from spec_local.sampling.row import Row


@dataclass(slots=True)
class _Stream:
    """One sequence while its draft is being made."""

    request: DraftRequest
    vocabulary: VocabularyMap
    history: int
    """Ids of the request's tokens."""
    room: int
    """Ids the draft's context has room for after them, the last of which need not be decoded."""
    width: int = 1
    """Most ids of one step."""
    tokens: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """The drafted tokens as the model reads them."""
    rows: list[Row] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    decoded: int = 0
    """Drafted ids that are in the draft's cache."""
    guess: Sequence[int] = ()
    """Tokens read along in the pass under way."""
    passes: list[int] = field(default_factory=list)
    """Rows of each pass."""
    stuck: bool = False
    """What the request asks for leaves no token that this model could draw; what comes of it is the target's to say."""

    def draw(self, logits: Logits) -> None:
        """Draw the next token from the model's float32 [n_vocab] logits."""
        request = self.request
        position = len(request.tokens) + len(self.tokens)
        history = request.transform.history(request.tokens, self.tokens)
        try:
            allowed = None if request.walk is None else request.walk.allowed(self.tokens)
            row = request.transform.row(self.vocabulary.row(logits), history, position, allowed)
        except NoTokenError:
            self.stuck = True
            return
        token = request.rule.draft_token(row, request.noise, position)
        (id,) = self.vocabulary.token(token)  # it was drawn from the model's row, so the model has it
        self._append(token, (id,), row, confidence(logits, id))
        if request.walk is not None and token not in request.transform.end_ids:
            self._append_certain(request.walk)

    def _append_certain(self, walk: Walk) -> None:
        """Append what the grammar makes certain: it costs no draft step of its own."""
        most = min(len(self.ids) + self.width - 1, self.room)
        for token in walk.forced(self.tokens, self.request.limit - len(self.tokens)):
            ids = self.vocabulary.token(token)
            if len(self.ids) + len(ids) > most:
                break
            self._append(token, ids, Row(np.array([token], np.int32), np.ones(1)), 1.0)

    def _append(self, token: int, ids: Sequence[int], row: Row, confidence: float) -> None:
        self.tokens.append(token)
        self.ids.extend(ids)
        self.rows.append(row)
        self.confidence.append(confidence)

    def step(self, needed: Sequence[int], most_rows: int) -> Chunk:
        """The next pass: the ids that the cache lacks, and behind them what is worth reading along."""
        request = self.request
        left = min(request.limit - len(self.tokens), self.room - len(self.ids))
        room = min(left - 1, self.width - len(needed), most_rows - 1)  # nothing is drawn after the last one that fits
        guess: Sequence[int] = ()
        if request.guess is not None and room > 0:
            guess = request.guess(self.tokens, len(needed))[:room]
        along: list[int] = []
        for token in guess:  # one row each: as far as the model has these very tokens
            ids = self.vocabulary.token(token)
            if len(ids) != 1:
                break
            along += ids
        self.guess = guess[: len(along)]
        self.decoded = len(self.ids)
        self.passes.append(len(needed) + len(along))
        return Chunk(request.slot, [*needed, *along], 1 + len(along))

    def take(self, rows: Logits) -> bool:
        """Draw from float32 [1 + guessed, n_vocab] rows for as long as what is drafted is what was guessed.

        Returns:
            Whether another pass is wanted.
        """
        start, drafted, guess = self.decoded, len(self.tokens), list(self.guess)
        while True:
            self.draw(rows[self.decoded - start])
            self.decoded = start + common_prefix(self.tokens[drafted:], guess)  # one id each
            if self.full():
                return False
            if self.decoded < len(self.ids):
                return self.request.more(self.confidence)
            # The next row is there. Only where no drafted token may be dropped again must its cost be asked about.
            if not self.request.rule.tolerates_truncation and not self.request.more(self.confidence):
                return False

    def full(self) -> bool:
        """Whether nothing can be drawn after what is drafted."""
        request = self.request
        return (
            self.stuck
            or len(self.tokens) >= request.limit
            or len(self.ids) >= self.room
            or self.tokens[-1] in request.transform.end_ids
        )


class ModelDrafter(BaseDrafter):
    """Drafts with a language model.

    Args:
        model: The draft model, one cache slot per sequence.
        most_rows: Most rows of logits the model gives for one sequence in a pass: 1 never reads along.
        vocabulary: How the model reads and writes the target's tokens; None: they have the same ids.
    """

    source = MODEL_SOURCE

    def __init__(self, model: LanguageModel, most_rows: int = 1, vocabulary: VocabularyMap | None = None) -> None:
        self.model = model
        self.most_rows = most_rows
        self.vocabulary = vocabulary or VocabularyMap(model.n_vocab, model.n_vocab)
        self._spelling = Spelling(self.vocabulary)
        self._cache = TokenCache(model)
        self._known: dict[int, int] = {}
        """By slot: how many ids of the cache are the history's, since nobody said `forget`."""

    def offer(self, request: DraftRequest) -> Offer | None:
        """How far a draft could go, and how many rows its first step computes.

        Nothing if the model's own context is full.
        """
        room = min(self._room(len(self._spelling.ids(request.slot, request.tokens))), request.limit)
        return None if room <= 0 else Offer(room, lag=self.lag(request.slot, request.tokens))

    def lag(self, slot: int, tokens: Sequence[int]) -> int:
        """Ids that the first step of a draft after `tokens` computes: those its cache lacks, the last one at least."""
        ids = self._spelling.ids(slot, tokens)
        held = self.model.foothold(slot, self._cache.shared(slot, ids, self._known.get(slot, 0)))
        return max(1, len(ids) - held)

    def read(self, slot: int, tokens: Sequence[int], most: int) -> int:
        """Compute at most `most` ids of `tokens`, as many as fit a pass; what this or another slot holds of them stays.

        Raises:
            Aborted: Stopped on request; what was decoded stays.
            BackendError: The pass failed, or the cache cannot be cut back: this drafter is of no more use.
        """
        return self._read(slot, self._spelling.ids(slot, tokens), most)

    def _read(self, slot: int, ids: Sequence[int], most: int) -> int:
        chunk = self._cache.behind(slot, ids, min(most, self.model.n_batch), self._known.pop(slot, 0))
        if chunk is not None:
            self._cache.decode([chunk])
        if len(self._cache.tokens(slot)) == len(ids):
            self._cache.mark(slot)  # what another answer may come back to
        return 0 if chunk is None else len(chunk.tokens)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request; all live drafts take each step in one pass.

        Raises:
            Aborted: Stopped on request.
            BackendError: A pass failed, or the cache cannot be cut back: this drafter is of no more use.
        """
        spelled = [self._spelling.ids(request.slot, request.tokens) for request in requests]
        streams = [
            _Stream(request, self.vocabulary, len(ids), self._room(len(ids)))
            for request, ids in zip(requests, spelled, strict=True)
        ]
        live = [stream for stream in streams if stream.room > 0]
        for stream in live:
            stream.width = self.model.n_batch // len(live)
        most_rows = self.most_rows // len(live) if live and self.model.memory.free else 0
        chunks = [
            self._first_step(stream, ids, most_rows)
            for stream, ids in zip(streams, spelled, strict=True)
            if stream.room > 0
        ]
        while live:
            wanting = []
            for stream, rows in zip(live, self._cache.decode(chunks), strict=True):
                self._known.setdefault(stream.request.slot, stream.history)
                if stream.take(rows):
                    wanting.append(stream)
            live = wanting
            chunks = [self._next_step(stream, most_rows) for stream in live]
        return [Draft(s.tokens, s.rows, self.source, s.confidence, s.passes) for s in streams]

    def forget(self, slot: int, length: int) -> None:
        """The history of `slot` is now only its first `length` tokens.

        Raises:
            CacheError: The cache cannot be cut back: this drafter is of no more use.
        """
        ids = self._spelling.length(slot, length)
        if len(self._cache.tokens(slot)) > ids:
            self._cache.cut(slot, ids)

    def _next_step(self, stream: _Stream, most_rows: int) -> Chunk:
        """The drafted ids that the cache lacks; what it read along in vain is cut."""
        slot, history = stream.request.slot, stream.history
        if len(self._cache.tokens(slot)) > history + stream.decoded:
            self._cache.cut(slot, history + stream.decoded)
        if len(self._cache.tokens(slot)) == history:  # from here on, what is decoded may be rejected
            self._cache.mark(slot, stream.request.limit)
        return stream.step(stream.ids[stream.decoded :], most_rows)

    def _first_step(self, stream: _Stream, ids: Sequence[int], most_rows: int) -> Chunk:
        """Everything the cache lacks of the history `ids`, the last one included, which is read again for its row."""
        slot = stream.request.slot
        held = self._cache.shared(slot, ids, self._known.pop(slot, 0))
        held = self._cache.cut(slot, min(self._cache.adopt(slot, ids, held), len(ids) - 1))
        while len(ids) - held > stream.width:
            stream.passes.append(self._read(slot, ids[:-1], len(ids) - held - stream.width))
            held = len(self._cache.tokens(slot))
        return stream.step(ids[held:], most_rows)

    def _room(self, ids: int) -> int:
        """Most ids of a draft after so many: until the model's own context is full. None after none at all."""
        return self.model.n_ctx - ids + 1 if ids else 0


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
