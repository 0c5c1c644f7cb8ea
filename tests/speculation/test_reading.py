"""Prompts of several sequences, a chunk of each in one pass: who reads what, and what a failing pass leaves."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st
from toy_model import ToyModel
from toy_runs import (
    VOCABULARY,
    WARM,
    go_on,
    make_sequence,
    model_drafter,
    plain,
    read,
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


def _chunks(target: ToyModel, call: int) -> list[tuple[int, int, int]]:
    return [(chunk.seq, len(chunk.tokens), chunk.rows) for chunk in target.calls[call]]


def test_prompts_that_fit_one_pass_are_read_in_one() -> None:
    sequences = _sequences(_prompt(1, 8), _prompt(2, 3), _prompt(3, 20))
    target = target_model()
    engine = speculator({**model_drafter(), **text_drafter()}, 4, target=target)
    engine.step(sequences)
    assert _chunks(target, 0) == [(0, 7, 0), (1, 2, 0), (2, 19, 0)]
    assert [s.reading.computed for s in sequences] == [7, 2, 19]
    go_on(engine, *sequences)
    for sequence in sequences:
        alone = plain(WARM, seed=sequence.slot, prompt=sequence.tokens[: sequence.prompt_length])
        assert sequence.tokens == alone.tokens


def test_what_a_slot_held_before_is_still_counted() -> None:
    engine = speculator({}, target=target_model())
    first = make_sequence(WARM, prompt=SHARED)
    read(engine, first)
    again, other = _sequences([*SHARED[:12], 7, 7, 7], _prompt(2, 9))
    engine.step([again, other])
    assert (read(engine, again), read(engine, other)) == (12, 0)


def test_what_does_not_fit_is_read_in_chunks_and_the_first_come_first() -> None:
    target = target_model(n_batch=16)
    engine = speculator({}, target=target, max_rows=4)
    sequences = _sequences(_prompt(1, 10), _prompt(2, 40), _prompt(3, 7))
    engine.step(sequences)
    assert _chunks(target, 0) == [(0, 9, 0), (1, 7, 0)]
    engine.step(sequences)  # the first one plays its first round beside what is left of the second prompt
    assert _chunks(target, 1) == [(0, 1, 1), (1, 15, 0)]
    go_on(engine, *sequences)
    for sequence in sequences:
        alone = plain(WARM, seed=sequence.slot, prompt=sequence.tokens[: sequence.prompt_length])
        assert sequence.tokens == alone.tokens


def test_a_live_sequence_waits_for_a_small_chunk_only() -> None:
    target = target_model(n_batch=64)
    engine = speculator({}, target=target)
    live, long = _sequences(_prompt(1, 4), _prompt(2, 60))
    live.live = True
    read(engine, live)
    go_on(engine, live, rounds=3)
    while long.reading.computed < 59:
        engine.step([live, long])
        assert [chunk.rows for chunk in target.calls[-1]] == [1, 0], "a round and a chunk in one pass"
        assert len(target.calls[-1][1].tokens) <= engine._pacing.room() or long.reading.computed <= 8
    assert target.calls[-1][1].tokens, "and it is read to its end"
    go_on(engine, live, long)
    assert live.tokens == plain(WARM, seed=0, prompt=live.tokens[:4]).tokens
    assert long.tokens == plain(WARM, seed=1, prompt=long.tokens[:60]).tokens


def test_a_prefix_in_common_is_computed_once() -> None:
    target = target_model()
    engine = speculator({}, target=target)
    sequences = _sequences(*([*SHARED, *_prompt(seed, 6)] for seed in range(4)))
    engine.step(sequences)
    assert _chunks(target, 0) == [(0, 25, 0)], "the first alone"
    engine.step(sequences)
    assert [len(chunk.tokens) for chunk in target.calls[1]] == [1, 5, 5, 5], "then the others in one pass"


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("error", [BackendError, Aborted])
def test_after_a_pass_that_fails_each_can_be_tried_alone(error: type[Exception], loses: bool) -> None:
    target = target_model()
    target.loses_cache = loses
    engine = speculator({}, target=target)
    sequences = _sequences(_prompt(1, 8), _prompt(2, 5))
    target.fail_at(0, 1, error=error)
    with pytest.raises(error):
        engine.step(sequences)
    with pytest.raises(error):
        read(engine, sequences[0])
    assert read(engine, sequences[1]) == 0
    assert read(engine, sequences[0]) == 0
    assert [target.caches[s.slot] for s in sequences] == [s.tokens[:-1] for s in sequences]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_prompts_over_any_caches_and_faults(data: st.DataObject) -> None:
    """Whatever the slots held, in whatever chunks prompts were read: the texts are those of plain decoding."""
    target = target_model(n_batch=data.draw(st.integers(4, 64)))
    target.loses_cache = data.draw(st.booleans())
    engine = speculator({**model_drafter(), **text_drafter()}, 4, target=target, max_rows=data.draw(st.integers(4, 8)))
    for _ in range(data.draw(st.integers(1, 3))):
        slots = data.draw(st.permutations(range(4)))[: data.draw(st.integers(1, 4))]
        sequences = [
            make_sequence(
                WARM,
                slot=slot,
                max_tokens=data.draw(st.integers(1, 8)),
                prompt=SHARED[: data.draw(st.integers(0, 20))] + _prompt(slot, data.draw(st.integers(1, 30))),
            )
            for slot in slots
        ]
        for sequence in sequences:
            sequence.live = data.draw(st.booleans())
        target.failures = {len(target.calls) + 1: BackendError("made to fail")} if data.draw(st.booleans()) else {}
        while any(sequence.finish is None for sequence in sequences):
            with suppress(BackendError):
                engine.step(sequences)
        for s in sequences:
            prompt = s.tokens[: s.prompt_length]
            assert s.tokens == plain(WARM, prompt=prompt, max_tokens=s.max_tokens).tokens
            assert 0 <= s.reading.computed
