"""A history with ids the draft model has no entry for: it reads them spelt in its own, and drafts all the same."""

from __future__ import annotations

import pytest
from toy_model import Table
from toy_runs import DRAFT, VOCABULARY, WARM, draft_model, make_sequence, plain, play, read, speculator

from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.vocabulary_map import VocabularyMap

SMALL = Table(VOCABULARY - 3, seed=2, scale=0.7, near=DRAFT)


@pytest.mark.parametrize("foreign", [[SMALL.n_vocab], [VOCABULARY - 1, 1, 2]])
def test_foreign_tokens_are_read_in_the_drafts_own(foreign: list[int]) -> None:
    vocabulary = VocabularyMap(VOCABULARY, SMALL.n_vocab, text=lambda _: b"xy", pieces=lambda: {b"x": 7, b"y": 8})
    drafter = ModelDrafter(model := draft_model(SMALL), vocabulary=vocabulary)
    prompt = [1, 2, 3, 4]
    engine = speculator({"model": drafter}, 3)

    def first_round(*history: int) -> str:
        sequence = make_sequence(WARM, seed=3, prompt=history)
        read(engine, sequence)
        engine.step([sequence])
        spelt = [id for token in history for id in ((token,) if token < SMALL.n_vocab else (7, 8))]
        assert model.caches[0][: len(spelt)] == spelt
        return sequence.rounds[-1].source

    for history in ((*prompt,), (*prompt, *foreign), (*foreign, *prompt), (*prompt, *foreign, 5, 6), (*prompt,)):
        assert first_round(*history) == "model"
    assert not engine.off


def test_the_text_with_foreign_tokens_in_it_is_that_of_plain_decoding() -> None:
    ban = dict.fromkeys(range(0, SMALL.n_vocab, 2), -100.0)  # so that the target often says what the draft lacks
    settings = {**WARM, "logit_bias": ban}
    expected = plain(settings, seed=4, max_tokens=60)
    assert any(token >= SMALL.n_vocab for token in expected.emitted)
    vocabulary = VocabularyMap(VOCABULARY, SMALL.n_vocab, text=lambda _: b"x", pieces=lambda: {b"x": 7})
    for length in (1, 3, 6):
        sequence = make_sequence(settings, seed=4, max_tokens=60)
        play(speculator({"model": ModelDrafter(draft_model(SMALL), vocabulary=vocabulary)}, length), sequence)
        assert sequence.tokens == expected.tokens
        assert sum(record.accepted for record in sequence.rounds) > 0
