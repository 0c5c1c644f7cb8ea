"""Cost curves: interpolation, running updates that a stall cannot upset, and the saved form."""

from __future__ import annotations

import json

import pytest

from spec_local.speculation.cost import CLAMP, ROWS, SCALE_WEIGHT, CostProfile, Curve

_POINTS = {1: 0.072, 2: 0.109, 3: 0.134, 4: 0.124, 5: 0.159, 8: 0.223, 16: 0.273}


def test_measured_points_are_kept_steps_and_all() -> None:
    curve = Curve(_POINTS)
    for rows, seconds in _POINTS.items():
        assert curve.seconds(rows) == pytest.approx(seconds)
    assert curve.seconds(0) == 0.0
    assert curve.seconds(6) == pytest.approx(0.159 + (0.223 - 0.159) / 3)


def test_beyond_the_last_point_it_keeps_its_slope() -> None:
    curve = Curve({1: 1.0, 11: 3.0})
    assert curve.seconds(21) == pytest.approx(5.0)
    assert curve.seconds(ROWS) == pytest.approx(1.0 + 0.2 * 63)
    assert curve.seconds(1001) == pytest.approx(201.0)
    assert Curve({1: 1.0}).seconds(3) == pytest.approx(2.2)


def test_one_stall_moves_an_estimate_by_its_clamp_at_most() -> None:
    curve = Curve(_POINTS)
    curve.update(1, 100 * 0.072)
    assert curve.seconds(1) <= 0.072 * (1 + CLAMP * SCALE_WEIGHT) + 1e-12


def test_it_follows_a_machine_that_became_slower_and_a_width_that_was_measured_wrong() -> None:
    curve = Curve(_POINTS)
    for _ in range(100):
        curve.update(1, 2 * 0.072)
    assert curve.seconds(1) == pytest.approx(2 * 0.072, rel=0.02)
    assert curve.seconds(4) == pytest.approx(2 * 0.124, rel=0.02)
    curve = Curve(_POINTS)
    for _ in range(200):
        curve.update(4, 1.2 * 0.124)
        curve.update(1, 0.072)
    assert curve.seconds(4) == pytest.approx(1.2 * 0.124, rel=0.05)
    assert curve.seconds(1) == pytest.approx(0.072, rel=0.05)


def test_long_contexts_have_a_scale_of_their_own() -> None:
    curve = Curve(_POINTS)
    for _ in range(200):
        curve.update(1, 0.072, context=100)
        curve.update(1, 0.144, context=5000)
    assert curve.seconds(1, 100) == pytest.approx(0.072, rel=0.02)
    assert curve.seconds(1, 5000) == pytest.approx(0.144, rel=0.02)
    assert curve.seconds(1, 100_000) == pytest.approx(0.144, rel=0.02)


def test_a_profile_that_no_longer_fits_says_so() -> None:
    profile = CostProfile(Curve(_POINTS), Curve({1: 0.038, 2: 0.052}))
    assert not profile.stale
    for _ in range(100):
        profile.target.update(1, 0.15, 200)
    assert profile.stale
    other = CostProfile(Curve(_POINTS))
    for _ in range(300):
        other.target.update(4, 2 * 0.124)
        other.target.update(1, 0.072)
    assert other.stale


def test_a_saved_profile_comes_back() -> None:
    profile = CostProfile(Curve(_POINTS), Curve({1: 0.038, 2: 0.052}), {"machine": "x"})
    again = CostProfile.from_dict(json.loads(json.dumps(profile.as_dict())))
    assert again.as_dict() == profile.as_dict()
    assert again.target.table() == profile.target.table()
    assert CostProfile.from_dict(CostProfile(Curve(_POINTS)).as_dict()).draft is None


@pytest.mark.parametrize("damaged", [{}, {"target": {}}, {"target": {"1": 0.0}}, {"target": {"x": 1.0}}, {"target": 3}])
def test_what_is_no_profile_is_refused(damaged: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        CostProfile.from_dict(damaged)


def test_passes_are_filled_up_to_whole_tiles_where_that_is_faster() -> None:
    """Measured: a last tile of one row costs more than the full tile."""
    points = {1: 0.148, 2: 0.212, 3: 0.389, 4: 0.314, 5: 0.461, 6: 0.392, 7: 0.546, 8: 0.473, 12: 0.677, 16: 0.838}
    curve = Curve(points)
    assert [curve.width(n) for n in range(1, 10)] == [1, 2, 4, 4, 6, 6, 8, 8, 10]
    assert curve.seconds(3) == curve.seconds(4) == pytest.approx(0.314)
    assert curve.seconds(9) == curve.seconds(10) == pytest.approx(0.575)
    assert not CostProfile(curve).stale
    for _ in range(200):
        curve.update(3, 1.2 * 0.314)
        curve.update(1, 0.148)
    assert curve.seconds(3) == curve.seconds(4) == pytest.approx(1.2 * 0.314, rel=0.05)
    again = CostProfile.from_dict(json.loads(json.dumps(CostProfile(curve).as_dict())))
    assert again.target.width(5) == 6


def test_one_slow_width_is_no_tile() -> None:
    assert all(Curve(_POINTS).width(n) == n for n in range(1, ROWS))
    flat = {n: 0.1 + 0.001 * n for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)}
    assert all(Curve(flat).width(n) == n for n in range(1, ROWS))


def test_a_measurement_made_on_a_busy_machine_is_stale_after_one_short_answer() -> None:
    busy, quiet = Curve({1: 0.6, 4: 1.0}), Curve({1: 0.1, 4: 0.2})
    stalls = Curve({1: 0.1, 4: 0.2})
    for rows in (1, 2, 1, 4, 1, 3, 1, 2, 1, 1, 4, 1):
        busy.update(rows, quiet.seconds(rows), 30)
        stalls.update(rows, 0.7 if rows == 4 else quiet.seconds(rows), 30)
    assert busy.stale
    assert not stalls.stale


def test_a_measurement_in_which_many_rows_take_less_than_one_is_stale_from_the_start() -> None:
    assert Curve({1: 0.635, 4: 1.88, 8: 1.621, 12: 0.434, 16: 0.474}).stale
    assert not Curve({1: 0.11, 2: 0.14, 3: 0.28, 4: 0.22, 5: 0.33, 6: 0.29, 8: 0.31, 12: 0.48}).stale  # tiles
