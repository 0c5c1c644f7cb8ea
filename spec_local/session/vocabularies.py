"""How a loaded draft model reads and writes the target's tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spec_local.drafting.vocabulary_map import VocabularyMap

if TYPE_CHECKING:
    from spec_local.llama.model_context import ModelContext
    from spec_local.models_manifest import Header, PairReport


def map_vocabularies(
    pair: PairReport, target: ModelContext, draft: ModelContext, target_header: Header
) -> VocabularyMap:
    """The map between the vocabularies of a pair that fits.

    Each model gets the begin-of-text token that its own tokenizer puts in front: where ids differ, the draft does not
    read the target's.
    """
    shared, ours = pair.shared, target_header.tokenizer
    assert shared is not None, "a pair that fits has a vocabulary"
    theirs = shared.draft
    mapped = not shared.same_ids
    return VocabularyMap(
        target.n_vocab,
        draft.n_vocab,
        shared.partners if mapped else None,
        text=partial(target.model.vocabulary.piece, special=True),
        pieces=shared.pieces,
        begin=[theirs.bos] if mapped and theirs.add_bos and theirs.bos is not None else [],
        silent=[ours.bos] if mapped and ours.add_bos and ours.bos is not None else [],
    )
