from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from spec_local.verify.significance import (
    Drift,
    chi_square_quantile,
    chi_square_tail,
    detectable,
    noncentral_tail,
    uniformity,
)


@pytest.mark.parametrize("df", [1, 3, 7, 31])
@pytest.mark.parametrize("statistic", [0.01, 1.0, 7.5, 31.0, 61.1, 140.0])
def test_tail_probabilities_agree_with_scipy(statistic: float, df: int) -> None:
    assert chi_square_tail(statistic, df) == pytest.approx(stats.chi2.sf(statistic, df), rel=1e-10)
    for shift in (0.5, 12.0, 69.0):
        assert noncentral_tail(statistic, df, shift) == pytest.approx(stats.ncx2.sf(statistic, df, shift), abs=1e-9)


def test_quantile_is_the_inverse_of_the_tail() -> None:
    assert chi_square_quantile(1e-3, 31) == pytest.approx(stats.chi2.isf(1e-3, 31), rel=1e-8)


@pytest.mark.parametrize(("samples", "variation"), [(6_900, 0.05), (43_000, 0.02), (172_000, 0.01)])
def test_samples_needed_for_a_total_variation_at_power_099(samples: int, variation: float) -> None:
    assert detectable(samples, 32, 1e-3) == pytest.approx(variation, rel=0.01)


def test_stated_power_is_reached_by_simulation() -> None:
    chance = np.random.default_rng(5)
    variation = detectable(2_000, 32, 1e-3)
    law = np.full(32, 1 / 32)
    law[::2] += 2 * variation / 32
    law[1::2] -= 2 * variation / 32
    caught = 0
    for _ in range(300):
        cells = chance.choice(32, size=2_000, p=law)
        caught += uniformity("", list((cells + chance.random(2_000)) / 32), 1e-3).p_value < 1e-3
    assert caught >= 290


def test_uniform_numbers_pass_and_false_alarms_are_as_rare_as_stated() -> None:
    chance = np.random.default_rng(6)
    p_values = [uniformity("", list(chance.random(500)), 1e-3).p_value for _ in range(400)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_drift_has_the_stated_law_even_when_skewed_and_short() -> None:
    chance = np.random.default_rng(7)
    probs = np.array([0.9, 0.08, 0.02])
    surprise = -np.log(probs)
    alarms = 0
    for _ in range(1_200):
        drift = Drift()
        for token in chance.choice(3, size=60, p=probs):
            drift.add(probs, surprise, float(surprise[token]))
        alarms += drift.test("").p_value < 0.01
    assert alarms < 30  # 12 expected


def test_drift_sees_a_sharpened_law() -> None:
    chance = np.random.default_rng(8)
    probs = np.array([0.5, 0.3, 0.2])
    sharp = probs**1.3 / (probs**1.3).sum()
    surprise = -np.log(probs)
    drift = Drift()
    for token in chance.choice(3, size=3_000, p=sharp):
        drift.add(probs, surprise, float(surprise[token]))
    assert drift.test("").p_value < 1e-6
