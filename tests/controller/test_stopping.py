"""The stopping table against direct enumeration of all that can be drawn."""

from __future__ import annotations

import functools
import time

import pytest
from hypothesis import example, given, settings, strategies as st

from spec_local.speculation.policy.stopping import solve

_STEPS = [0.05, 0.3, 0.9]
_ROWS = [[0.1] * 4, [0.5, 0.4, -0.2, 0.6], [0.9, 0.01, 0.01, 0.01]]


def _value(rates: list[float], weights: list[float], step: float, rows: list[float]) -> float:
    """Value of the first draw, by the recursion itself on exact survivals."""

    @functools.cache
    def go_on(k: int, survival: float) -> float:
        total = -step
        for a, w in zip(rates, weights, strict=True):
            later = max(go_on(k + 1, survival * a), 0.0) if k + 1 < len(rows) else 0.0
            total += w * max(survival * a - rows[k] + later, 0.0)
        return total

    return go_on(0, 1.0)


@settings(max_examples=100, deadline=None)
@example([(0.96875, 1.0)], 0.9, [0.9, 0.01, 0.01, 0.01])  # 0.07 beside it where G was interpolated in log S
@given(
    st.lists(st.tuples(st.floats(0.05, 0.99), st.floats(0.1, 1.0)), min_size=1, max_size=4),
    st.sampled_from(_STEPS),
    st.sampled_from(_ROWS),
)
def test_value_is_that_of_the_exact_recursion(kinds: list[tuple[float, float]], step: float, rows: list[float]) -> None:
    total = sum(w for _, w in kinds)
    rates, weights = [a for a, _ in kinds], [w / total for _, w in kinds]
    exact = _value(rates, weights, step, rows)
    assert solve(rates, weights, step, rows).value == pytest.approx(exact, abs=0.03)


def test_a_certain_draft_is_drawn_until_rows_cost_more_than_they_bring() -> None:
    table = solve([0.998], [1.0], 0.1, [0.2, 0.2, 0.2, 1.5, 1.5])
    assert [table.more(k, 0.99) for k in range(6)] == [True, True, True, False, False, False]


def test_a_step_in_the_cost_is_looked_across() -> None:
    """The second row is dear and the next three are free: one goes on only where all of them are likely."""
    table = solve([0.9], [1.0], 0.05, [0.1, 1.5, 0.0, 0.0, 0.0])
    assert table.more(1, 0.95)
    assert not table.more(1, 0.4)
    near = solve([0.9], [1.0], 0.05, [0.1, 1.5])
    assert not near.more(1, 0.95)


def test_thresholds_fall_with_better_odds_and_rise_with_the_price() -> None:
    def first(rate: float, step: float) -> float:
        return solve([rate], [1.0], step, [0.3] * 8).thresholds[1]

    assert first(0.9, 0.1) < first(0.6, 0.1) < first(0.6, 0.2)


def test_a_hopeless_draft_is_worth_less_than_nothing() -> None:
    table = solve([0.1], [1.0], 0.5, [0.5] * 16)
    assert table.value < 0
    assert not table.more(0, 1.0)


def test_solving_takes_well_under_a_millisecond() -> None:
    begin = time.process_time()
    for _ in range(20):
        solve([0.1 * k + 0.05 for k in range(10)], [0.1] * 10, 0.2, [0.2] * 16)
    assert (time.process_time() - begin) / 20 < 3e-3  # about 0.2 ms on an idle machine
