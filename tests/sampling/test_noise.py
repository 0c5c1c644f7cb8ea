"""Noise: the same numbers in every version, uniform, independent. The draw: the right law, whatever the shortcut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from spec_local.sampling import Noise, Purpose

IDS = np.arange(200_000, dtype=np.int32)
ALPHA = 1e-4

GOLDEN_UNIFORM = [0.8000626576302411, 0.8041819299151259, 0.18661564402972097]
GOLDEN_SHARED = [0.7272450643471967, 0.8155302292051958, 0.9209767729355236]
GOLDEN_DRAFT = [0.5813471470651278, 0.30796774520766934]
GOLDEN_CHOICE = 53
GOLDEN_OF_PROMPT = 0.31405234364364787
GOLDEN_CHOICE_OF_PROMPT = 19


def uniforms(noise: Noise, purpose: Purpose, position: int, count: int) -> np.ndarray:
    return np.exp(-noise.exponential(purpose, position, IDS[:count]))


def test_golden_values() -> None:
    """A seed must give the same text in every version: these numbers may never change."""
    noise = Noise(7)
    assert [noise.uniform(Purpose.ACCEPT, position) for position in (0, 1, 1000)] == GOLDEN_UNIFORM
    np.testing.assert_allclose(
        noise.exponential(Purpose.SHARED, 5, np.array([0, 1, 151_935])), GOLDEN_SHARED, rtol=1e-15
    )
    np.testing.assert_allclose(
        noise.for_round(3).exponential(Purpose.DRAFT, 5, np.array([0, 1])), GOLDEN_DRAFT, rtol=1e-15
    )
    assert noise.choose(Purpose.SHARED, 12, IDS[:100], np.arange(1.0, 101.0)) == GOLDEN_CHOICE


def test_golden_values_of_a_prompt() -> None:
    """The same for noise that knows its prompt."""
    noise = Noise(7, [1, 2, 151_935])
    assert noise.uniform(Purpose.ACCEPT, 0) == GOLDEN_OF_PROMPT
    assert noise.choose(Purpose.SHARED, 12, IDS[:100], np.arange(1.0, 101.0)) == GOLDEN_CHOICE_OF_PROMPT


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**31 - 1), min_size=1), st.integers(0, 2**31 - 1))
def test_noise_is_a_function_of_seed_and_prompt(seed: int, prompt: list[int], other: int) -> None:
    def first(noise: Noise) -> float:
        return noise.uniform(Purpose.SHARED, 3)

    assert first(Noise(seed, prompt)) == first(Noise(seed, tuple(prompt)))
    others = [[*prompt, other], [other, *prompt], [*prompt[:-1], prompt[-1] ^ 1], []]
    others += [] if prompt == prompt[::-1] else [prompt[::-1]]
    assert len({first(Noise(seed, ids)) for ids in [prompt, *others]}) == len({tuple(x) for x in [prompt, *others]})


def test_prompts_of_one_seed_are_a_sample() -> None:
    """200 prompts of one length that ask for one of ten: as many of each as chance allows, at every position."""
    digits, even = np.arange(10, dtype=np.int32), np.full(10, 0.1)
    for position in (30, 31, 300):
        chosen = [Noise(7, [5, i, 9]).choose(Purpose.SHARED, position, digits, even) for i in range(200)]
        assert stats.chisquare(np.bincount(chosen, minlength=10)).pvalue > ALPHA


def test_streams_follow_splitmix64() -> None:
    """Token x reads output x of the splitmix64 stream that starts at the key, top 52 bits, centred."""
    noise, mask = Noise(11), 2**64 - 1
    key = noise._key(Purpose.RESIDUAL, 40)
    expected = []
    for token in (0, 1, 77, 151_935):
        z = (key + token * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(-np.log((((z ^ (z >> 31)) >> 12) + 0.5) / 2**52))
    np.testing.assert_allclose(
        noise.exponential(Purpose.RESIDUAL, 40, np.array([0, 1, 77, 151_935])), expected, rtol=1e-14
    )


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 2**63 - 1), st.sampled_from(Purpose), st.integers(0, 2**40), st.integers(1, 300))
def test_noise_of_a_token_does_not_depend_on_its_company(
    seed: int, purpose: Purpose, position: int, count: int
) -> None:
    noise = Noise(seed)
    together = noise.exponential(purpose, position, IDS[:count])
    assert together[-1] == noise.exponential(purpose, position, IDS[count - 1 : count])[0]
    assert np.all(together > 0)
    assert np.all(np.isfinite(together))


def test_uniform_over_tokens_and_over_positions() -> None:
    noise = Noise(2)
    for purpose in Purpose:
        assert stats.kstest(uniforms(Noise(1), purpose, 17, 50_000), "uniform").pvalue > ALPHA
        across = [noise.uniform(purpose, position) for position in range(5_000)]
        assert stats.kstest(across, "uniform").pvalue > ALPHA
        one_token = np.exp([-noise.exponential(purpose, position, IDS[5:6])[0] for position in range(2_000)])
        assert stats.kstest(one_token, "uniform").pvalue > ALPHA


def test_low_and_high_bits_are_uniform() -> None:
    bits = (uniforms(Noise(4), Purpose.SHARED, 0, 200_000) * 2**20).astype(np.int64)
    counts = np.bincount(bits & 0xFF, minlength=256)
    assert stats.chisquare(counts).pvalue > ALPHA
    assert stats.chisquare(np.bincount(bits >> 12, minlength=256)).pvalue > ALPHA


def streams() -> dict[str, np.ndarray]:
    count = 20_000
    noise = Noise(5)
    result = {f"purpose {purpose.name}": uniforms(noise, purpose, 9, count) for purpose in Purpose}
    result["next position"] = uniforms(noise, Purpose.SHARED, 10, count)
    result["next seed"] = uniforms(Noise(6), Purpose.SHARED, 9, count)
    result["next token"] = uniforms(noise, Purpose.SHARED, 9, count + 1)[1:]
    result["round 8"] = uniforms(noise.for_round(8), Purpose.DRAFT, 9, count)
    result["round 9"] = uniforms(noise.for_round(9), Purpose.DRAFT, 9, count)
    result["round 8, accept"] = uniforms(noise.for_round(8), Purpose.ACCEPT, 9, count)
    return result


def test_streams_are_independent_of_each_other() -> None:
    names, arrays = zip(*streams().items(), strict=True)
    tests = len(names) * (len(names) - 1) // 2
    for i in range(len(names)):
        for j in range(i):
            table = np.histogram2d(arrays[i], arrays[j], bins=8, range=[[0, 1], [0, 1]])[0]
            assert stats.chisquare(table.ravel()).pvalue > ALPHA / tests, (names[i], names[j])


def test_consecutive_positions_and_purposes_of_the_uniform_are_independent() -> None:
    noise = Noise(8)
    rows = np.array([[noise.uniform(purpose, position) for purpose in Purpose] for position in range(8_000)])
    lagged = np.column_stack([rows[:-1], rows[1:]])
    correlation = np.corrcoef(lagged.T) - np.eye(lagged.shape[1])
    assert np.abs(correlation).max() < 5 / np.sqrt(len(lagged))


def test_a_round_changes_drafting_and_acceptance_only() -> None:
    plain, bound = Noise(9), Noise(9).for_round(30)
    assert (plain.start, bound.start) == (None, 30)
    assert bound.for_round(31).uniform(Purpose.DRAFT, 40) == plain.for_round(31).uniform(Purpose.DRAFT, 40)
    for purpose in Purpose:
        same = bool(plain.uniform(purpose, 31) == bound.uniform(purpose, 31))
        assert same == (purpose in (Purpose.SHARED, Purpose.RESIDUAL))
        same = bool(np.all(uniforms(plain, purpose, 31, 10) == uniforms(bound, purpose, 31, 10)))
        assert same == (purpose in (Purpose.SHARED, Purpose.RESIDUAL))


def test_seeds_differ_and_zero_is_a_seed() -> None:
    assert len({Noise(seed).uniform(Purpose.SHARED, 0) for seed in [*range(100), 2**63 - 1, 2**32]}) == 102


def test_happens_at_its_bounds_and_at_its_rate() -> None:
    noise = Noise(10)
    assert not any(noise.happens(Purpose.ACCEPT, position, 0.0) for position in range(2_000))
    assert all(noise.happens(Purpose.ACCEPT, position, 1.0) for position in range(2_000))
    rate = sum(noise.happens(Purpose.ACCEPT, position, 0.3) for position in range(20_000)) / 20_000
    assert abs(rate - 0.3) < 4 * np.sqrt(0.21 / 20_000)


def test_choice_follows_the_weights() -> None:
    weights = np.array([1.0, 2.0, 0.5, 4.0, 0.01, 2.49])
    ids = np.array([3, 9, 10, 500, 70_000, 151_000], np.int32)
    noise = Noise(11)
    drawn = [noise.choose(Purpose.SHARED, position, ids, weights) for position in range(10_000)]
    counts = [drawn.count(token) for token in ids]
    assert sum(counts) == 10_000
    assert stats.chisquare(counts, weights / weights.sum() * 10_000).pvalue > ALPHA


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 2**63 - 1), st.integers(2, 50), st.floats(1e-20, 1e20))
def test_choice_ignores_scale_and_order_of_magnitude(seed: int, count: int, scale: float) -> None:
    noise, weights = Noise(seed), np.linspace(1.0, 3.0, count)
    assert noise.choose(Purpose.RESIDUAL, 1, IDS[:count], weights) == noise.choose(
        Purpose.RESIDUAL, 1, IDS[:count], weights * scale
    )


def test_one_token_is_chosen_without_noise() -> None:
    assert Noise(0).choose(Purpose.SHARED, 0, np.array([42], np.int32), np.ones(1)) == 42


def test_ties_go_to_the_smallest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "_log_uniform", lambda self, purpose, position, ids: -np.ones(len(ids)))
    assert Noise(0).choose(Purpose.SHARED, 0, np.array([4, 6, 8], np.int32), np.array([1.0, 2.0, 2.0])) == 6


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.5, 6.0])
@pytest.mark.parametrize("size", [4_097, 8_192, 50_001])
def test_long_rows_draw_what_the_plain_race_draws(spread: float, size: int) -> None:
    """Pruning before the logarithm changes nothing."""
    rng = np.random.default_rng(int(spread * 10) + size)
    for seed in range(12):
        weights = np.exp(rng.normal(size=size) * spread)
        weights /= weights.sum()
        ids = np.sort(rng.choice(151_936, size, replace=False)).astype(np.int32)
        noise = Noise(seed)
        scores = weights / noise.exponential(Purpose.SHARED, 3, ids)
        assert noise.choose(Purpose.SHARED, 3, ids, weights) == ids[np.argmax(scores)]
