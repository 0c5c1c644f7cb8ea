"""What drafts may cost an answer, whatever the sources say and whatever the machine's curve is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from replaying.costs import COSTS

from spec_local.bench.traces import Costs, Trace, TraceText, plain_seconds, replay, seconds
from spec_local.drafting.draft import Draft
from spec_local.drafting.drafter import Offer
from spec_local.speculation.controller import Seat
from spec_local.speculation.cost import CostProfile, Curve
from spec_local.speculation.policy import AdaptiveController
from spec_local.speculation.policy.numbers import NUMBERS

CASES = ("wrong", "turns", "alternates", "alternates back", "coin")


class _Says(TraceText):
    """A ready source that offers 16 tokens with one confidence, right where `right` says so."""

    def __init__(self, trace: Trace, right: Sequence[bool], confidence: float) -> None:
        n = len(trace)
        self.drafts, self.right = [], []
        for i in range(n):
            tokens = [trace.tokens[j] if right[j] else -7 for j in range(i, min(n, i + 16))]
            self.drafts.append((tokens, [confidence] * len(tokens)))
            wrong = [j for j in range(i, min(n, i + 16)) if not right[j]]
            self.right.append((wrong[0] if wrong else min(n, i + 16)) - i)


def _right(case: str, n: int, rng: np.random.Generator) -> np.ndarray:
    at = np.arange(n)
    cases: dict[str, np.ndarray] = {
        "wrong": np.zeros(n, bool),
        "turns": at < rng.integers(1, n),
        "alternates": at // 10 % 2 == 0,
        "alternates back": at // 10 % 2 == 1,
        "coin": rng.random(n) < 0.5,
    }
    return cases[case]


def _speed(costs: Costs, right: np.ndarray, confidence: np.ndarray, sources: tuple[str, ...], said: float) -> float:
    n = len(right)
    tokens = list(range(10_000, 10_000 + n))
    own = np.where(right, tokens, -1).astype(np.int32)
    trace = Trace("made", "made", 0.0, list(range(50)), tokens, own, confidence)
    controller = AdaptiveController(costs.profile(), frozen=True)
    rounds = replay(trace, controller, costs, sources, _Says(trace, right.tolist(), said))
    return plain_seconds(trace, costs) / seconds(rounds)


@pytest.mark.parametrize("costs", list(COSTS))
@pytest.mark.parametrize("sources", [("model",), ("text",), ("model", "text")])
@pytest.mark.parametrize(("n", "least"), [(64, 0.97), (100, 0.98), (300, 0.98), (1000, 0.98)])
def test_confident_sources_that_are_wrong_lose_nothing_to_speak_of(
    costs: str, sources: tuple[str, ...], n: int, least: float
) -> None:
    rng = np.random.default_rng(n)
    for case in CASES:
        right, confidence = _right(case, n, rng), rng.uniform(0.9, 1.0, n)
        assert _speed(COSTS[costs], right, confidence, sources, 0.96) >= least, case


_SECONDS = st.floats(0.05, 3.0)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.integers(2, 40), _SECONDS, max_size=6),
    st.dictionaries(st.integers(2, 40), st.floats(0.01, 0.9), max_size=4),
    st.floats(0.01, 0.9),
    st.lists(st.booleans(), min_size=2, max_size=120),
    st.integers(0, 2**31),
    st.sampled_from([("model",), ("text",), ("model", "text")]),
)
def test_an_answer_is_never_further_behind_than_its_stake(
    target: dict[int, float],
    draft: dict[int, float],
    step: float,
    right: list[bool],
    seed: int,
    sources: tuple[str, ...],
) -> None:
    """On any curve, also one on which more rows take less, for any outcome and any confidence."""
    costs = Costs("any", {1: 1.0, **target}, {1: step, **draft})
    confidence = np.random.default_rng(seed).uniform(0.0, 1.0, len(right)) ** 0.2
    n = len(right) - 1  # the first token is not decoded here
    behind = n / _speed(costs, np.array(right), confidence, sources, float(confidence[0])) - n
    assert behind <= max(NUMBERS.stake, NUMBERS.stake_share * n) + 1e-6


def test_the_first_draft_is_as_long_as_the_stake_pays_for() -> None:
    """A slow start in costs: sixteen rows where they cost little, two where each costs most of a pass."""
    lengths = []
    for slope in (0.03, 0.3, 0.7):
        controller = AdaptiveController(CostProfile(Curve({1: 1.0, 64: 1 + 63 * slope})))
        offer = Offer(16, Draft([1] * 16, None, "any", [0.99] * 16))
        (plan,) = controller.plan([Seat(controller.enter(), {"any": offer}, 64)])
        lengths.append(plan.limit)
    assert lengths == [16, 5, 2]


def test_what_was_won_may_be_risked_and_what_was_lost_may_not() -> None:
    controller = AdaptiveController(CostProfile(Curve({1: 1.0, 64: 1 + 63 * 0.3})))
    offer = Offer(16, Draft([1] * 16, None, "any", [0.99] * 16))
    seat = Seat(controller.enter(), {"any": offer}, 64)
    limits = []
    for won in (0.0, 2.0, 9.0, -1.0, -1.5):
        seat.state.account.won = won
        limits.append(controller.plan([seat])[0].limit)
    assert limits == [5, 11, 16, 1, 0]


def test_certain_tokens_are_no_risk() -> None:
    """What a grammar leaves no choice about is drafted if it pays, with nothing left to lose."""
    controller = AdaptiveController(CostProfile(Curve({1: 1.0, 64: 1 + 63 * 0.5})))
    seat = Seat(controller.enter(), {"rules": Offer(6, Draft([1] * 6, None, "rules", [1.0] * 6))}, 64)
    seat.state.account.won = -NUMBERS.stake
    (plan,) = controller.plan([seat])
    assert (plan.source, plan.limit) == ("rules", 6)
