"""The toy's hidden states: what a drafter of tests can continue from, and nothing that could pass for it."""

from __future__ import annotations

import numpy as np
import pytest
from toy_model import Table, ToyModel

from spec_local.errors import BackendError
from spec_local.language_model import Chunk, StatesModel

TABLE = Table(11, seed=3, order=3)
TOKENS = [4, 8, 1, 9, 9, 2, 5]


def test_a_state_and_the_next_token_are_what_the_logits_after_it_are_made_of() -> None:
    model = ToyModel(TABLE, 11, state_width=2)
    assert isinstance(model, StatesModel)
    (logits,) = model.decode([Chunk(0, TOKENS, len(TOKENS), states=True)])
    (states,) = model.states()
    assert states is not None and states.shape == (len(TOKENS), 2) and states.dtype == np.float32
    for position in range(1, len(TOKENS)):
        before = [int(token) for token in states[position - 1] if token >= 0]
        assert np.array_equal(TABLE([*before, TOKENS[position]]), logits[position])
    assert states[0].tolist() == [-1, 4]


def test_states_are_of_the_chunks_that_asked_and_end_with_the_next_pass() -> None:
    model = ToyModel(TABLE, 11, state_width=2)
    model.decode([Chunk(1, [3, 4], 1), Chunk(0, [7], 0, states=True)])
    none, states = model.states()
    assert none is None and states is not None and states.tolist() == [[-1, 7]]
    model.fail_at(1)
    with pytest.raises(BackendError):
        model.decode([Chunk(0, [8], 1, states=True)])
    assert model.states() == []
    assert np.isnan(states).all()


def test_a_toy_without_states_is_asked_in_vain() -> None:
    model = ToyModel(TABLE, 11)
    with pytest.raises(AssertionError, match="has none"):
        model.decode([Chunk(0, [7], 0, states=True)])
