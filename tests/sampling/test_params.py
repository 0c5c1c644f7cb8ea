from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from spec_local.errors import UsageError
from spec_local.sampling import Sampling


def test_defaults_are_the_documented_ones() -> None:
    s = Sampling()
    assert (s.temperature, s.top_k, s.top_p, s.min_p, s.typical_p) == (0.7, 40, 0.95, 0.05, 1.0)
    assert (s.repeat_penalty, s.presence_penalty, s.frequency_penalty, s.penalty_last_n) == (1.0, 0.0, 0.0, 64)
    assert (s.logit_bias, s.min_tokens, s.seed, s.max_tokens) == ({}, 0, None, None)


def test_json_keys_of_a_bias_are_token_ids() -> None:
    assert Sampling.parse({"logit_bias": {"17": -100, "4": 2.5}}).logit_bias == {17: -100.0, 4: 2.5}
    assert Sampling.parse({"logit_bias": {3: -math.inf}}).logit_bias == {3: -math.inf}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "warm"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", 2),
        ("typical_p", -1),
        ("repeat_penalty", 0),
        ("presence_penalty", math.nan),
        ("frequency_penalty", 1e9),
        ("penalty_last_n", -2),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("min_tokens", -1),
        ("max_tokens", -1),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=field) as caught:
        Sampling.parse({field: value})
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no sampling parameter 'temprature'") as caught:
        Sampling.parse({"temprature": 1})
    assert "temperature" in caught.value.hint


def test_zero_is_a_seed_and_a_budget() -> None:
    s = Sampling(seed=0, max_tokens=0)
    assert s.seed == 0
    assert s.max_tokens == 0


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        Sampling().temperature = 1.0  # type: ignore[misc]


def test_draft_rows_are_short_and_otherwise_the_same() -> None:
    assert Sampling().for_draft() == Sampling()
    for cut in ({"top_k": 129}, {"top_k": 5000}, {"top_k": 0, "top_p": 0.9}, {"top_k": 0, "min_p": 0.1}):
        whole = Sampling(**{"top_p": 1.0, "min_p": 0.0} | cut, temperature=1.3, logit_bias={4: -100.0}, seed=3)
        assert whole.for_draft() == whole.model_copy(update={"top_k": 128})


def test_an_untruncated_draft_row_is_left_whole() -> None:
    whole = Sampling(top_k=0, top_p=1.0, min_p=0.0)
    assert whole.for_draft() == whole
