"""Prompts of several sequences read in one pass: what fits, what is left to each alone, what a failing pass leaves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st
from toy_runs import (
    VOCABULARY,
    WARM,
    go_on,
    make_sequence,
    model_drafter,
    plain,
    speculator,
    target_model,
    text_drafter,
)

from spec_local.errors import Aborted, BackendError
from spec_local.speculation.sequence import Sequence

SHARED = list(range(20))


def _prompt(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(VOCABULARY) for _ in range(length)]


def _sequences(*prompts: list[int]) -> list[Sequence]:
    return [make_sequence(WARM, slot=slot, seed=slot, prompt=prompt) for slot, prompt in enumerate(prompts)]


def test_prompts_that_fit_one_pass_are_read_in_one() -> None:
    sequences = _sequences(_prompt(1, 8), _prompt(2, 3), _prompt(3, 20))
    target = target_model()
    engine = speculator({**model_drafter(), **text_drafter()}, 4, target=target)
    engine.read_ahead(sequences)
    assert [(chunk.seq, len(chunk.tokens), chunk.rows) for chunk in target.calls[0]] == [
        (0, 7, 0),
        (1, 2, 0),
        (2, 19, 0),
    ]
    assert [engine.prefill(sequence) for sequence in sequences] == [0, 0, 0], "what was read ahead was not there before"
    assert len(target.calls) == 1
    go_on(engine, *sequences)
    for sequence in sequences:
        alone = plain(WARM, seed=sequence.slot, prompt=sequence.tokens[: sequence.prompt_length])
        assert sequence.tokens == alone.tokens


def test_what_a_slot_held_before_is_still_counted() -> None:
    engine = speculator({}, target=target_model())
    first = make_sequence(WARM, prompt=SHARED)
    engine.prefill(first)
    again, other = _sequences([*SHARED[:12], 7, 7, 7], _prompt(2, 9))
    engine.read_ahead([again, other])
    assert (engine.prefill(again), engine.prefill(other)) == (12, 0)


def test_one_that_does_not_fit_is_left_and_the_others_are_read() -> None:
    target = target_model(n_batch=16)
    engine = speculator({}, target=target)
    sequences = _sequences(_prompt(1, 10), _prompt(2, 40), _prompt(3, 7))
    engine.read_ahead(sequences)
    assert [chunk.seq for chunk in target.calls[0]] == [0, 2]
    for sequence in sequences:
        engine.prefill(sequence)
        assert target.caches[sequence.slot] == sequence.tokens[:-1]
    assert len(target.calls) == 1 + 3


def test_a_prefix_in_common_is_computed_once() -> None:
    target = target_model()
    engine = speculator({}, target=target)
    sequences = _sequences(*([*SHARED, *_prompt(seed, 6)] for seed in range(4)))
    for number, sequence in enumerate(sequences):
        engine.read_ahead(sequences[number:])
        engine.prefill(sequence)
    assert target.decoded == 25 + 3 * 5
    assert len(target.calls) == 2, "the first alone, then the others in one pass"


def test_there_is_no_pass_for_one() -> None:
    target = target_model()
    engine = speculator({}, target=target)
    engine.read_ahead(_sequences(_prompt(1, 8), [5]))
    engine.read_ahead([])
    assert target.calls == []


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("error", [BackendError, Aborted])
def test_a_pass_that_fails_says_so_to_nobody_and_each_is_tried_alone(error: type[Exception], loses: bool) -> None:
    target = target_model()
    target.loses_cache = loses
    engine = speculator({}, target=target)
    sequences = _sequences(_prompt(1, 8), _prompt(2, 5))
    target.fail_at(0, 1, error=error)
    engine.read_ahead(sequences)
    with pytest.raises(error):
        engine.prefill(sequences[0])
    assert engine.prefill(sequences[1]) == 0
    assert engine.prefill(sequences[0]) == 0
    assert [target.caches[s.slot] for s in sequences] == [s.tokens[:-1] for s in sequences]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_prompts_over_any_caches_and_faults(data: st.DataObject) -> None:
    """Whatever was read ahead, or was not: `prefill` leaves the cache of each exactly as it should be."""
    target = target_model(n_batch=data.draw(st.integers(4, 64)))
    target.loses_cache = data.draw(st.booleans())
    engine = speculator({**model_drafter(), **text_drafter()}, 4, target=target)
    for _ in range(data.draw(st.integers(1, 4))):
        slots = data.draw(st.permutations(range(4)))[: data.draw(st.integers(1, 4))]
        sequences = [
            make_sequence(
                WARM,
                slot=slot,
                prompt=SHARED[: data.draw(st.integers(0, 20))] + _prompt(slot, data.draw(st.integers(1, 30))),
            )
            for slot in slots
        ]
        target.failures = {len(target.calls): BackendError("made to fail")} if data.draw(st.booleans()) else {}
        engine.read_ahead(sequences)
        target.failures = {}
        for sequence in sequences:
            kept = engine.prefill(sequence)
            assert 0 <= kept <= len(sequence.tokens) - 1
            assert target.caches[sequence.slot] == sequence.tokens[:-1]
        go_on(engine, *sequences, rounds=data.draw(st.integers(0, 3)))
