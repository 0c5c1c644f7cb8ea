"""The text drafter against a brute-force reference, and histories that shrink or change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from spec_local.drafting.drafter import DraftRequest
from spec_local.drafting.text import LONGEST_MATCH, ORDERS, TextDrafter, TextFollower, TextIndex

texts = st.lists(st.integers(0, 3), max_size=120)


def _request(tokens: Sequence[int], limit: int = 8, slot: int = 0) -> DraftRequest:
    unused: Any = None  # a text draft draws nothing, so it needs no rows, noise or rule
    return DraftRequest(slot, tokens, limit, unused, unused, unused, lambda confidence: True)


def _brute_force_match(tokens: list[int]) -> tuple[int, int]:
    for order in ORDERS:
        if len(tokens) <= order:
            continue
        for source in range(len(tokens) - 1, order - 1, -1):
            if tokens[source - order : source] == tokens[-order:]:
                length = 0
                while (
                    length < min(LONGEST_MATCH, source)
                    and tokens[source - 1 - length] == tokens[len(tokens) - 1 - length]
                ):
                    length += 1
                return source, length
    return -1, 0


@settings(deadline=None)
@given(texts)
def test_match_is_the_most_recent_occurrence_of_the_longest_order(tokens: list[int]) -> None:
    index = TextIndex()
    for token in tokens:
        index.append(token)
    assert index.match() == _brute_force_match(tokens)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, st.floats(0, 1)), max_size=4))
def test_cutting_back_leaves_no_trace(steps: list[tuple[list[int], float]]) -> None:
    index, fresh = TextIndex(), TextIndex()
    for added, keep in steps:
        for token in added:
            index.append(token)
        index.cut(int(keep * len(index)))
    for token in index.tokens:
        fresh.append(token)
    assert index.match() == fresh.match() == _brute_force_match(index.tokens)
    assert vars(index) == vars(fresh)


def test_long_match_is_measured_beyond_the_largest_order() -> None:
    passage = list(range(40))
    index = TextIndex()
    for token in [99, *passage, 98, *passage]:
        index.append(token)
    assert index.match() == (41, 40)


def _drafts(tokens: list[int], limit: int = 4) -> tuple[list[int], list[float]]:
    (draft,) = TextDrafter().draft([_request(tokens, limit)])
    return draft.tokens, draft.confidence


def test_a_draft_may_be_longer_than_the_longest_match() -> None:
    """As a pass has room for, when nothing else limits it."""
    tokens, likely = _drafts([5, 6, 7] * 4, 3 * LONGEST_MATCH)
    assert tokens == [5, 6, 7] * LONGEST_MATCH
    assert len(likely) == len(tokens) and all(0 < p < 1 for p in likely)


def test_drafts_what_followed_and_is_surer_of_each_further_token() -> None:
    tokens, likely = _drafts([5, 6, 7, 8, 9, 1, 5, 6])
    assert tokens == [7, 8, 9, 1]
    assert likely == sorted(likely)
    assert 0 < likely[0] < likely[-1] < 1


def test_longer_matches_and_prompts_are_trusted_more_and_ambiguous_ones_less() -> None:
    short = _drafts([5, 6, 7, 0, 5, 6])[1][0]
    long = _drafts([1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6])[1][0]
    ambiguous = _drafts([5, 6, 9, 1, 5, 6, 7, 2, 5, 6])[1][0]
    assert ambiguous < short < long
    drafter = TextDrafter()
    output = [1, 2, 3, 8, 1, 2, 3]
    drafter.draft([_request([99])])
    (draft,) = drafter.draft([_request([99, *output])])
    assert draft.confidence[0] < _drafts([99, *output])[1][0]  # the same text as a prompt


def test_nothing_is_drafted_from_new_text() -> None:
    assert _drafts([1, 2, 3, 4]) == ([], [])
    assert _drafts([]) == ([], [])


def test_a_source_that_runs_into_the_end_repeats_its_period() -> None:
    assert _drafts([1, 2, 3, 1, 2, 3], 7)[0] == [1, 2, 3, 1, 2, 3, 1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=120), st.integers(1, 60), st.integers(1, 20))
def test_rounds_of_any_shape_give_the_same_draft(tokens: list[int], prompt: int, stride: int) -> None:
    """The draft is a function of the text, not of how many tokens each round added."""
    prompt = min(prompt, len(tokens))
    stepwise, strided = TextDrafter(), TextDrafter()
    for end in range(prompt, len(tokens) + 1):
        stepwise.draft([_request(tokens[:end])])
    for end in range(prompt, len(tokens), stride):
        strided.draft([_request(tokens[:end])])
    assert stepwise.draft([_request(tokens)]) == strided.draft([_request(tokens)])


def _after(prompt: list[int], output: list[int], limit: int = 4) -> list[int]:
    """What is drafted when `output` has come token by token."""
    drafter = TextDrafter()
    for end in range(len(output) + 1):
        (draft,) = drafter.draft([_request([*prompt, *output[:end]], limit)])
    return draft.tokens


@pytest.mark.parametrize(
    ("edited", "rest"),
    [
        ([104, 7, 106], [107, 108]),  # one token replaced
        ([104, 7, 105], [106, 107]),  # one inserted
        ([104, 106], [107, 108]),  # one left out
        ([104, 7, 8, 9, 108], [109, 110]),  # three replaced
    ],
)
def test_after_an_edit_the_source_is_taken_up_again_by_one_token_that_fits(edited: list[int], rest: list[int]) -> None:
    prompt = [*range(100, 120), 1]
    assert _after(prompt, [*range(100, 104), *edited], 2) == rest


def test_an_edit_is_expected_again_where_the_source_says_the_same() -> None:
    """`this.balance` became `this.funds` once; the next `this.balance` is drafted as `this.funds`."""
    this, balance, funds = 5, 9, 8
    prompt = [1, 2, 3, this, balance, 4, 6, this, balance, 7, 10, 11, this, balance, 12, 0]
    assert _after(prompt, [1, 2, 3, this, funds, 4, 6, this], 7) == [funds, 7, 10, 11, this, funds, 12]
    assert _after(prompt, [1, 2, 3, this, funds, 4], 4) == [6, this, funds, 7]


def test_an_edit_that_is_not_made_again_is_given_up() -> None:
    this, balance, funds = 5, 9, 8
    prompt = [1, 2, 3, this, balance, 4, 6, this, balance, 7, 10, 11, this, balance, 12, 0]
    assert _after(prompt, [1, 2, 3, this, funds, 4, 6, this, balance], 5) == [7, 10, 11, this, balance]


def test_edits_inside_a_prompt_are_nobodys_habit() -> None:
    prompt = [1, 2, 3, 5, 9, 4, 0, 1, 2, 3, 5, 8, 4, 0, 6, 5, 9, 7]
    assert _after(prompt, [0, 6], 3) == [5, 9, 7]


def test_history_cut_back_by_forget_or_by_the_request_is_not_drafted_from() -> None:
    kept, removed = list(range(10)), [3, 4, 77, 78, 79]
    for told in (True, False):
        drafter = TextDrafter()
        drafter.draft([_request([*kept, *removed])])
        if told:
            drafter.forget(0, len(kept))
        (draft,) = drafter.draft([_request([*kept, 3, 4])])
        assert draft.tokens == [5, 6, 7, 8, 9, 3, 4, 5]


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=4))
def test_any_sequence_of_histories_is_followed_exactly(histories: list[list[int]]) -> None:
    """New chat, deleted turn, replaced text: the index holds the current tokens and nothing else."""
    follower = TextFollower()
    for history in histories:
        follower.sync(history)
        assert follower.index.tokens == history
        fresh = TextIndex()
        for token in history:
            fresh.append(token)
        assert follower.index.match() == fresh.match()


def test_slots_do_not_see_each_other_and_are_freed() -> None:
    drafter = TextDrafter()
    one, two = drafter.draft([_request([1, 2, 3, 1, 2], slot=0), _request([1, 2, 9, 1, 2], slot=1)])
    assert (one.tokens[0], two.tokens[0]) == (3, 9)
    drafter.forget(0, 0)
    (again,) = drafter.draft([_request([5, 6, 5, 6], slot=0)])
    assert again.tokens[:2] == [5, 6]


def test_an_append_costs_microseconds() -> None:
    follower = TextFollower()
    tokens = [i % 97 if i % 5 else i for i in range(4000)]
    follower.sync(tokens[:2000])
    begin = time.process_time()
    for end in range(2001, 4001):
        follower.sync(tokens[:end])
        follower.propose(16)
    assert (time.process_time() - begin) / 2000 < 200e-6  # about 25 µs, and the machine may be busy
