"""A draft model that reads along what another drafter expects: the same drafts in fewer passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from toy_model import ToyModel
from toy_runs import GREEDY, PROMPT, VOCABULARY, WARM, draft_model, make_sequence, play, speculator, target_model

from spec_local.drafting.draft import Draft
from spec_local.drafting.drafter import Drafter, DraftRequest
from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.text import TextDrafter
from spec_local.sampling import RULES
from spec_local.speculation.controller import FixedController, Plan, Seat
from spec_local.speculation.policy.reading_along import worth_reading
from spec_local.speculation.speculator import Speculator

Guess = Callable[[Sequence[int], int], Sequence[int]]


def _draft(
    guess: Guess | None,
    *,
    rule: str = "coupled",
    limit: int = 8,
    seed: int = 3,
    model: ToyModel | None = None,
    more: Callable[[list[float]], bool] = lambda confidence: True,
    ends: Sequence[int] = (),
) -> tuple[Draft, ToyModel]:
    sequence = make_sequence(WARM, seed=seed, rule=rule, ends=ends)
    model = model or draft_model()
    request = DraftRequest(
        0, list(PROMPT), limit, sequence.draft_transform, sequence.noise.for_round(len(PROMPT)), RULES[rule], more,
        guess=guess,
    )  # fmt: skip
    (draft,) = ModelDrafter(model, most_rows=16).draft([request])
    return draft, model


def _same(one: Draft, other: Draft) -> None:
    assert one.tokens == other.tokens
    assert one.confidence == pytest.approx(other.confidence)
    assert one.rows is not None
    assert other.rows is not None
    for a, b in zip(one.rows, other.rows, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.probs.tolist() == pytest.approx(b.probs.tolist())


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_guessed_the_draft_is_the_same(rule: str, seed: int) -> None:
    alone, _ = _draft(None, rule=rule, seed=seed)
    noise = random.Random(seed)

    def half_right(drafted: Sequence[int], rows: int) -> list[int]:
        ahead = alone.tokens[len(drafted) : len(drafted) + noise.randrange(5)]
        return [t if noise.random() < 0.6 else noise.randrange(VOCABULARY) for t in ahead]

    guesses: list[Guess] = [
        lambda drafted, rows: alone.tokens[len(drafted) :],
        lambda drafted, rows: [(t + 1) % VOCABULARY for t in alone.tokens[len(drafted) :]],
        lambda drafted, rows: [0] * 40,
        half_right,
    ]
    for guess in guesses:
        draft, model = _draft(guess, rule=rule, seed=seed)
        _same(draft, alone)
        held = [*PROMPT, *draft.tokens]
        assert model.caches[0][: len(PROMPT)] == held[: len(PROMPT)]


def test_right_guesses_save_passes_and_wrong_ones_cost_none() -> None:
    alone, _ = _draft(None)
    assert alone.passes == [len(PROMPT), *[1] * 7]
    right, model = _draft(lambda drafted, rows: alone.tokens[len(drafted) :])
    assert right.passes == [len(PROMPT) + 7]  # nothing is drawn after the eighth token, so seven are read along
    assert len(model.calls) == 1
    wrong, _ = _draft(lambda drafted, rows: [(alone.tokens[len(drafted)] + 1) % VOCABULARY])
    assert len(wrong.passes) == len(alone.passes)


def test_a_guess_that_is_right_for_three_tokens() -> None:
    alone, _ = _draft(None)
    bad = [*alone.tokens[:3], (alone.tokens[3] + 1) % VOCABULARY, 0]
    asked: list[tuple[int, int]] = []

    def guess(drafted: Sequence[int], rows: int) -> list[int]:
        asked.append((len(drafted), rows))
        return bad if not drafted else []

    draft, model = _draft(guess)
    _same(draft, alone)
    assert draft.passes == [len(PROMPT) + 5, 1, 1, 1, 1]  # four tokens came from the first pass
    assert asked == [(0, len(PROMPT)), (4, 1), (5, 1), (6, 1)]  # behind the last token nothing is read
    assert model.trims  # what was read in vain is cut


def test_a_rule_that_may_drop_nothing_is_asked_before_every_token() -> None:
    alone, _ = _draft(None, rule="rejection")

    def stop_after_two(confidence: list[float]) -> bool:
        return len(confidence) < 2

    strict, _ = _draft(lambda drafted, rows: alone.tokens[len(drafted) :], rule="rejection", more=stop_after_two)
    assert strict.tokens == alone.tokens[:2]
    coupled_alone, _ = _draft(None)
    free, _ = _draft(lambda drafted, rows: coupled_alone.tokens[len(drafted) : len(drafted) + 4], more=stop_after_two)
    assert free.tokens == coupled_alone.tokens[:5]  # their rows were there; the controller shortens what is too long


def test_nothing_is_drawn_behind_an_end_token() -> None:
    alone, _ = _draft(None)
    draft, _ = _draft(lambda drafted, rows: alone.tokens[len(drafted) :], ends=[alone.tokens[2]])
    assert draft.tokens == alone.tokens[: alone.tokens.index(alone.tokens[2]) + 1]


class _ReadsAll(FixedController):
    """Drafts with the model and reads along whatever the text drafter says."""

    def guess(self, plan: Plan, draft: Draft, rows: int) -> int:
        return len(draft)


@pytest.mark.parametrize("settings", [GREEDY, WARM])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_through_the_round_text_and_records_are_the_same(settings: dict[str, object], rule: str) -> None:
    """A prompt that repeats itself, so that the text drafter has something to say."""
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 4

    def run(controller: FixedController) -> tuple[list[list[int]], int]:
        draft = draft_model()
        drafters: dict[str, Drafter] = {"model": ModelDrafter(draft, most_rows=16), "text": TextDrafter()}
        engine = Speculator(target_model(), drafters, controller)
        both = [make_sequence(settings, seed=s, slot=s, prompt=prompt, rule=rule, max_tokens=60) for s in (0, 1)]
        play(engine, *both)
        return [s.tokens for s in both], len(draft.calls)

    alone, passes = run(FixedController(("model", "text"), 6))
    along, fewer = run(_ReadsAll(("model", "text"), 6))
    assert along == alone
    assert fewer <= passes


def test_plans_without_a_text_draft_read_nothing_along() -> None:
    engine = speculator({"model": ModelDrafter(draft_model()), "text": TextDrafter()}, 4)
    plan = Plan("model", 4, "", Seat(engine.controller.enter(), {}, 8))
    assert engine._guess(plan) is None


def test_how_many_tokens_are_worth_reading() -> None:
    passes = [0.038, 0.052, 0.065, 0.046, 0.067, 0.07, 0.08, 0.083, 0.086]
    assert worth_reading([0.9] * 8, 0.038, passes) == 8
    assert worth_reading([0.5] * 8, 0.038, passes) == 3  # a full tile of four rows is nearly free
    assert worth_reading([0.1] * 8, 0.038, passes) == 0
    assert worth_reading([], 0.038, passes) == 0
