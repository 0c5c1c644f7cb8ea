"""The adaptive controller on recorded answers: how near it comes to an omniscient one, and that it never costs.

The traces are of Qwen2.5-Coder-1.5B-Instruct (Q8_0, requantised) with its 0.5B sister (Q4_0) over eight kinds of text.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replaying.costs import COSTS
from replaying.trace_file import load

from spec_local.bench.traces import Costs, Trace, TraceText, oracle_seconds, plain_seconds, replay, seconds
from spec_local.drafting.drafter import Offer
from spec_local.speculation.controller import Controller, FixedController, Outcome, Seat
from spec_local.speculation.cost import CostProfile, Curve
from spec_local.speculation.policy import AdaptiveController
from spec_local.speculation.round import Round

MODEL, TEXT, BOTH = ("model",), ("text",), ("model", "text")
LENGTHS = (1, 2, 3, 4, 5, 7, 10, 15)


@functools.cache
def _traces(sampled: bool = False) -> tuple[tuple[Trace, TraceText], ...]:
    """Greedy answers, or those drawn at temperature 0.8."""
    traces = load(Path(__file__).parent / "traces.npz")
    return tuple((trace, TraceText(trace)) for trace in traces if (trace.temperature > 0) == sampled)


def _mean(speeds: list[float]) -> float:
    return float(np.exp(np.mean(np.log(speeds))))


def _speeds(costs: str, sources: tuple[str, ...], make: Callable[[], Controller], warm: bool = False) -> list[float]:
    """Speed against plain decoding on every trace, with a new controller for each or one that learns on."""
    table, controller, found = COSTS[costs], make(), []
    for trace, text in _traces():
        controller = controller if warm else make()
        found.append(plain_seconds(trace, table) / seconds(replay(trace, controller, table, sources, text)))
    return found


@functools.cache
def _adaptive(costs: str, sources: tuple[str, ...], warm: bool = False) -> tuple[float, ...]:
    return tuple(_speeds(costs, sources, lambda: AdaptiveController(COSTS[costs].profile()), warm))


@functools.cache
def _oracle(costs: str, sources: tuple[str, ...]) -> float:
    table = COSTS[costs]
    return _mean([plain_seconds(t, table) / oracle_seconds(t, table, sources, text) for t, text in _traces()])


def _share_of_oracle(costs: str, sources: tuple[str, ...], warm: bool = False) -> float:
    return _mean(list(_adaptive(costs, sources, warm))) / _oracle(costs, sources)


def test_the_traces_cover_eight_kinds_of_text() -> None:
    assert len({trace.kind for trace, _ in _traces()}) >= 8
    assert sum(len(trace) for trace, _ in _traces()) > 3000


@pytest.mark.parametrize("warm", [False, True])
def test_draft_model_alone_on_the_measured_pair(warm: bool) -> None:
    assert _share_of_oracle("A", MODEL, warm) >= 0.865
    assert _mean(list(_adaptive("A", MODEL, warm))) > 1.6
    assert min(_adaptive("A", MODEL, warm)) > 1.1


@pytest.mark.parametrize("warm", [False, True])
def test_draft_model_and_text_on_the_measured_pair(warm: bool) -> None:
    assert _share_of_oracle("A", BOTH, warm) >= 0.825
    both = _mean(list(_adaptive("A", BOTH, warm)))
    assert both > 1.12 * _mean(list(_adaptive("A", MODEL, warm)))
    assert both > 1.2 * _mean(list(_adaptive("A", TEXT, warm)))
    assert both > 1.85


def test_sampled_text_gains_too() -> None:
    """Temperature 0.8, coupled: the draft shares the target's noise."""
    table = COSTS["A"]
    speeds = [
        plain_seconds(t, table) / seconds(replay(t, AdaptiveController(table.profile()), table, BOTH, text))
        for t, text in _traces(sampled=True)
    ]
    assert len(speeds) >= 4
    assert _mean(speeds) > 1.5
    assert min(speeds) > 1.1


@pytest.mark.parametrize("warm", [False, True])
def test_where_the_draft_model_cannot_pay_text_drafts_earn_alone(warm: bool) -> None:
    """Pair B: 0.71 of a target pass per drafted token."""
    speeds = _adaptive("B", BOTH, warm)
    assert _mean(list(speeds)) > 1.24
    assert min(speeds) > 0.98
    assert _mean([s for s, (t, _) in zip(speeds, _traces(), strict=True) if t.kind == "edit"]) > 2.0
    assert _adaptive("B", MODEL, warm) == pytest.approx([1.0] * len(speeds))


@pytest.mark.parametrize("warm", [False, True])
def test_on_a_flat_curve_it_beats_the_best_fixed_length_in_hindsight(warm: bool) -> None:
    fixed = [_speeds("flat", MODEL, lambda k=k: FixedController("model", k)) for k in LENGTHS]  # type: ignore[misc]
    hindsight = _mean([max(speeds) for speeds in zip(*fixed, strict=True)])
    assert _mean(list(_adaptive("flat", MODEL, warm))) > 1.03 * hindsight
    assert _share_of_oracle("flat", MODEL, warm) >= 0.815
    assert _share_of_oracle("flat", BOTH, warm) >= 0.835


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("sources", [MODEL, BOTH])
def test_on_a_linear_curve_it_is_never_below_plain(sources: tuple[str, ...], warm: bool) -> None:
    speeds = _adaptive("linear", sources, warm)
    assert _mean(list(speeds)) >= 1.0
    assert min(speeds) > 0.98


def _made(own: np.ndarray, confidence: np.ndarray, n: int = 1000) -> Trace:
    """A text without a repetition, so that the text drafter has nothing to say."""
    tokens = list(range(10_000, 10_000 + n))
    return Trace("made", "made", 0.0, list(range(50)), tokens, np.where(own, tokens, -1).astype(np.int32), confidence)


def _confident(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A calibrated draft that is right nine times in ten."""
    noise = np.random.default_rng(seed)
    confidence = noise.beta(4.5, 0.5, n)
    return noise.random(n) < confidence, confidence


@pytest.mark.parametrize("costs", list(COSTS))
def test_random_tokens_said_with_confidence_cost_next_to_nothing(costs: str) -> None:
    trace = _made(np.zeros(1000, bool), np.random.default_rng(0).uniform(0.3, 1.0, 1000))
    table = COSTS[costs]
    rounds = replay(trace, AdaptiveController(table.profile()), table, MODEL)
    assert plain_seconds(trace, table) / seconds(rounds) >= 0.97


@pytest.mark.parametrize("costs", list(COSTS))
def test_a_draft_that_was_right_for_200_tokens_and_then_wrong(costs: str) -> None:
    own, confidence = _confident(1000, 3)
    own[200:] = False
    table = COSTS[costs]
    trace = _made(own, confidence)
    rounds = replay(trace, AdaptiveController(table.profile()), table, MODEL)
    assert plain_seconds(trace, table) / seconds(rounds) >= 0.97


def test_a_draft_that_turns_good_is_back_within_64_tokens() -> None:
    """Where reading what it has missed costs little; elsewhere a model that lost its stake may stay off."""
    costs = "flat"
    own, confidence = _confident(1000, 3)
    own[:100] = False
    table = COSTS[costs]
    rounds = replay(_made(own, confidence), AdaptiveController(table.profile()), table, MODEL)
    at, back = 1, None
    for r in rounds:
        if at >= 100 and r.accepted > 1 and back is None:
            back = at
        at += r.emitted
    assert back is not None
    assert back - 100 <= 64
    late = rounds[len(rounds) // 2 :]
    assert sum(r.source == "model" for r in late) > 0.9 * len(late)


def test_stalls_of_the_machine_change_little() -> None:
    """One pass in twenty takes ten times as long; decisions, judged at the true costs, stay nearly as good."""
    table, noise = COSTS["A"], np.random.default_rng(1)
    target, draft = Curve(table.target), Curve(table.draft)

    def true_seconds(trace: Trace, jitter: Callable[[], float]) -> float:
        rounds = replay(trace, AdaptiveController(table.profile()), table, MODEL, jitter=jitter)
        return sum(target.seconds(r.width) + r.drafted * draft.seconds(1) for r in rounds)

    traces = [trace for trace, _ in _traces()]
    quiet = sum(true_seconds(trace, lambda: 1.0) for trace in traces)
    assert sum(true_seconds(trace, lambda: 10.0 if noise.random() < 0.05 else 1.0) for trace in traces) < 1.04 * quiet


def test_frozen_decisions_do_not_depend_on_the_clock() -> None:
    table, noise = COSTS["A"], np.random.default_rng(2)
    trace, text = _traces()[0]

    def decisions(jitter: Callable[[], float]) -> list[tuple[str, int, int]]:
        controller = AdaptiveController(table.profile(), frozen=True)
        return [(r.source, r.drafted, r.tested) for r in replay(trace, controller, table, BOTH, text, jitter=jitter)]

    assert decisions(lambda: 1.0) == decisions(lambda: float(noise.uniform(0.2, 5.0)))


def _seat(controller: AdaptiveController, **offers: Offer) -> Seat:
    return Seat(controller.enter(), offers, 100)


def test_reasons_are_words() -> None:
    on = AdaptiveController(COSTS["A"].profile())
    (plan,) = on.plan([_seat(on, model=Offer(16))])
    assert plan.source == "model"
    assert plan.reason.startswith("model draft on: 0.8")
    off = AdaptiveController(COSTS["B"].profile())
    (plan,) = off.plan([_seat(off, model=Offer(16))])
    assert (plan.source, plan.limit) == ("none", 0)
    assert plan.reason.startswith("model draft off: 0.71 of a target pass per token, needs 0.9")
    (plan,) = off.plan([_seat(off)])
    assert plan.reason == "plain decoding: nothing to draft from"
    never = AdaptiveController(CostProfile(Curve({1: 0.1, 64: 6.4}), Curve({1: 0.09, 64: 5.0})))
    (plan,) = never.plan([_seat(never, model=Offer(16))])
    assert "no acceptance would pay for it" in plan.reason


def test_a_model_that_is_far_behind_must_promise_what_catching_up_costs() -> None:
    controller = AdaptiveController(COSTS["A"].profile())
    near, far = (controller.plan([_seat(controller, model=Offer(16, lag=lag))])[0] for lag in (1, 20_000))
    assert near.source == "model"
    assert far.source == "none"
    assert far.reason == "model draft off: it has 20000 tokens to read first"


@pytest.mark.parametrize("name", ["A", "A-AVX2", "C", "flat"])
def test_a_long_prompt_that_the_model_has_not_read_is_no_reason_to_be_slow(name: str) -> None:
    """Reading it in the middle of an answer that then ends takes back what drafting won, and more."""
    table = COSTS[name]
    for trace, text in _traces():
        controller, length = AdaptiveController(table.profile()), len(trace.prompt) + 400
        seat = Seat(controller.enter(), {"model": Offer(16, lag=length)}, length, len(trace))
        read = None if controller.opens(seat, 0) == "model" else -400
        rounds = replay(trace, controller, table, BOTH, text, seat.state, read=read)
        assert seconds(rounds) <= plain_seconds(trace, table) / 0.97, trace.name


def test_what_is_left_of_the_budget_limits_what_reading_can_bring() -> None:
    controller = AdaptiveController(COSTS["A"].profile())
    sources = []
    for remaining in (1000, 2):
        seat = Seat(controller.enter(), {"model": Offer(5, lag=20)}, 150, remaining)
        sources.append(controller.plan([seat])[0].source)
    assert sources == ["model", "none"]


@pytest.mark.parametrize(
    ("name", "read", "source"),
    [("A", 800, "model"), ("A-AVX2", 800, "model"), ("flat", 800, "model"), ("A", 0, "none"), ("A-AVX2", 100, "none"),
     ("B", 800, "none"), ("C", 800, "none"), ("linear", 800, "none")],
)  # fmt: skip
def test_a_model_that_would_draft_reads_the_prompt_where_that_is_little_beside_the_target(
    name: str, read: int, source: str
) -> None:
    controller = AdaptiveController(COSTS[name].profile())
    seat = Seat(controller.enter(), {"model": Offer(16, lag=800)}, 800, 64)
    assert controller.opens(seat, read) == source
    assert seat.state.account.won == 0  # nothing was decided


def test_reading_much_in_the_middle_of_an_answer_is_paid_from_the_account() -> None:
    controller = AdaptiveController(COSTS["A"].profile())
    seat = _seat(controller, model=Offer(16, lag=60))
    (plan,) = controller.plan([seat])
    assert (plan.source, plan.reason) == ("none", "model draft off: it has 60 tokens to read first")
    seat.state.account.won = 6.0
    (plan,) = controller.plan([seat])
    assert plan.source == "model"
    record = Round("model", 3, 2, 2, 0, 1, 0.6, 0.3, 0.0, "", 1, plan.plain_s)
    draft = _drafted(2)
    draft.passes = [60, 1]
    controller.observe([Outcome(plan, record, draft, [5])])
    assert seat.state.account.won < 6.0 - 3.0


def test_many_sequences_share_a_pass_and_draft_less_each() -> None:
    """On a machine where rows cost, eight sequences at once leave nothing to win by drafting."""
    costs = CostProfile(Curve({1: 0.1, 4: 0.11, 8: 0.2, 64: 1.6}), Curve({1: 0.03, 8: 0.05, 64: 0.4}))
    controller = AdaptiveController(costs)
    (alone,) = controller.plan([_seat(controller, model=Offer(16))])
    together = controller.plan([_seat(controller, model=Offer(16)) for _ in range(8)])
    assert alone.source == "model"
    assert {plan.source for plan in together} == {"none"}
    assert {plan.notes.others for plan in together} == {7}


def test_it_learns_from_the_rounds_of_several_sequences() -> None:
    controller = AdaptiveController(COSTS["flat"].profile())
    seats = [_seat(controller, model=Offer(16)) for _ in range(3)]
    for _ in range(6):
        plans = controller.plan(seats)
        outcomes = []
        for plan in plans:
            draft = _drafted(3 if plan.source == "model" else 0)
            record = Round(
                plan.source, 1 + len(draft), len(draft), len(draft), 0, 1, 0.01, 0.02, 0.0, "", 3, plan.plain_s
            )
            outcomes.append(Outcome(plan, record, draft, [5]))
        controller.observe(outcomes)
    assert {plan.source for plan in controller.plan(seats)} == {"none"}


def _drafted(n: int):
    from spec_local.drafting.draft import Draft

    return Draft([1] * n, None, "model", [0.9] * n, [1] * n)


def test_deciding_takes_microseconds() -> None:
    """Python must not be what a GPU waits for. The bound allows for a slow and busy machine."""
    table = COSTS["flat"]
    controller = AdaptiveController(table.profile())
    begin, rounds = time.process_time(), 0
    for trace, text in _traces()[:8]:
        rounds += len(replay(trace, controller, table, BOTH, text))
    assert (time.process_time() - begin) / rounds < 2e-3


@pytest.mark.parametrize(("name", "factor", "least"), [("A", 4, 0.85), ("A", 6, 0.75), ("flat", 20, 0.6)])
def test_a_draft_that_costs_far_more_than_measured_is_found_out(name: str, factor: int, least: float) -> None:
    """Another program holds the cores, and every draft step waits for it: on the kindest texts."""
    table = COSTS[name]
    real = Costs("busy", table.target, {rows: factor * seconds for rows, seconds in table.draft.items()})
    for kind in ("edit", "json"):
        traces = [trace for trace, _ in _traces() if trace.kind == kind]
        long = Trace(
            kind,
            kind,
            0.0,
            traces[0].prompt,
            [token for trace in traces for token in trace.tokens],
            np.concatenate([trace.own for trace in traces]),
            np.concatenate([trace.confidence for trace in traces]),
        )
        rounds = replay(long, AdaptiveController(table.profile()), real, MODEL)
        assert plain_seconds(long, real) / seconds(rounds) > least
        assert sum(r.drafted > 0 for r in rounds) < 20  # off soon, but for trials
