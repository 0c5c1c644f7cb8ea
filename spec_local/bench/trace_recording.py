"""From an answer of the target to a `Trace`: what the draft model would have said at every position of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from spec_local.bench.traces import Trace
from spec_local.drafting.draft import MODEL_SOURCE
from spec_local.drafting.model import confidence
from spec_local.language_model import Chunk, LanguageModel
from spec_local.session.engine import Engine
from spec_local.speculation.sequence import Sequence

ROWS = 32
"""Rows of logits asked for in one pass."""


@contextmanager
def draft_rows(engine: Engine) -> Iterator[LanguageModel | None]:
    """The engine's draft model with a cache of its own that returns many rows in a pass; None where there is none."""
    draft = engine.loaded.draft
    if draft is None or MODEL_SOURCE not in engine.speculator.drafters:
        yield None
        return
    options = replace(draft.options, n_seq=1, max_rows=ROWS, n_batch=max(ROWS, draft.options.n_batch))
    context = draft.sibling(options)
    try:
        yield context
    finally:
        context.close()


def traceable(sequence: Sequence) -> bool:
    """Whether this answer's acceptance would not depend on who decides the draft lengths."""
    return sequence.rule.reproducible or sequence.transform.sampling.temperature == 0


def record_trace(model: LanguageModel | None, sequence: Sequence, name: str, kind: str) -> Trace:
    """One trace. `model` is read from an empty slot 0, in batches, and left empty.

    Args:
        model: The draft model; None: a trace in which it never agrees, for text drafts alone.
        sequence: The finished answer, in whatever way it was decoded.
        name: Of the prompt.
        kind: Of the text.
    """
    start, tokens = sequence.prompt_length, sequence.tokens
    count = len(tokens) - start
    own = np.full(count, -1, np.int32)
    sure = np.zeros(count)
    if model is not None:
        model.trim(0, 0)
        for at in range(0, start - 1, model.n_batch):
            model.decode([Chunk(0, tokens[at : min(at + model.n_batch, start - 1)], 0)])
        for at in range(0, count, ROWS):
            part = tokens[start - 1 + at : start - 1 + min(at + ROWS, count)]
            (rows,) = model.decode([Chunk(0, part, len(part))])
            for i, logits in enumerate(rows, at):
                own[i], sure[i] = _own_token(sequence, logits, start + i)
        model.trim(0, 0)
    return Trace(name, kind, sequence.transform.sampling.temperature, tokens[:start], tokens[start:], own, sure)


def _own_token(sequence: Sequence, logits: np.ndarray, position: int) -> tuple[int, float]:
    """What the draft model would draw for `position` from float32 [n_vocab] logits, and how sure it is."""
    transform = sequence.draft_transform
    history = transform.history(sequence.tokens[:position])
    row = transform.row(logits[: transform.n_vocab], history, position)
    token = sequence.rule.draft_token(row, sequence.noise.for_round(position), position)
    return token, confidence(logits, token)
