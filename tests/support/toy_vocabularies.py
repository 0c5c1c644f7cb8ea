"""A toy draft model of another vocabulary: other ids, tokens that only one of the two has, its own begin-of-text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from toy_model import Table, ToyModel
from toy_runs import DRAFT, VOCABULARY

from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.vocabulary_map import NO_PARTNER, VocabularyMap

BEGIN, LEFT, RIGHT, UNKNOWN = range(4)
"""Draft ids without a partner; the second and third spell what only the target has: `<`, `<>`, `<>>` and so on."""
FOREIGN = [token for token in range(VOCABULARY) if token % 4 == 3]
"""Tokens that only the target has."""
SHARED = [token for token in reversed(range(VOCABULARY)) if token not in FOREIGN]
PARTNERS = [NO_PARTNER] * 4 + SHARED


def other_vocabulary() -> VocabularyMap:
    """The map from the toys' vocabulary to the draft's."""
    return VocabularyMap(
        VOCABULARY,
        len(PARTNERS),
        PARTNERS,
        text=lambda token: b"<" + b">" * FOREIGN.index(token),
        pieces=lambda: {b"<": LEFT, b">": RIGHT},
        begin=[BEGIN],
    )


def other_model(table: Table = DRAFT, **options: Any) -> ToyModel:
    """A draft model that reads and writes the other vocabulary."""
    partners = np.array(PARTNERS)

    def logits(ids: Sequence[int]) -> npt.NDArray[np.float32]:
        row = np.where(partners >= 0, table(read(ids) or [0])[partners], np.float32(1.0))
        return np.asarray(row, np.float32)

    return ToyModel(logits, len(PARTNERS), **options)


def read(ids: Sequence[int]) -> list[int]:
    """The tokens that draft ids spell."""
    tokens: list[int] = []
    for id in ids:
        if id == RIGHT:
            tokens[-1] = FOREIGN[FOREIGN.index(tokens[-1]) + 1]
        elif id != BEGIN:
            tokens.append(FOREIGN[0] if id == LEFT else PARTNERS[id])
    return tokens


def other_drafter(most_rows: int = 1, **options: Any) -> ModelDrafter:
    """The drafter over it."""
    return ModelDrafter(other_model(**options), most_rows, other_vocabulary())
