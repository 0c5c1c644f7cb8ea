"""Many sequences in one round: one pass for all, and each gets exactly what it would get alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from toy_drafters import junk, perfect
from toy_model import ToyModel
from toy_runs import (
    DRAFT,
    GREEDY,
    TARGET,
    VOCABULARY,
    WARM,
    Watched,
    draft_model,
    go_on,
    make_sequence,
    model_drafter,
    plain,
    play,
    read,
    speculator,
    target_model,
    text_drafter,
)

from spec_local.drafting.drafter import Drafter
from spec_local.drafting.model import ModelDrafter
from spec_local.speculation.sequence import Sequence

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (GREEDY, {"prompt": [1, 2, 3], "max_tokens": 30}),
    (WARM, {"prompt": [4], "seed": 1, "max_tokens": 7}),
    (WARM, {"prompt": list(range(20)), "seed": 2, "max_tokens": 55, "ends": [3]}),
    ({**WARM, "repeat_penalty": 1.5, "penalty_last_n": -1}, {"prompt": [9, 9, 9, 9], "seed": 1, "max_tokens": 40}),
    (GREEDY, {"prompt": [5, 6], "max_tokens": 1}),
    (WARM, {"prompt": [4], "seed": 9, "n_ctx": 33, "max_tokens": None}),
    (WARM, {"prompt": [4, 5], "seed": 3, "max_tokens": 20, "speculate": False}),
    (GREEDY, {"prompt": [7, 8], "max_tokens": 0}),
]


def _sequences() -> list[Sequence]:
    return [make_sequence(settings, slot=slot, **options) for slot, (settings, options) in enumerate(CASES)]


def _expected() -> list[Sequence]:
    return [plain(settings, **{**options, "speculate": False}) for settings, options in CASES]


def _drafters(kind: str) -> dict[str, Drafter]:
    slots = len(CASES)
    makers: dict[str, Callable[[], dict[str, Drafter]]] = {
        "model": lambda: model_drafter(slots=slots),
        "text": text_drafter,
        "both": lambda: {**model_drafter(slots=slots), **text_drafter()},
        "junk": lambda: {"text": junk(VOCABULARY, seed=3)},
        "none": dict,
    }
    return makers[kind]()


@pytest.mark.parametrize("kind", ["model", "text", "both", "junk", "none"])
def test_each_gets_what_it_gets_alone(kind: str) -> None:
    expected = _expected()
    for length, max_rows in ((4, 64), (7, 64), (4, 11), (4, 3)):
        sequences = _sequences()
        target = target_model(slots=len(CASES))
        play(speculator(_drafters(kind), length, target=target, max_rows=max_rows), *sequences)
        for sequence, alone in zip(sequences, expected, strict=True):
            assert sequence.tokens == alone.tokens
            assert (sequence.finish, sequence.limit) == (alone.finish, alone.limit)


def test_one_target_pass_a_round_and_one_draft_pass_a_step() -> None:
    sequences = _sequences()
    target, draft = target_model(slots=len(CASES)), draft_model(slots=len(CASES), n_batch=256)
    engine = speculator({"model": ModelDrafter(draft)}, 4, target=target, max_rows=64)
    for sequence in sequences:
        read(engine, sequence)
    while active := [s for s in sequences if s.finish is None]:
        before = len(target.calls), len(draft.calls)
        records = engine.step(sequences)
        assert len(target.calls) == before[0] + 1
        assert len(draft.calls) - before[1] == max(r.drafted for r in records)
        assert [chunk.seq for chunk in target.calls[-1]] == [s.slot for s in active]
        assert all(chunk.rows == len(chunk.tokens) for chunk in target.calls[-1])
        assert all(r.sequences == len(active) for r in records)


@pytest.mark.parametrize("max_rows", [1, 3, 8, 9, 17, 40])
def test_rows_of_a_pass_are_limited(max_rows: int) -> None:
    sequences = [make_sequence(WARM, slot=i, seed=i) for i in range(3)]
    target = target_model()
    play(speculator(model_drafter(), 7, target=target, max_rows=max_rows), *sequences)
    widest = max(sum(chunk.rows for chunk in call) for call in target.calls)
    assert widest <= max(max_rows, 3)
    if max_rows >= 9:
        assert widest > 3


def test_sequences_come_and_go_while_others_run() -> None:
    """Eight requests over three slots, as a batch does it: a free slot is filled again at once."""
    chance = random.Random(1)
    requests: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (settings, {"seed": i, "prompt": [i % VOCABULARY, 2, i % 5], "max_tokens": chance.randint(1, 30)})
        for i, settings in enumerate([GREEDY, WARM] * 5)
    ]
    waiting = list(enumerate(requests))
    engine = speculator({**model_drafter(), **text_drafter()}, 4)
    running: dict[int, tuple[int, Sequence]] = {}
    done: dict[int, list[int]] = {}
    while waiting or running:
        for slot in range(3):
            if slot not in running and waiting:
                number, (settings, options) = waiting.pop(0)
                running[slot] = number, make_sequence(settings, slot=slot, **options)
                read(engine, running[slot][1])
        go_on(engine, *(sequence for _, sequence in running.values()), rounds=1)
        for slot, (number, sequence) in list(running.items()):
            if sequence.finish:
                done[number] = sequence.tokens
                del running[slot]
                if chance.random() < 0.5:
                    engine.release(slot)
                    assert engine.target.length(slot) == 0
    for number, (settings, options) in enumerate(requests):
        assert done[number] == plain(settings, **options).tokens


def test_one_sequence_with_damaged_logits_ends_alone() -> None:
    """NaN in one sequence's rows is that sequence's error; the others do not notice."""
    good = plain(WARM, seed=4, prompt=[4, 4])
    healthy = plain(WARM, seed=5, prompt=[6, 1], max_tokens=40)
    bad_after = healthy.tokens[14:16]

    def damaged(tokens: Any) -> Any:
        row = TARGET(tokens)
        return np.full_like(row, np.nan) if list(tokens[-2:]) == bad_after else row

    alone = make_sequence(WARM, seed=5, prompt=[6, 1], max_tokens=40)
    play(speculator({}, 0, target=ToyModel(damaged, VOCABULARY)), alone)
    assert (alone.finish, alone.tokens) == ("error", healthy.tokens[:16])
    assert "NaN" in str(alone.error)
    for drafters in (model_drafter(), text_drafter(), {"text": junk(VOCABULARY)}, {"text": perfect(healthy.tokens)}):
        first = make_sequence(WARM, seed=4, prompt=[4, 4], slot=0)
        second = make_sequence(WARM, seed=5, prompt=[6, 1], max_tokens=40, slot=1)
        play(speculator(drafters, 7, target=ToyModel(damaged, VOCABULARY)), first, second)
        assert first.tokens == good.tokens
        assert second.tokens == alone.tokens  # the tokens before the damage are there, as without a draft
        assert (second.finish, str(second.error)) == ("error", str(alone.error))


def test_draft_caches_of_all_slots_follow_their_own_histories() -> None:
    sequences = _sequences()
    draft = Watched(DRAFT, sequences, slots=len(CASES))
    play(speculator({"model": ModelDrafter(draft)}, 5, target=target_model(slots=len(CASES)), max_rows=64), *sequences)
    assert any(len(call) > 2 for call in draft.calls)
