"""Ends are applied token by token inside a block, and what lies behind one leaves text, caches and counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from toy_drafters import perfect, right_for
from toy_runs import (
    GREEDY,
    PROMPT,
    VOCABULARY,
    WARM,
    make_sequence,
    model_drafter,
    plain,
    play,
    speculator,
    text_drafter,
)

from spec_local.speculation.sequence import Sequence
from spec_local.speculation.statistics import summarise

LENGTH = 8
"""Tokens of each draft; a block is a draft and the target's own token."""
TEXT = plain(WARM, seed=21, max_tokens=60).tokens
FIRST = len(PROMPT)


def _end_token(position: int) -> int:
    """The id that stands at the absolute `position`; the tests want it to be the first such id of the answer."""
    return TEXT[position]


def _fresh_positions() -> list[int]:
    """Positions of the answer whose token stands there for the first time, one for each place in a block."""
    chosen: dict[int, int] = {}
    for position in range(FIRST, len(TEXT)):
        if TEXT[position] not in TEXT[FIRST:position]:
            chosen.setdefault((position - FIRST) % (LENGTH + 1), position)
    return [chosen[place] for place in sorted(chosen)]


def test_the_text_has_a_first_occurrence_at_every_place_of_a_block() -> None:
    assert len(_fresh_positions()) == LENGTH + 1


def test_end_token_at_every_place_of_a_block_the_bonus_token_included() -> None:
    for position in _fresh_positions():
        end = _end_token(position)
        expected = plain(WARM, seed=21, max_tokens=60, ends=[end])
        assert expected.tokens == TEXT[: position + 1]
        for drafters in ({"text": perfect(TEXT)}, model_drafter(), text_drafter()):
            sequence = make_sequence(WARM, seed=21, max_tokens=60, ends=[end])
            play(speculator(drafters, LENGTH), sequence)
            assert sequence.tokens == expected.tokens
            assert (sequence.finish, sequence.limit) == ("stop", None)
            _counts_add_up(sequence)
        place = (position - FIRST) % (LENGTH + 1)
        sequence = make_sequence(WARM, seed=21, max_tokens=60, ends=[end])
        play(speculator({"text": perfect(TEXT)}, LENGTH), sequence)
        last = sequence.rounds[-1]
        assert (last.emitted, last.accepted, last.tested) == (place + 1, min(place + 1, LENGTH), min(place + 1, LENGTH))


def test_a_drafter_that_proposes_past_an_end_token_changes_nothing() -> None:
    """The draft goes on behind the end, with tokens the target would have accepted."""
    position = _fresh_positions()[3]
    end = _end_token(position)
    sequence = make_sequence(WARM, seed=21, max_tokens=60, ends=[end])
    engine = speculator({"text": perfect(TEXT)}, LENGTH)
    play(engine, sequence)
    assert sequence.rounds[-1].drafted == LENGTH > sequence.rounds[-1].tested == 4
    assert engine.target.length(0) == len(sequence.tokens) - 1
    assert summarise(sequence.rounds).acceptance_rate == 1.0


def test_stop_at_every_place_of_a_block() -> None:
    for count in range(1, 2 * LENGTH + 3):
        for drafters in ({"text": perfect(TEXT)}, model_drafter()):
            seen: list[int] = []
            sequence = make_sequence(WARM, seed=21, max_tokens=60, on_token=_stop_after(count, seen))
            play(speculator(drafters, LENGTH), sequence)
            assert sequence.emitted == seen == TEXT[FIRST : FIRST + count]
            assert (sequence.finish, sequence.limit) == ("stop", None)
            _counts_add_up(sequence)


def test_the_end_token_is_not_shown_to_the_text() -> None:
    end = TEXT[FIRST + 5]
    seen: list[int] = []
    sequence = make_sequence(WARM, seed=21, ends=[end], on_token=_stop_after(99, seen))
    play(speculator({"text": perfect(TEXT)}, LENGTH), sequence)
    assert [*seen, end] == sequence.emitted


@pytest.mark.parametrize("budget", [0, 1, 2, 6, 7, 8, 9, 10, 17, 18, 19])
def test_a_budget_is_met_exactly(budget: int) -> None:
    for settings in (GREEDY, WARM):
        text = plain(settings, seed=21, max_tokens=60).tokens
        for drafters in ({"text": perfect(text)}, model_drafter(), text_drafter(), {}):
            sequence = make_sequence(settings, seed=21, max_tokens=budget)
            play(speculator(drafters, LENGTH), sequence)
            assert sequence.tokens == text[: FIRST + budget]
            assert (sequence.finish, sequence.limit) == ("length", "max_tokens")
            assert bool(sequence.rounds) == bool(budget)
            _counts_add_up(sequence)


@pytest.mark.parametrize("length", [1, 3, 7, 8, 16])
def test_the_context_end_is_met_exactly_with_any_draft_length(length: int) -> None:
    """From a prompt that leaves room for one token to one that leaves room for more than a draft."""
    for room in sorted({1, 2, 3, length - 1, length, length + 1, length + 2, 2 * length + 1} - {0}):
        n_ctx = FIRST + room
        for drafters in ({"text": perfect(TEXT)}, model_drafter(n_ctx=n_ctx), text_drafter(), {}):
            sequence = make_sequence(WARM, seed=21, n_ctx=n_ctx, max_tokens=None)
            engine = speculator(drafters, length)
            engine.target.n_ctx = n_ctx  # type: ignore[misc]
            play(engine, sequence)
            assert sequence.tokens == TEXT[:n_ctx]
            assert (sequence.finish, sequence.limit) == ("length", "context")
            _counts_add_up(sequence)


def test_budget_before_context_and_end_before_budget() -> None:
    both = make_sequence(WARM, seed=21, n_ctx=FIRST + 4, max_tokens=4)
    play(speculator({"text": perfect(TEXT)}), both)
    assert (both.finish, both.limit) == ("length", "max_tokens")
    ended = make_sequence(WARM, seed=21, max_tokens=6, ends=[TEXT[FIRST + 5]])
    play(speculator({"text": perfect(TEXT)}), ended)
    assert len(ended.emitted) == 6
    assert (ended.finish, ended.limit) == ("stop", None)


def test_nothing_is_drafted_beyond_the_budget() -> None:
    """A draft token that could never be emitted is never asked for."""
    sequence = make_sequence(WARM, seed=21, max_tokens=6)
    play(speculator({"text": perfect(TEXT)}, 16), sequence)
    assert [(r.drafted, r.emitted) for r in sequence.rounds] == [(5, 6)]


def test_a_one_token_draft_is_really_compared() -> None:
    """An engine that takes the first drafted token unchecked accepts every draft of one token."""
    for right, accepted in ((0, 0), (1, 1)):
        sequence = make_sequence(WARM, seed=21, max_tokens=20)
        play(speculator({"text": right_for(TEXT, VOCABULARY, right, 1)}, 1), sequence)
        assert sequence.tokens == TEXT[: FIRST + 20]
        assert {r.accepted for r in sequence.rounds if r.tested} == {accepted}


def test_cancelling_between_rounds_keeps_what_is_there() -> None:
    sequence = make_sequence(WARM, seed=21)
    engine = speculator(model_drafter(), 4)
    play(engine, sequence, rounds=3)
    sequence.cancel()
    length = len(sequence.tokens)
    assert engine.step([sequence]) == []
    assert (sequence.finish, len(sequence.tokens)) == ("cancelled", length)
    again = make_sequence(WARM, seed=21)
    play(engine, again)
    assert again.tokens == TEXT[: len(again.tokens)]


def _stop_after(count: int, seen: list[int]) -> Callable[[int], bool]:
    def on_token(token: int) -> bool:
        seen.append(token)
        return len(seen) == count

    return on_token


def _counts_add_up(sequence: Sequence) -> None:
    statistics = summarise(sequence.rounds)
    assert statistics.emitted == len(sequence.emitted)
    assert statistics.drafted == statistics.tested + statistics.skipped
    assert statistics.rounds == len(sequence.rounds)
    assert sum(source.drafted for source in statistics.sources.values()) == statistics.drafted
    assert sum(source.tested for source in statistics.sources.values()) == statistics.tested
    assert sum(source.accepted for source in statistics.sources.values()) == statistics.accepted
