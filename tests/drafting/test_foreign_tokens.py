"""A history with ids the draft model has no entry for: nothing is drafted until it is cut back to before them."""

from __future__ import annotations

import pytest
from toy_model import Table
from toy_runs import DRAFT, VOCABULARY, WARM, draft_model, make_sequence, read, speculator

from spec_local.drafting.model import ModelDrafter

SMALL = Table(VOCABULARY - 3, seed=2, scale=0.7, near=DRAFT)


@pytest.mark.parametrize("foreign", [[SMALL.n_vocab], [VOCABULARY - 1, 1, 2]])
def test_a_foreign_token_stops_the_draft_until_it_is_cut_off(foreign: list[int]) -> None:
    drafter = ModelDrafter(draft_model(SMALL))
    prompt = [1, 2, 3, 4]
    engine = speculator({"model": drafter}, 3)

    def first_round(*history: int) -> str:
        sequence = make_sequence(WARM, seed=3, prompt=history, draft_vocab=SMALL.n_vocab)
        read(engine, sequence)
        engine.step([sequence])
        return sequence.rounds[-1].source

    assert first_round(*prompt) == "model"
    assert first_round(*prompt, *foreign) == "none"
    assert first_round(*foreign, *prompt) == "none"
    assert first_round(*prompt, *foreign, 5, 6) == "none"
    assert first_round(*prompt) == "model"
    assert not engine.off
