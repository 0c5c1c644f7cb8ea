from __future__ import annotations

import numpy as np
import pytest

from spec_local.sampling import RULES, Noise, Sampling, Transform
from spec_local.speculation.sequence import Sequence
from spec_local.verify.margins import chooser, fall, miss


def sequence(**sampling: float) -> Sequence:
    transform = Transform(Sampling(**sampling), 6, frozenset(), 1)
    return Sequence(0, [0, 1], transform, transform, Noise(7), RULES["coupled"], 100)


def test_greedy_margins_are_the_gap_of_the_two_logits() -> None:
    s = sequence(temperature=0.0)
    logits = np.array([0.0, 1.0, 3.0, 2.5, -1.0, 0.0], np.float32)
    choose = chooser(s, s.rule, s.noise, 2)
    assert choose(logits) == 2
    assert fall(choose, logits, 2, 0.02) == pytest.approx(0.5, rel=0.03)
    assert miss(choose, logits, 3) == pytest.approx(0.5, rel=0.03)
    assert miss(choose, logits, 4) == pytest.approx(4.0, rel=0.03)


def test_a_sampled_margin_is_the_gap_of_the_scores_times_the_temperature() -> None:
    s = sequence(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0)
    logits = np.array([0.0, 1.0, 1.3, 0.9, -1.0, 0.5], np.float32)
    choose = chooser(s, s.rule, s.noise, 2)
    noise = s.noise.exponential(0, 2, np.arange(6))  # type: ignore[arg-type]
    scores = logits / 0.7 - np.log(noise)
    first, second = np.argsort(-scores)[:2]
    assert choose(logits) == first
    gap = 0.7 * (scores[first] - scores[second])
    assert fall(choose, logits, int(first), 0.02) == pytest.approx(gap, rel=0.03)
    assert miss(choose, logits, int(second)) == pytest.approx(gap, rel=0.03)


def test_a_token_outside_the_truncation_misses_by_what_lets_it_in() -> None:
    s = sequence(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0)
    logits = np.array([3.0, 2.0, 1.8, -5.0, -5.0, -5.0], np.float32)
    choose = chooser(s, s.rule, s.noise, 2)
    chosen = choose(logits)
    assert chosen in (0, 1)
    assert 0.19 < miss(choose, logits, 2) < 10.0
    assert choose(logits) == chosen  # the logits were not changed


def test_a_token_that_no_rise_admits_is_infinitely_far() -> None:
    s = sequence(temperature=0.0, logit_bias={4: -100.0})  # type: ignore[arg-type]
    logits = np.zeros(6, np.float32)
    choose = chooser(s, s.rule, s.noise, 2)
    assert miss(choose, logits, 4) == float("inf")


def test_ties_have_no_margin() -> None:
    s = sequence(temperature=0.0)
    logits = np.array([1.0, 2.0, 2.0, 0.0, 0.0, 0.0], np.float32)
    choose = chooser(s, s.rule, s.noise, 2)
    assert miss(choose, logits, 2) <= 2e-4
