"""The promise of the coupled rule, exactly: one seed, one text, whoever drafts and however far."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from toy_drafters import Breaking, FunctionDrafter, junk, perfect, wrong
from toy_model import Table
from toy_runs import (
    DRAFT,
    GREEDY,
    PROMPT,
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
    text_drafter,
)

from spec_local.drafting.drafter import Drafter
from spec_local.drafting.model import ModelDrafter
from spec_local.speculation.controller import Controller, FixedController
from spec_local.speculation.cost import CostProfile, Curve
from spec_local.speculation.policy import AdaptiveController
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator
from spec_local.speculation.statistics import summarise

SETTINGS: dict[str, Mapping[str, Any]] = {
    "greedy": GREEDY,
    "warm": WARM,
    "truncated": {"temperature": 1.1, "top_k": 7, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
    "repeat penalty": {**WARM, "repeat_penalty": 1.4, "penalty_last_n": 6},
    "frequency and presence, whole history": {
        **WARM,
        "frequency_penalty": 0.7,
        "presence_penalty": 0.4,
        "penalty_last_n": -1,
    },
    "bias and bans": {**WARM, "logit_bias": {2: 3.0, 7: -100.0, 11: -2.5}},
    "min tokens": {**WARM, "min_tokens": 17, "logit_bias": {5: 2.0}},
}
"""The last one also biases the end token, so that only min_tokens keeps the text going."""

COMBINED = "model, then text"


def _adaptive(length: int = 8) -> Controller:
    costs = CostProfile(Curve({1: 1.0, 4: 1.2, 8: 1.5}), Curve({1: 0.1, 4: 0.12}))
    return AdaptiveController(costs, longest=length)


def _drafters(name: str, text: list[int]) -> dict[str, Drafter]:
    makers: dict[str, Callable[[], dict[str, Drafter]]] = {
        "model": model_drafter,
        "poor model": lambda: model_drafter(Table(VOCABULARY, seed=99)),
        "model with a smaller vocabulary": lambda: model_drafter(Table(VOCABULARY - 4, seed=2, scale=0.5, near=TARGET)),
        "model with a larger vocabulary": lambda: model_drafter(Table(VOCABULARY + 9, seed=2, scale=0.5, near=TARGET)),
        "model with a short context": lambda: model_drafter(n_ctx=len(PROMPT) + 11),
        "text": text_drafter,
        COMBINED: lambda: {**model_drafter(), **text_drafter()},
        "always wrong": lambda: {"text": wrong(text, VOCABULARY)},
        "perfect": lambda: {"text": perfect(text)},
        "junk": lambda: {"text": junk(VOCABULARY)},
        "silent": lambda: {"text": FunctionDrafter(lambda _tokens, _limit: [])},
    }
    return makers[name]()


DRAFTERS = (
    "model",
    "poor model",
    "model with a smaller vocabulary",
    "model with a larger vocabulary",
    "model with a short context",
    "text",
    COMBINED,
    "always wrong",
    "perfect",
    "junk",
    "silent",
)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_any_drafter_any_length_same_tokens(drafter: str, settings: str) -> None:
    ends = [5] if settings == "min tokens" else []
    seed = len(drafter) * len(settings)
    expected = _plain(settings, seed, tuple(ends))
    assert settings != "min tokens" or 17 <= len(expected.emitted)
    for controller in (1, 4, 7, _adaptive()):
        sequence = make_sequence(SETTINGS[settings], seed=seed, ends=ends)
        play(speculator(_drafters(drafter, expected.tokens), controller), sequence)
        assert sequence.tokens == expected.tokens
        assert (sequence.finish, sequence.limit) == (expected.finish, expected.limit)


@cache
def _plain(settings: str, seed: int, ends: tuple[int, ...]) -> Sequence:
    return plain(SETTINGS[settings], seed=seed, ends=ends)


def test_seeds_differ_and_the_toy_is_worth_testing_on() -> None:
    texts = {tuple(plain(WARM, seed=seed).emitted) for seed in range(6)}
    assert len(texts) == 6
    assert all(len(set(text)) > 10 for text in texts)


def test_acceptance_is_1_for_the_perfect_and_0_for_the_always_wrong() -> None:
    expected = plain(WARM, seed=3)
    for drafter, rate in ((perfect(expected.tokens), 1.0), (wrong(expected.tokens, VOCABULARY), 0.0)):
        for length in (1, 4, 8):
            sequence = make_sequence(WARM, seed=3)
            play(speculator({"text": drafter}, length), sequence)
            assert summarise(sequence.rounds).acceptance_rate == rate
            assert sequence.tokens == expected.tokens


def test_target_drafting_for_itself_is_always_right() -> None:
    for settings in (GREEDY, WARM, SETTINGS["truncated"], SETTINGS["repeat penalty"]):
        sequence = make_sequence(settings, seed=5)
        play(speculator(model_drafter(TARGET), 4), sequence)
        statistics = summarise(sequence.rounds)
        assert statistics.acceptance_rate == 1.0
        assert statistics.rounds == 7  # 32 tokens, five a round


def test_speculation_may_be_switched_on_and_off_between_any_two_rounds() -> None:
    expected = plain(WARM, seed=11)
    chance = random.Random(4)
    for _ in range(10):
        sequence = make_sequence(WARM, seed=11)
        engine = speculator({**model_drafter(), **text_drafter()}, 4)
        read(engine, sequence)
        while sequence.finish is None:
            sequence.speculate = chance.random() < 0.5
            go_on(engine, sequence, rounds=1)
            assert sequence.speculate or sequence.rounds[-1].source == "none"
        assert sequence.tokens == expected.tokens
        assert {r.source for r in sequence.rounds} >= {"none", "model"}


def test_a_plain_request_is_never_drafted_for() -> None:
    drafter = perfect(plain(WARM).tokens)
    sequence = make_sequence(WARM, speculate=False)
    play(speculator({"text": drafter, **model_drafter()}, 4), sequence)
    assert all(r.source == "none" and r.width == 1 for r in sequence.rounds)
    assert drafter.asked == []


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_drafter_that_breaks_is_given_up_with_its_reason(at: int) -> None:
    expected = plain(WARM, seed=2)
    sequence = make_sequence(WARM, seed=2)
    engine = speculator({"text": Breaking(perfect(expected.tokens), at)}, 3)
    play(engine, sequence)
    assert sequence.tokens == expected.tokens
    assert engine.off == {"text": "the drafter broke"}
    assert [r.source for r in sequence.rounds[:at]] == ["text"] * at
    assert all(r.source == "none" for r in sequence.rounds[at:])


def test_when_the_model_breaks_text_drafts_go_on() -> None:
    expected = plain(GREEDY, max_tokens=120)
    sequence = make_sequence(GREEDY, max_tokens=120)
    model = draft_model()
    model.fail_at(9)
    engine = speculator({"model": ModelDrafter(model), "text": perfect(expected.tokens)}, 4)
    play(engine, sequence)
    assert sequence.tokens == expected.tokens
    assert "pass 9" in engine.off["model"]
    assert sequence.rounds[-1].source == "text"


def test_the_draft_model_only_ever_reads_the_history() -> None:
    """Of this request, and of the next ones in the slot, which share more or less with it."""
    model = Watched(DRAFT, [])
    engine = speculator({"model": ModelDrafter(model)}, 5)
    prompt = list(PROMPT)
    for keep, fresh in ((0, prompt), (20, [0]), (4, [7, 7, 7, 7]), (30, [1]), (0, [9, 9]), (25, [2, 2])):
        sequence = make_sequence(WARM, seed=8, prompt=[*prompt[:keep], *fresh])
        model.watched[0] = sequence
        calls = len(model.calls)
        play(engine, sequence)
        assert len(model.calls) > calls + 10
        assert not engine.off
        prompt = sequence.tokens


def test_a_sequence_can_be_continued_after_it_ended() -> None:
    """Regenerating from the middle, or a longer budget: the same slot, a shared prefix, the same text."""
    expected = plain(WARM, seed=1, max_tokens=60)
    engine = speculator({**model_drafter(), **text_drafter()}, 4)
    for budget in (25, 60, 40, 60):
        sequence = make_sequence(WARM, seed=1, max_tokens=budget)
        play(engine, sequence)
        assert sequence.tokens == expected.tokens[: len(PROMPT) + budget]


def test_drafts_are_taken_from_the_present_history_only() -> None:
    """After a chat is cut back or replaced no drafter may propose from, or be asked with, what is gone."""
    engine = speculator(text_drafter(), 4)
    first = make_sequence(GREEDY, max_tokens=60)
    play(engine, first)
    spy = FunctionDrafter(lambda _tokens, _limit: [])
    engine.drafters["spy"] = spy
    second = make_sequence(GREEDY, prompt=[*first.tokens[:20], 0, 0], max_tokens=30)
    play(engine, second)
    assert spy.forgotten[0] == (0, 20)
    assert all(seen == second.tokens[: len(seen)] for seen in spy.asked)
    fresh = make_sequence(GREEDY, prompt=second.tokens[:22], max_tokens=30)
    play(speculator(text_drafter(), 4), fresh)
    assert second.tokens == fresh.tokens
    assert [r.accepted for r in second.rounds] == [r.accepted for r in fresh.rounds]


def test_no_controller_decision_can_change_the_text() -> None:
    """A controller that decides by dice: sources, lengths, stops and cuts."""
    expected = plain(WARM, seed=6, max_tokens=80)

    class Dice(FixedController):
        def __init__(self, seed: int) -> None:
            super().__init__(("model", "text"), 6)
            self.chance = random.Random(seed)

        def plan(self, seats: Any) -> Any:
            self.sources = tuple(self.chance.sample(("model", "text"), 2))
            self.length = self.chance.randint(0, 6)
            return super().plan(seats)

        def more(self, plan: Any, confidence: Any) -> bool:
            return self.chance.random() < 0.8

        def shorten(self, plan: Any, draft: Any) -> int:
            return self.chance.randint(0, len(draft))

    for seed in range(8):
        sequence = make_sequence(WARM, seed=6, max_tokens=80)
        play(speculator({**model_drafter(), **text_drafter()}, Dice(seed)), sequence)
        assert sequence.tokens == expected.tokens
    assert any(r.drafted > r.tested == 0 and r.source == "model" for r in sequence.rounds)


def test_a_clock_that_jumps_changes_no_text() -> None:
    expected = plain(WARM, seed=6)
    chance = random.Random(0)
    sequence = make_sequence(WARM, seed=6)
    engine = Speculator(
        speculator({}).target, model_drafter(), _adaptive(), clock=lambda: chance.choice((-5.0, 0.0, 1e-9, 1e6))
    )
    play(engine, sequence)
    assert sequence.tokens == expected.tokens
