"""`Transform` against a slow, obvious reference that sorts everything in float64, and at its edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from spec_local.errors import BackendError, NoTokenError, UsageError
from spec_local.sampling import Row, Sampling, Transform

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""All truncation off."""
NEAR = 1e-9
"""Decisions closer than this to their limit may fall either way: the reference adds up in another order."""
WHOLE = 1e-5
"""The same where top-p starts from the whole of a large vocabulary, whose mass is a sum of float32 terms."""


class NearTie(Exception):
    """The reference cannot say which way this one falls."""


def certain(margin: float, near: float = NEAR) -> None:
    if abs(margin) < near:
        raise NearTie


def reach(probs: list[float], limit: float, near: float = NEAR) -> int:
    """The fewest leading entries whose sum reaches `limit`."""
    total = 0.0
    for count, prob in enumerate(probs, 1):
        total += prob
        if count < len(probs):
            certain(total - limit, near)
        if total >= limit:
            return count
    return len(probs)


def softmax(values: list[float]) -> list[float]:
    highest = max(values)
    weights = [math.exp(value - highest) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def reference(
    sampling: Sampling,
    logits: np.ndarray,
    history: Sequence[int] = (),
    end_ids: Sequence[int] = (),
    left_before_end: int = 0,
    allowed: np.ndarray | None = None,
) -> dict[int, float]:
    s = sampling
    values = [np.float32(value) for value in logits]
    for token, bias in s.logit_bias.items():
        values[token] += np.float32(bias)
    recent = [] if s.penalty_last_n == 0 else history[-s.penalty_last_n :] if s.penalty_last_n > 0 else history
    for token in set(recent):
        value = float(values[token])
        value = value * s.repeat_penalty if value <= 0 else value / s.repeat_penalty
        values[token] = np.float32(value - (list(recent).count(token) * s.frequency_penalty + s.presence_penalty))
    banned = {token for token, bias in s.logit_bias.items() if bias <= -100}
    banned |= set(end_ids) if left_before_end > 0 else set()
    if allowed is not None and set(np.flatnonzero(allowed).tolist()) <= set(
        end_ids
    ):  # a finished grammar ends the text
        banned -= set(end_ids)
    banned |= set() if allowed is None else set(np.flatnonzero(~allowed).tolist())
    left = [(token, float(v)) for token, v in enumerate(values) if token not in banned and v > -math.inf]

    if s.temperature == 0:
        return {min(left, key=lambda item: (-item[1], item[0]))[0]: 1.0}
    by_size = sorted(left, key=lambda item: (-item[1], item[0]))
    if s.top_k:
        by_size = by_size[: s.top_k]
    if s.typical_p < 1:
        probs = softmax([value for _, value in by_size])
        entropy = -math.fsum(p * math.log(p) for p in probs if p)
        surprise = [
            (abs(-math.log(max(p, 1e-300)) - entropy), token, value, p)
            for p, (token, value) in zip(probs, by_size, strict=True)
        ]
        surprise.sort(key=lambda item: (item[0], item[1]))
        count = reach([p for *_, p in surprise], s.typical_p)
        for (a, _, first, _), (b, _, second, _) in pairwise(surprise[max(count - 3, 0) : count + 3]):
            if first != second:
                certain(a - b)
        surprise = surprise[:count]
        by_size = sorted(((token, value) for _, token, value, _ in surprise), key=lambda item: (-item[1], item[0]))
    if s.top_p < 1:
        near = WHOLE if len(by_size) > 1000 and s.typical_p == 1 else NEAR
        by_size = by_size[: reach(softmax([value for _, value in by_size]), s.top_p, near)]
    if s.min_p > 0:
        margins = [value - by_size[0][1] - math.log(s.min_p) for _, value in by_size]
        by_size = [item for item, margin in zip(by_size, margins, strict=True) if margin >= 0]
    by_size = [item for item in by_size if (item[1] - by_size[0][1]) / s.temperature >= -64]
    by_size.sort()
    probs = softmax([value / s.temperature for _, value in by_size])
    return {token: prob for (token, _), prob in zip(by_size, probs, strict=True)}


def transform(fields: dict[str, Any], n_vocab: int, end_ids: Sequence[int] = (), prompt_length: int = 0) -> Transform:
    return Transform(Sampling(**fields), n_vocab, frozenset(end_ids), prompt_length)


def check_row(row: Row, n_vocab: int) -> None:
    assert row.ids.dtype == np.int32
    assert row.probs.dtype == np.float64
    assert len(row.ids) == len(row.probs) > 0
    assert np.all(np.diff(row.ids) > 0)
    assert 0 <= row.ids[0] <= row.ids[-1] < n_vocab
    assert np.all(row.probs > 0)
    assert abs(row.probs.sum() - 1) < 1e-12


def assert_same(row: Row, expected: dict[int, float], rtol: float = 1e-9) -> None:
    assert row.ids.tolist() == list(expected)
    np.testing.assert_allclose(row.probs, list(expected.values()), rtol=rtol)


# --- against the reference ------------------------------------------------------------------------------------------

SIZES = st.integers(1, 40)
TIED = st.integers(-6, 6).map(float)
CONTINUOUS = st.floats(-30, 30, width=32)
PROBABILITY = st.sampled_from([0.0, 0.05, 0.3, 0.62, 0.9, 0.97, 1.0])


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    size = draw(SIZES)
    values = draw(st.lists(draw(st.sampled_from([TIED, CONTINUOUS])), min_size=size, max_size=size))
    logits = np.array(values, np.float32)
    logits[draw(st.lists(st.integers(0, size - 1), max_size=5))] = -np.inf
    return logits


parameters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 2, 5, 20, 100]),
        "top_p": PROBABILITY,
        "min_p": st.sampled_from([0.0, 0.01, 0.05, 0.4, 1.0]),
        "typical_p": st.sampled_from([1.0, 1.0, 0.0, 0.2, 0.9]),
        "repeat_penalty": st.sampled_from([1.0, 1.2, 0.8]),
        "presence_penalty": st.sampled_from([0.0, 0.5, -0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.25]),
        "penalty_last_n": st.sampled_from([-1, 0, 3, 64]),
        "min_tokens": st.sampled_from([0, 4]),
    }
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data(), rows(), parameters)
def test_rows_equal_the_reference(data: st.DataObject, logits: np.ndarray, fields: dict[str, Any]) -> None:
    size = len(logits)
    token = st.integers(0, size - 1)
    biases = st.sampled_from([-math.inf, -100.0, -2.5, 1.0, 3.0])
    fields = {**fields, "logit_bias": data.draw(st.dictionaries(token, biases, max_size=3))}
    history = data.draw(st.lists(token, max_size=12))
    ends = data.draw(st.sets(token, max_size=2))
    allowed = data.draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size).map(np.array))
    prompt_length = data.draw(st.integers(0, len(history)))
    sampling = Sampling(**fields)
    made = Transform(sampling, size, frozenset(ends), prompt_length)
    before = logits.copy()
    left_before_end = prompt_length + sampling.min_tokens - len(history)
    try:
        expected = reference(sampling, logits, history, sorted(ends), left_before_end, allowed)
    except NearTie:
        assume(False)
    except ValueError:  # max() of nothing: no token is left
        nothing = logits.max() == -math.inf  # no fault of what was asked for
        with pytest.raises(BackendError if nothing else NoTokenError, match=r"has no token|No token can follow"):
            made.row(logits, history, len(history), allowed)
        return
    row = made.row(logits, history, len(history), allowed)
    check_row(row, size)
    assert_same(row, expected)
    assert np.array_equal(logits, before)
    again = made.row(logits, history, len(history), allowed)
    assert np.array_equal(row.ids, again.ids)
    assert np.array_equal(row.probs, again.probs)


def realistic(size: int, seed: int, spread: float = 2.5) -> np.ndarray:
    """A bulk of normal logits with a falling head, as language models have it."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=spread, size=size).astype(np.float32)
    head = rng.choice(size, 60, replace=False)
    logits[head] = 16 - 3.2 * np.log1p(np.arange(60)) + rng.normal(size=60)
    return logits


LARGE: dict[str, dict[str, Any]] = {
    "defaults": {},
    "top-k": OFF | {"top_k": 40},
    "large top-k": OFF | {"top_k": 2_500},
    "top-p": OFF | {"top_p": 0.95},
    "narrow top-p": OFF | {"top_p": 0.01},
    "min-p": OFF | {"min_p": 0.05},
    "tiny min-p": OFF | {"min_p": 1e-6},
    "top-p and min-p": OFF | {"top_p": 0.9, "min_p": 0.01, "temperature": 1.3},
    "typical": OFF | {"typical_p": 0.9},
    "typical and top-p": OFF | {"typical_p": 0.95, "top_p": 0.9},
    "untruncated": OFF,
    "untruncated, cold": OFF | {"temperature": 0.3},
    "untruncated, hot": OFF | {"temperature": 2.0},
    "cold enough to drop tokens": OFF | {"temperature": 0.05},
    "greedy": {"temperature": 0.0},
    "penalties": OFF | {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "top_k": 40},
    "bans": OFF | {"logit_bias": {3: -100.0, 5: 12.0}},
}


@pytest.mark.parametrize("fields", LARGE.values(), ids=LARGE.keys())
@pytest.mark.parametrize("spread", [0.01, 2.5, 6.0])
def test_large_vocabularies_equal_the_reference(fields: dict[str, Any], spread: float) -> None:
    """A size at which every shortcut is taken: column maxima, masses between bounds, float32 exponentials."""
    size = 9_001
    for seed in range(10):
        logits = realistic(size, seed, spread)
        history = [5, 7, 7, int(np.argmax(logits))]
        try:
            expected = reference(Sampling(**fields), logits, history)
        except NearTie:
            continue
        row = transform(fields, size).row(logits, history, 4)
        check_row(row, size)
        assert_same(row, expected, rtol=1e-5 if len(expected) > 4096 else 1e-9)
        return
    pytest.fail("no seed without a near tie")


@pytest.mark.parametrize("top_p", [0.05, 0.9, 0.999, 0.999999])
@pytest.mark.parametrize("spread", [0.01, 0.7, 2.5, 6.0])
@pytest.mark.parametrize("offset", [0.0, 500.0, -500.0])
def test_nucleus_of_a_large_vocabulary_is_the_fewest_likeliest(top_p: float, spread: float, offset: float) -> None:
    """Where tokens are so improbable that no reference can say which one is the last."""
    logits = realistic(33_001, 1, spread) + np.float32(offset)
    row = transform(OFF | {"top_p": top_p}, 33_001).row(logits, [], 0)
    order = np.lexsort((np.arange(len(logits)), -logits))
    assert sorted(order[: len(row.ids)]) == row.ids.tolist()
    probs = np.exp(logits.astype(np.float64) - logits.max())
    mass = np.cumsum(probs[order] / probs.sum())
    assert mass[len(row.ids) - 1] >= top_p - 1e-6
    assert len(row.ids) == 1 or mass[len(row.ids) - 2] < top_p + 1e-6


@pytest.mark.parametrize("fields", LARGE.values(), ids=LARGE.keys())
def test_tokens_that_cannot_be_drawn_change_nothing(fields: dict[str, Any]) -> None:
    """The same 60 logits in a vocabulary of 60 and, among -inf, of 30 000: small and large code agree."""
    small = np.random.default_rng(3).normal(scale=4, size=60).astype(np.float32)
    places = np.sort(np.random.default_rng(4).choice(29_990, 54, replace=False)) + 6
    places = np.concatenate([np.arange(6), places])
    large = np.full(30_000, -np.inf, np.float32)
    large[places] = small
    a = transform(fields, 60).row(small, [5, 3, 3], 3)
    b = transform(fields, 30_000).row(large, [5, 3, 3], 3)
    assert places[a.ids].tolist() == b.ids.tolist()
    np.testing.assert_allclose(a.probs, b.probs, rtol=1e-12)


# --- ties -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 20_000])
def test_equal_logits_are_kept_from_the_smallest_id(size: int) -> None:
    logits = np.zeros(size, np.float32)
    logits[7] = 1.0
    assert transform(OFF | {"top_k": 4}, size).row(logits, [], 0).ids.tolist() == [0, 1, 2, 7]
    assert transform({"temperature": 0.0}, size).row(np.zeros(size, np.float32), [], 0).ids.tolist() == [0]


def test_top_p_exactly_reached_keeps_no_more() -> None:
    row = transform(OFF | {"top_p": 0.5}, 4).row(np.zeros(4, np.float32), [], 0)
    assert row.ids.tolist() == [0, 1]
    assert transform(OFF | {"top_p": 0.0}, 4).row(np.zeros(4, np.float32), [], 0).ids.tolist() == [0]


def test_min_p_of_one_keeps_the_ties_of_the_largest() -> None:
    logits = np.array([1, 3, 3, 2], np.float32)
    assert transform(OFF | {"min_p": 1.0}, 4).row(logits, [], 0).ids.tolist() == [1, 2]


def test_all_equal_large_row_is_uniform() -> None:
    row = transform(OFF, 20_000).row(np.full(20_000, 3.0, np.float32), [], 0)
    assert len(row.ids) == 20_000
    assert np.all(row.probs == row.probs[0])


# --- the meaning of parameters --------------------------------------------------------------------------------------


def test_temperature_comes_last() -> None:
    """Truncation looks at temperature 1: a high temperature does not let more tokens in."""
    logits = np.array([4, 3, 2, 1, 0], np.float32)
    for temperature in (0.3, 1.0, 3.0):
        row = transform({"temperature": temperature, "top_k": 0, "top_p": 0.9, "min_p": 0.0}, 5).row(logits, [], 0)
        assert row.ids.tolist() == [0, 1, 2]


def test_bias_of_minus_100_bans_at_any_temperature() -> None:
    logits = np.array([50, 1, 0], np.float32)
    made = transform(OFF | {"temperature": 100.0, "logit_bias": {0: -100.0}}, 3)
    assert made.row(logits, [], 0).ids.tolist() == [1, 2]
    assert transform({"temperature": 0.0, "logit_bias": {0: -100.0}}, 3).row(logits, [], 0).ids.tolist() == [1]


def test_min_tokens_bans_end_tokens_up_to_a_position() -> None:
    made = transform({"temperature": 0.0, "min_tokens": 3}, 4, end_ids=[1, 2], prompt_length=10)
    logits = np.array([0, 5, 4, 1], np.float32)
    assert [int(made.row(logits, [], position).ids[0]) for position in (10, 12, 13)] == [3, 3, 1]


def test_penalties_follow_the_formula_and_the_window() -> None:
    logits = np.array([2, -2, 1, 3], np.float32)
    fields = OFF | {"repeat_penalty": 2.0, "presence_penalty": 0.25, "frequency_penalty": 0.5, "penalty_last_n": 3}
    made = transform(fields, 4)
    assert made.history_length == 3
    row = made.row(logits, [3, 0, 1, 1], 4)
    penalised = np.array([2 / 2 - 0.75, -2 * 2 - 1.25, 1, 3])
    np.testing.assert_allclose(row.probs, np.exp(penalised) / np.exp(penalised).sum(), rtol=1e-12)
    assert transform(fields | {"penalty_last_n": -1}, 4).row(logits, [3, 0, 1, 1], 4).prob(3) < row.prob(3)


def test_history_length_says_what_is_looked_at() -> None:
    assert transform({}, 4).history_length == 0
    assert transform({"repeat_penalty": 1.1}, 4).history_length == 64
    assert transform({"repeat_penalty": 1.1, "penalty_last_n": 0}, 4).history_length == 0
    assert transform({"presence_penalty": 1.0, "penalty_last_n": -1}, 4).history_length == -1


@pytest.mark.parametrize(
    ("window", "wanted"), [(-1, [1, 2, 3, 4, 5]), (3, [3, 4, 5]), (2, [4, 5]), (1, [5]), (0, []), (9, [1, 2, 3, 4, 5])]
)
def test_history_is_what_is_looked_at_and_no_more(window: int, wanted: list[int]) -> None:
    made = transform({"repeat_penalty": 1.1, "penalty_last_n": window}, 9)
    assert made.history([1, 2, 3], [4, 5]) == made.history([1, 2, 3, 4, 5]) == wanted


def test_a_window_of_history_is_enough() -> None:
    made = transform(OFF | {"repeat_penalty": 1.5, "penalty_last_n": 5}, 30)
    logits = np.random.default_rng(1).normal(size=30).astype(np.float32)
    history = list(range(25))
    whole, window = made.row(logits, history, 25), made.row(logits, history[-made.history_length :], 25)
    assert np.array_equal(whole.probs, window.probs)


def test_grammar_mask_is_applied_after_bias() -> None:
    allowed = np.array([False, True, True])
    made = transform(OFF | {"logit_bias": {0: 90.0}}, 3)
    assert made.row(np.zeros(3, np.float32), [], 0, allowed).ids.tolist() == [1, 2]


def test_typical_can_drop_the_likeliest_token() -> None:
    """One likely token among many unlikely ones is less typical than they are, and the next steps see only these."""
    logits = np.array([3.0] + [0.0] * 200, np.float32)
    row = transform(OFF | {"typical_p": 0.5, "min_p": 0.9}, 201).row(logits, [], 0)
    assert 0 not in row.ids


def test_rows_do_not_share_memory_with_the_transform() -> None:
    for size in (50, 20_000):
        made = transform(OFF, size)
        first = made.row(realistic(20_000, 1)[:size].copy(), [], 0)
        kept = first.probs.copy()
        made.row(realistic(20_000, 2)[:size].copy(), [], 0)
        assert np.array_equal(first.probs, kept)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [*LARGE.values(), {"logit_bias": {0: -100.0}}], ids=[*LARGE.keys(), "ban"])
@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "infinite")])
def test_damaged_logits_are_refused(fields: dict[str, Any], value: float, word: str) -> None:
    """Anywhere, even in a banned token: it is the backend that is broken, not this token."""
    for size in (6, 9_001):
        made = transform(fields, size)
        for place in (0, 3, size - 1):
            logits = np.zeros(size, np.float32)
            logits[place] = value
            with pytest.raises(BackendError, match=word) as caught:
                made.row(logits, [1], 1)
            assert caught.value.hint


def test_damaged_logits_are_refused_behind_a_mask() -> None:
    logits = np.array([math.nan, 1, 2], np.float32)
    with pytest.raises(BackendError, match="NaN"):
        transform({}, 3).row(logits, [], 0, np.array([False, True, True]))


@pytest.mark.parametrize("fields", [{}, OFF, {"temperature": 0.0}, OFF | {"typical_p": 0.5}, OFF | {"top_p": 0.5}])
@pytest.mark.parametrize("size", [4, 20_000])
def test_nothing_left_is_refused(fields: dict[str, Any], size: int) -> None:
    made = transform(fields, size)
    with pytest.raises(BackendError, match="output for token 7 has no token"):
        made.row(np.full(size, -np.inf, np.float32), [], 7)
    with pytest.raises(NoTokenError, match="No token can follow at position 7"):
        made.row(np.zeros(size, np.float32), [], 7, np.zeros(size, np.bool_))


@pytest.mark.parametrize("fields", LARGE.values(), ids=LARGE.keys())
def test_one_token_left(fields: dict[str, Any]) -> None:
    allowed = np.zeros(20_000, np.bool_)
    allowed[4] = True
    row = transform(fields, 20_000).row(realistic(20_000, 5), [], 0, allowed)
    assert row.ids.tolist() == [4]
    assert row.probs.tolist() == [1.0]


def test_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="token 5, but this vocabulary ends at 4"):
        transform({"logit_bias": {5: 1.0}}, 5)


@pytest.mark.parametrize(
    "fields", [{"min_tokens": 9}, {"logit_bias": {2: -100}}, {"min_tokens": 9, "temperature": 0.0}]
)
def test_a_finished_grammar_ends_the_answer(fields: dict[str, Any]) -> None:
    """Nothing but an end is left: neither `min_tokens` nor a ban of the end may keep it away."""
    made = Transform(Sampling(**fields), 3, frozenset({2}), 1)
    assert made.row(np.zeros(3, np.float32), [0], 1, np.array([False, False, True])).ids.tolist() == [2]
    assert 2 not in made.row(np.zeros(3, np.float32), [0], 1, np.array([True, False, True])).ids
