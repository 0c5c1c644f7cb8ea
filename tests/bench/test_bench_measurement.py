"""The measurement itself, on toy models and a clock that moves when something takes time: its figures are exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from timed_engine import DRAFT_S, TARGET_S, TimedEngine

from spec_local.bench.arms import LENGTHS, make_arms
from spec_local.bench.bench import Bench, BenchSettings, quick
from spec_local.bench.curves import measure_curves
from spec_local.bench.player import Player
from spec_local.bench.results import Results
from spec_local.bench.speed_report import About, render
from spec_local.bench.trace_recording import record_trace
from spec_local.bench.traces import oracle_seconds
from spec_local.bench.verdict import judge
from spec_local.bench.workloads import BenchPrompt, Workload
from spec_local.errors import UsageError
from spec_local.sampling import Sampling
from spec_local.session.costs import TARGET_ROWS
from spec_local.speculation.controller import Seat
from spec_local.speculation.cost import Curve

WORKLOADS = (
    Workload("one", "first kind", (BenchPrompt("a", "abcabcabc"), BenchPrompt("b", "a longer prompt of its own"))),
    Workload("two", "second kind", (BenchPrompt("c", "xyz"),)),
)
HOT = Sampling(top_k=0, top_p=1.0, min_p=0.0)


def settings(**changes: Any) -> BenchSettings:
    values: dict[str, Any] = {"workloads": WORKLOADS, "tokens": 20, "repeats": 2, "sampling": HOT, "minutes": None}
    return BenchSettings(**(values | changes))


def carry_out(engine: TimedEngine, wanted: BenchSettings, stop_after: int | None = None) -> tuple[Bench, Results]:
    bench = Bench(engine, wanted, engine.clock, lambda: engine.cancelled)  # type: ignore[arg-type]
    for step in bench.steps():
        assert 0 <= step.done <= step.total
        if stop_after is not None and step.done >= stop_after:
            engine.cancel()
    results = bench.results()
    assert results is not None
    return bench, results


@pytest.fixture(autouse=True)
def no_native_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's draft gives many rows in a pass without a second context."""
    from contextlib import contextmanager

    from spec_local.bench import bench

    @contextmanager
    def rows(engine: TimedEngine) -> Any:
        draft = engine.loaded.draft
        yield None if draft is None else type(draft)(engine.draft_table, engine.clock, DRAFT_S, 32)

    monkeypatch.setattr(bench, "draft_rows", rows)


def test_every_arm_answers_every_prompt_equally_long_with_the_same_text():
    bench, results = carry_out(TimedEngine(), settings())
    names = ["plain", "fixed-2", "fixed-4", "fixed-7", "model", "text", "auto"]
    assert [arm.name for arm in bench.arms] == names
    assert results.complete and results.repeats == 2
    assert len(bench.runs) == 3 * 7 * 2 * 2
    assert {len(run.played.tokens) for run in bench.runs} == {20}
    texts: dict[Any, set[Any]] = {}
    for run in bench.runs:
        texts.setdefault((run.prompt, run.temperature), set()).add(run.played.tokens)
    assert all(len(found) == 1 for found in texts.values())
    assert len({next(iter(found)) for found in texts.values()}) > 3, "prompts and temperatures differ"
    for name in names:
        figures = results.get(name, 0.8)
        assert figures is not None and figures.same_text == (6, 6)


def test_plain_decoding_takes_exactly_its_passes():
    _, results = carry_out(TimedEngine(), settings())
    figures = results.get("plain", 0.0)
    assert figures is not None
    assert figures.tokens_per_s.values == pytest.approx([10.0, 10.0])
    assert figures.ratio.values == (1.0, 1.0)
    assert figures.statistics.rounds == figures.statistics.emitted == 2 * 3 * 20
    assert figures.draft_prefill_s == 0.0


def test_a_draft_that_always_agrees_has_the_speed_of_the_formula():
    bench, results = carry_out(TimedEngine(noise=0.0), settings(temperatures=(0.0,), tokens=21))
    found = results.get("fixed-2", 0.0)
    assert found is not None
    assert found.statistics.acceptance_rate == 1.0 and found.statistics.tokens_per_pass == 3.0
    target, draft = Curve(TARGET_S), Curve(DRAFT_S)
    # Seven rounds; the prompt's reading is booked apart, and the second drafted token is decoded with the next round.
    first = target.seconds(3) + draft.seconds(1) + draft.seconds(1)
    later = target.seconds(3) + draft.seconds(2) + draft.seconds(1)
    assert found.statistics.decode_s == pytest.approx(2 * 3 * (first + 6 * later))
    assert found.ratio.median == pytest.approx(21 * 0.1 / (first + 6 * later))
    assert [round(c.agreement or 0, 9) for c in results.ceilings.values()] == [1.0, 1.0]
    run = next(run for run in bench.runs if run.arm == "fixed-2" and run.prompt == "a")
    assert run.played.draft_prefill_s == pytest.approx(draft.seconds(8))
    assert run.played.prefill_s == pytest.approx(target.seconds(8))
    assert run.played.ttft_s == pytest.approx(target.seconds(8) + draft.seconds(8) + first)


def test_an_arm_inherits_nothing_from_the_arm_before_it():
    engine = TimedEngine()
    curves = measure_curves(engine, 1, engine.clock)  # type: ignore[arg-type]
    arms = make_arms(("model", "text"), LENGTHS)
    player = Player(engine, arms, curves, engine.clock)  # type: ignore[arg-type]
    sampling = settings().sampling_at(0.0)
    prompt = WORKLOADS[0].prompts[1]
    player.read(prompt)
    alone = player.play(arms[2], prompt, sampling)
    for before in (arms[1], arms[3], arms[5]):
        player.play(before, prompt, sampling)
        again = player.play(arms[2], prompt, sampling)
        assert [r.seconds for r in again.rounds] == pytest.approx([r.seconds for r in alone.rounds])
        assert again.draft_prefill_s == pytest.approx(alone.draft_prefill_s)


def test_every_arm_decides_about_the_prompt_as_if_the_target_had_just_read_it(monkeypatch: pytest.MonkeyPatch):
    """The target reads it once for all arms; a user's reads it every time, and the draft model then reads it too."""
    engine = TimedEngine()
    player = Player(engine, make_arms(("model",), (2,)), measure_curves(engine, 1), engine.clock)  # type: ignore[arg-type]
    told: list[int] = []

    def watched(opens: Callable[[Seat, int], str], seat: Seat, read: int) -> str:
        told.append(read)
        return opens(seat, read)

    for controller in player._controllers.values():
        monkeypatch.setattr(controller, "opens", partial(watched, controller.opens))
    prompt = WORKLOADS[0].prompts[1]
    player.read(prompt)
    for arm in make_arms(("model",), (2,))[1:]:
        player.play(arm, prompt, settings().sampling_at(0.0))
        assert player.sequence is not None
        assert told.pop() == player.sequence.prompt_length - 1 > 1
    assert not told


def test_the_curves_are_what_the_passes_take():
    engine = TimedEngine()
    curves = measure_curves(engine, 2, engine.clock)  # type: ignore[arg-type]
    target = Curve(TARGET_S)
    assert curves.target == pytest.approx({n: target.seconds(n) for n in TARGET_ROWS})
    assert curves.step == pytest.approx(0.1)
    assert measure_curves(TimedEngine(("text",)), 1).draft is None  # type: ignore[arg-type]


def test_the_arms_take_turns():
    bench, _ = carry_out(TimedEngine(), settings(temperatures=(0.0,)))
    order = [list(group) for _, group in itertools.groupby(bench.runs, key=lambda run: run.key)]
    firsts = [runs[0].arm for runs in order]
    assert [len(runs) for runs in order] == [7] * 6
    assert len(set(firsts)) > 2, "another arm begins at each prompt"


def test_a_warm_up_of_every_arm_is_dropped():
    engine = TimedEngine()
    bench, _ = carry_out(engine, settings())
    lengths = [request.sampling.max_tokens for request in engine.prepared if request.sampling.max_tokens != 1]
    assert lengths == [8] * 7 + [20] * len(bench.runs)


def test_traces_are_those_of_the_draft_and_bound_the_default():
    bench, results = carry_out(TimedEngine(), settings())
    assert len(bench.traces) == 6  # every prompt and temperature once
    for trace in bench.traces:
        assert 0 < trace.agree.mean() <= 1
        assert oracle_seconds(trace, results.curves.costs()) > 0
    fixed = results.get("fixed-7", 0.0)
    assert fixed is not None
    for t in (0.0, 0.8):
        auto, oracle = results.get("auto", t), results.oracle(t)
        assert auto is not None and oracle is not None
        assert 1.0 < auto.ratio.median <= oracle * 1.05  # an answer's first round is outside of the traces
    assert results.what_if["half_draft_cost"] >= results.what_if["as_measured"] > 1.0


def test_a_trace_agrees_where_drafting_one_token_at_a_time_is_accepted():
    engine = TimedEngine(("model",), noise=1.0)
    bench, _ = carry_out(engine, settings(temperatures=(0.8,), lengths=(1,), repeats=1, workloads=WORKLOADS[1:]))
    (trace,) = bench.traces
    (run,) = [run for run in bench.runs if run.arm == "fixed-1"]
    at, outcomes = 0, []
    for r in run.played.rounds:
        if r.tested:
            outcomes.append((at, r.accepted))
        at += r.emitted
    assert {bool(accepted) for _, accepted in outcomes} == {True, False}
    assert [bool(trace.agree[i]) for i, _ in outcomes] == [bool(accepted) for _, accepted in outcomes]


def test_without_a_draft_model_only_the_text_is_compared():
    bench, results = carry_out(TimedEngine(("text",)), settings(tokens=60))
    assert [arm.name for arm in bench.arms] == ["plain", "fixed-2", "fixed-4", "fixed-7", "auto"]
    assert results.curves.draft is None
    assert all(c.agreement is None for c in results.ceilings.values())
    verdict = judge(results, 1, 1)
    assert verdict.headline.startswith("Drafting from the text")
    assert any("A draft model" in line for line in verdict.advice)


def test_without_any_draft_there_is_only_plain_decoding():
    bench, results = carry_out(TimedEngine(()), settings())
    assert [arm.name for arm in bench.arms] == ["plain"]
    assert bench.traces == [] and results.what_if == {}
    assert judge(results, 1, 1).ratio is None


def test_a_rule_whose_acceptance_depends_on_the_policy_has_traces_at_temperature_0_only():
    bench, _ = carry_out(TimedEngine(rule="rejection"), settings(repeats=1))
    assert {trace.temperature for trace in bench.traces} == {0.0}


def test_a_steep_target_is_called_a_slowdown():
    steep = {1: 0.1, 16: 1.6}
    _, results = carry_out(TimedEngine(("model",), noise=6.0, target_s=steep, draft_s={1: 0.09, 16: 0.5}), settings())
    verdict = judge(results, 1, 1)
    assert verdict.earns == "no"
    assert any(line.startswith("fixed-7 on first kind at temperature 0:") for line in verdict.slowdowns)
    assert any("Do not fix the draft length at 7" in line for line in verdict.advice)
    assert any(line.startswith("A much cheaper draft") for line in verdict.advice)


@pytest.mark.parametrize("after", [1, 5, 40])
def test_stopped_it_shows_what_it_has(after: int):
    bench, results = carry_out(TimedEngine(), settings(), stop_after=after)
    assert not results.complete and not bench.finished
    assert after <= len(bench.runs) < 84
    judge(results, 1, 1)
    figures = results.get("plain", 0.0)
    assert figures is not None and figures.tokens_per_s.median == pytest.approx(10.0)


def test_stopped_before_anything_was_measured_there_is_nothing_to_show():
    engine = TimedEngine()
    engine.cancel()
    bench = Bench(engine, settings(), engine.clock, lambda: True)  # type: ignore[arg-type]
    assert [step.what for step in bench.steps()]
    assert bench.results() is None


def test_fewer_prompts_where_time_is_short():
    engine = TimedEngine()
    many = Workload("many", "many", tuple(BenchPrompt(str(i), "abcdef") for i in range(9)))
    bench = Bench(engine, settings(workloads=(many,), minutes=4.0), engine.clock)  # type: ignore[arg-type]
    started = engine.clock()
    for _ in bench.steps():
        pass
    assert 1 < len(bench.workloads[0].prompts) < 9
    assert bench.plan.startswith(
        f"{len(bench.workloads[0].prompts)} of 9 prompts × 7 arms × 2 temperatures × 2 repeats"
    )
    assert engine.clock() - started < 4 * 60


def test_quick_begins_no_repeat_it_cannot_end():
    engine = TimedEngine()
    chosen = quick(settings(repeats=50))
    assert (chosen.tokens, chosen.temperatures, chosen.lengths, chosen.alone) == (20, (0.0,), (4,), False)
    assert chosen.workloads[0].prompts == (BenchPrompt("a", "abcabcabc"),)
    bench = Bench(engine, chosen, engine.clock)  # type: ignore[arg-type]
    started = engine.clock()
    for _ in bench.steps():
        pass
    assert bench.finished
    results = bench.results()
    assert results is not None and 1 < results.repeats < 50
    assert engine.clock() - started <= 45


def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs():
    long = Workload("long", "long", (BenchPrompt("book", "x" * 500),))
    engine = TimedEngine()
    with pytest.raises(UsageError, match="'book' and an answer of 20 tokens need 520 tokens; the context holds 512"):
        Bench(engine, settings(workloads=(long,)))  # type: ignore[arg-type]


def test_a_trace_without_a_draft_model_never_agrees():
    engine = TimedEngine(("text",))
    bench, _ = carry_out(engine, settings(repeats=1))
    assert not any(trace.agree.any() for trace in bench.traces)
    assert record_trace.__doc__


def test_quick_gives_shorter_answers_on_a_slow_machine():
    slow = TimedEngine(target_s={n: 10 * s for n, s in TARGET_S.items()})
    bench = Bench(slow, quick(settings(tokens=32)), slow.clock)  # type: ignore[arg-type]
    started = slow.clock()
    for _ in bench.steps():
        pass
    assert {len(run.played.tokens) for run in bench.runs} == {12}
    assert slow.clock() - started < 120


def test_case_18_a_slowdown_is_printed_as_one_with_advice():
    """abetlen/llama-cpp-python#2110: drafting that costs more than it brings, and nobody tells the user."""
    steep = {1: 0.1, 16: 1.5}  # a processor: n rows cost nearly n single ones
    workloads = (Workload("prose", "free prose", (BenchPrompt("p", "abc"),)),)
    engine = TimedEngine(("text",), target_s=steep)
    bench, results = carry_out(engine, settings(workloads=workloads, temperatures=(0.8,), repeats=3))
    assert {run.prompt for run in bench.runs} == {"p"}, "the same prompt"
    assert {len(run.played.tokens) for run in bench.runs} == {20}, "the same token count"
    plain, fixed = results.get("plain", 0.8), results.get("fixed-7", 0.8)
    assert plain is not None and fixed is not None
    assert len(plain.tokens_per_s.values) == 3, (
        "three runs beside plain decoding in the same process, the warm-up dropped"
    )
    assert plain.tokens_per_s.median == pytest.approx(10.0), "the reading of the prompt is no part of it"
    assert fixed.ratio.median < 1
    verdict = judge(results, 2, 2)
    about = About("toy", None, "a machine", 2, "coupled", 20, 1, 1, "0", {})
    report = render(about, results, verdict)
    line = next(line for line in report.splitlines() if line.startswith("  fixed-7 "))
    assert "slowdown" in line
    assert "Do not fix the draft length at 7" in report
    assert "fixed-7 on free prose at temperature 0.8" in report


def test_quick_takes_three_kinds_the_usual_ones_first():
    names = ("json", "summary", "translate", "edit", "chat")
    many = tuple(Workload(name, name, (BenchPrompt("long", "abcdef"), BenchPrompt("short", "abc"))) for name in names)
    chosen = quick(settings(workloads=many)).workloads
    assert [w.name for w in chosen] == ["edit", "chat", "json"]
    assert all([p.name for p in w.prompts] == ["short"] for w in chosen)
