"""The draft model as a drafter: a smaller model races ahead, one batched step for all sequences at a time.

Its cache holds a prefix of each sequence and, until the next draft, drafted tokens that were rejected. A drafted token
is decoded only when another one is drawn after it, so the last token of every draft, and a draft that is never made,
cost no step; what the cache lacks is caught up in one batch.

Where another drafter expects tokens (`DraftRequest.guess`), the model reads them along: a pass decodes them behind the
tokens it is for, and where the model draws the very same ones, the rows after them are there already. A draft is token
for token the same with or without; it only takes fewer passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spec_local.drafting.draft import MODEL_SOURCE, Draft
from spec_local.drafting.drafter import BaseDrafter, DraftRequest, Offer
from spec_local.drafting.token_cache import TokenCache, common_prefix
from spec_local.errors import NoTokenError
from spec_local.language_model import Chunk, LanguageModel, Logits
from spec_local.sampling.constraint import Walk
from spec_local.sampling.row import Row


@dataclass(slots=True)
class _Stream:
    """One sequence while its draft is being made."""

    request: DraftRequest
    room: int
    """Tokens the draft's context has room for."""
    width: int = 1
    """Most tokens of one step."""
    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    decoded: int = 0
    """Drafted tokens that are in the draft's cache."""
    guess: Sequence[int] = ()
    """Tokens read along in the pass under way."""
    passes: list[int] = field(default_factory=list)
    """Rows of each pass."""
    stuck: bool = False
    """What the request asks for leaves no token that this model could draw; what comes of it is the target's to say."""

    def draw(self, logits: Logits) -> None:
        """Draw the next token from float32 [n_vocab] logits."""
        request = self.request
        position = len(request.tokens) + len(self.tokens)
        history = request.transform.history(request.tokens, self.tokens)
        try:
            allowed = None if request.walk is None else request.walk.allowed(self.tokens)
            allowed = None if allowed is None else allowed[: request.transform.n_vocab]
            row = request.transform.row(logits[: request.transform.n_vocab], history, position, allowed)
        except NoTokenError:
            self.stuck = True
            return
        token = request.rule.draft_token(row, request.noise, position)
        self.tokens.append(token)
        self.rows.append(row)
        self.confidence.append(confidence(logits, token))
        if request.walk is not None and token not in request.transform.end_ids:
            self._spell(request.walk)

    def _spell(self, walk: Walk) -> None:
        """Append what the grammar makes certain: it costs no draft step of its own."""
        wanted = min(self.request.limit, self.room) - len(self.tokens)
        for token in walk.forced(self.tokens, min(wanted, self.width - 1)):
            self.tokens.append(token)
            self.rows.append(Row(np.array([token], np.int32), np.ones(1)))
            self.confidence.append(1.0)

    def step(self, needed: Sequence[int], most_rows: int) -> Chunk:
        """The next pass: the tokens that the cache lacks, and behind them what is worth reading along."""
        request = self.request
        room = min(
            min(request.limit, self.room) - len(self.tokens) - 1, self.width - len(needed), most_rows - 1
        )  # nothing is drawn after the last token that fits
        self.guess = ()
        if request.guess is not None and room > 0:
            self.guess = request.guess(self.tokens, len(needed))[:room]
        self.decoded = len(self.tokens)
        self.passes.append(len(needed) + len(self.guess))
        return Chunk(request.slot, [*needed, *self.guess], 1 + len(self.guess))

    def take(self, rows: Logits) -> bool:
        """Draw from float32 [1 + guessed, n_vocab] rows for as long as what is drafted is what was guessed.

        Returns:
            Whether another pass is wanted.
        """
        start, guess = self.decoded, list(self.guess)
        while True:
            self.draw(rows[len(self.tokens) - start])
            drafted = self.tokens[start:]
            self.decoded = start + common_prefix(drafted, guess)
            if self.full():
                return False
            if self.decoded < len(self.tokens):
                return self.request.more(self.confidence)
            # The next row is there. Only where no drafted token may be dropped again must its cost be asked about.
            if not self.request.rule.tolerates_truncation and not self.request.more(self.confidence):
                return False

    def full(self) -> bool:
        """Whether nothing can be drawn after what is drafted."""
        request = self.request
        return (
            self.stuck
            or len(self.tokens) >= min(request.limit, self.room)
            or self.tokens[-1] in request.transform.end_ids
        )


class ModelDrafter(BaseDrafter):
    """Drafts with a language model that shares the target's vocabulary (longer or shorter tails are cut).

    Args:
        model: The draft model, one cache slot per sequence.
        most_rows: Most rows of logits the model gives for one sequence in a pass: 1 never reads along.
    """

    source = MODEL_SOURCE

    def __init__(self, model: LanguageModel, most_rows: int = 1) -> None:
        self.model = model
        self.most_rows = most_rows
        self._cache = TokenCache(model)
        self._known: dict[int, int] = {}
        """By slot: how many tokens of the cache are the history's, since nobody said `forget`."""

    def offer(self, request: DraftRequest) -> Offer | None:
        """How far a draft could go, and how many rows its first step computes.

        Nothing if the tokens hold ids that this model does not know, or if its own context is full.
        """
        tokens, lag = request.tokens, self.lag(request.slot, request.tokens)
        room = min(self._room(tokens), request.limit)
        known = all(token < self.model.n_vocab for token in tokens[len(tokens) - lag :])
        return Offer(room, lag=lag) if room > 0 and known else None

    def lag(self, slot: int, tokens: Sequence[int]) -> int:
        """How many of `tokens` the cache of `slot` lacks, or has to compute again."""
        shared = self._cache.shared(slot, tokens, self._known.get(slot, 0))
        return len(tokens) - self.model.foothold(slot, shared)

    def read(self, slot: int, tokens: Sequence[int], most: int) -> int:
        """Compute at most `most` of `tokens`, as many as fit a pass; what this or another slot holds of them is kept.

        Raises:
            Aborted: Stopped on request; what was decoded stays.
            BackendError: The pass failed, or the cache cannot be cut back: this drafter is of no more use.
        """
        chunk = self._cache.behind(slot, tokens, min(most, self.model.n_batch), self._known.pop(slot, 0))
        if chunk is not None:
            self._cache.decode([chunk])
        if len(self._cache.tokens(slot)) == len(tokens):
            self._cache.mark(slot)  # what another answer may come back to
        return 0 if chunk is None else len(chunk.tokens)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request; all live drafts take each step in one pass.

        Raises:
            Aborted: Stopped on request.
            BackendError: A pass failed, or the cache cannot be cut back: this drafter is of no more use.
        """
        streams = [_Stream(request, self._room(request.tokens)) for request in requests]
        live = [stream for stream in streams if stream.room > 0]
        for stream in live:
            stream.width = self.model.n_batch // len(live)
        most_rows = self.most_rows // len(live) if live and self.model.memory.free else 0
        chunks = [self._first_step(stream, most_rows) for stream in live]
        while live:
            wanting = []
            for stream, rows in zip(live, self._cache.decode(chunks), strict=True):
                self._known.setdefault(stream.request.slot, len(stream.request.tokens))
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
        if len(self._cache.tokens(slot)) > length:
            self._cache.cut(slot, length)

    def _next_step(self, stream: _Stream, most_rows: int) -> Chunk:
        """The drafted tokens that the cache lacks; what it read along in vain is cut."""
        slot, history = stream.request.slot, len(stream.request.tokens)
        if len(self._cache.tokens(slot)) > history + stream.decoded:
            self._cache.cut(slot, history + stream.decoded)
        if len(self._cache.tokens(slot)) == history:  # from here on, what is decoded may be rejected
            self._cache.mark(slot, stream.request.limit)
        return stream.step(stream.tokens[stream.decoded :], most_rows)

    def _first_step(self, stream: _Stream, most_rows: int) -> Chunk:
        """Everything the cache lacks of the history, its last token included, which is read again for its row."""
        slot, tokens = stream.request.slot, stream.request.tokens
        held = self._cache.shared(slot, tokens, self._known.pop(slot, 0))
        held = self._cache.cut(slot, min(self._cache.adopt(slot, tokens, held), len(tokens) - 1))
        while len(tokens) - held > stream.width:
            stream.passes.append(self.read(slot, tokens[:-1], len(tokens) - held - stream.width))
            held = len(self._cache.tokens(slot))
        return stream.step(tokens[held:], most_rows)

    def _room(self, tokens: Sequence[int]) -> int:
        """Most tokens of a draft after `tokens`: until the model's own context is full."""
        return self.model.n_ctx - len(tokens) + 1


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
