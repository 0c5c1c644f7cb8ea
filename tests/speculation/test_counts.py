"""Records of scripted rounds, and every figure derived from them."""

from __future__ import annotations

from typing import Any

import pytest
from toy_drafters import right_for, scripted
from toy_runs import (
    GREEDY,
    PROMPT,
    VOCABULARY,
    make_sequence,
    model_drafter,
    plain,
    play,
    read,
    speculator,
    target_model,
)

from spec_local.drafting.draft import Draft
from spec_local.sampling import Transform
from spec_local.sampling.row import Row
from spec_local.speculation.controller import FixedController, Outcome, Plan
from spec_local.speculation.statistics import summarise

TEXT = plain(GREEDY, max_tokens=40).tokens
FIRST = len(PROMPT)


class AtLeastTwo(FixedController):
    """Throws away drafts of one token, as a controller with a minimum would."""

    def shorten(self, plan: Plan, draft: Draft) -> int:
        return len(draft) if len(draft) >= 2 else 0


def test_drafted_tested_accepted_and_skipped() -> None:
    """Drafts of 4, 4 and 1 tokens; 4 and 0 are accepted, the last is thrown away unseen."""
    at = FIRST
    first = TEXT[at : at + 4]
    at += 5
    second = [(token + 1) % VOCABULARY for token in TEXT[at : at + 4]]
    at += 1
    sequence = make_sequence(GREEDY, max_tokens=12)
    play(speculator({"text": scripted([first, second, TEXT[at : at + 1]])}, AtLeastTwo("text", 8)), sequence)
    assert sequence.tokens == TEXT[: FIRST + 12]
    statistics = summarise(sequence.rounds)
    assert (statistics.drafted, statistics.tested, statistics.accepted, statistics.skipped) == (9, 8, 4, 1)
    assert statistics.acceptance_rate == 0.5
    assert statistics.emitted == 12
    text = statistics.sources["text"]
    assert (text.rounds, text.drafted, text.tested, text.accepted, text.skipped) == (3, 9, 8, 4, 1)
    assert text.per_position == (0.5, 0.5, 0.5, 0.5)


def test_without_a_draft_there_is_no_rate_rather_than_a_zero() -> None:
    statistics = summarise(plain(GREEDY).rounds)
    assert statistics.acceptance_rate is None
    assert statistics.per_position == ()
    assert statistics.sources == {}
    assert "acceptance_rate" not in statistics.as_dict()
    assert statistics.tokens_per_pass == 1.0


@pytest.mark.parametrize("right", [0, 1, 2, 3, 4, 5])
def test_counts_of_drafts_with_known_outcome(right: int) -> None:
    sequence = make_sequence(GREEDY, max_tokens=30)
    play(speculator({"text": right_for(TEXT, VOCABULARY, right, 5)}, 5), sequence)
    assert sequence.tokens == TEXT[: FIRST + 30]
    left = 30
    for r in sequence.rounds:
        left -= r.emitted
        if left < 6:
            break  # the budget shortens the drafts
        assert (r.drafted, r.tested, r.accepted, r.emitted, r.width) == (5, 5, right, right + 1, 6)
    statistics = summarise(sequence.rounds)
    assert statistics.emitted == 30 == sum(r.emitted for r in sequence.rounds)
    assert statistics.per_position[:right] == (1.0,) * right
    assert set(statistics.per_position[right:]) <= {0.0}


def test_the_controller_is_told_what_was_submitted_and_what_came_of_it() -> None:
    told: list[Outcome] = []

    class Listening(AtLeastTwo):
        def observe(self, outcomes):
            told.extend(outcomes)

    sequence = make_sequence(GREEDY, max_tokens=20)
    play(speculator({"text": right_for(TEXT, VOCABULARY, 2, 3)}, Listening("text", 3)), sequence)
    assert [outcome.round for outcome in told] == sequence.rounds
    assert [token for outcome in told for token in outcome.emitted] == sequence.emitted
    for outcome in told:
        assert len(outcome.draft) == outcome.round.width - 1
        assert outcome.plan.seat.context >= FIRST - 1


def test_times_of_a_round_add_up() -> None:
    """With a clock that ticks once a call: draft, verify and host share out all the time there was."""
    ticks = iter(range(100_000))
    sequence = make_sequence(GREEDY, max_tokens=20)
    engine = speculator({"text": right_for(TEXT, VOCABULARY, 2, 3)}, 3)
    read(engine, sequence)
    engine._clock = lambda: float(next(ticks))
    play(engine, sequence)
    assert all(r.verify_s == 1.0 and r.draft_s > 0 and r.host_s > 0 for r in sequence.rounds)
    assert sum(r.seconds for r in sequence.rounds) == next(ticks) - len(sequence.rounds)


def test_no_row_is_transformed_that_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 10⁵ logits costs time: one for each drafted token, and one for each emitted one, are enough."""
    counted: dict[int, int] = {}
    row = Transform.row

    def counting(self: Transform, *arguments: Any) -> Row:
        counted[id(self)] = counted.get(id(self), 0) + 1
        return row(self, *arguments)

    monkeypatch.setattr(Transform, "row", counting)
    for length in (0, 1, 5):
        for drafters in (model_drafter(), {"text": right_for(TEXT, VOCABULARY, 2, 5)}):
            sequence = make_sequence(GREEDY, max_tokens=30)
            target = target_model()
            play(speculator(drafters, length, target=target), sequence)
            assert counted.pop(id(sequence.transform)) == 30
            modelled = sum(r.drafted for r in sequence.rounds if r.source == "model")
            assert counted.pop(id(sequence.draft_transform), 0) == modelled
            rows = sum(chunk.rows for call in target.calls for chunk in call)
            assert rows == sum(r.width for r in sequence.rounds)
