"""The scheduler: slots refilled at once, failures kept to their item, nothing depends on neighbours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from batch_engines import ScriptedEngine, recited, text_of

from spec_local.batch.failures import Failure, ItemError, failure_type
from spec_local.batch.records import BadLine, Item
from spec_local.batch.requests import Recipe
from spec_local.batch.runner import Outcome, Runner
from spec_local.errors import BackendError, UsageError
from spec_local.session.concurrency import Fixed, Measured
from spec_local.session.generation import Request


def items(*prompts: str) -> Iterator[Item | BadLine]:
    return (Item(line, None, prompt) for line, prompt in enumerate(prompts, 1))


def runner(engine: ScriptedEngine, slots: int = 4, **options: Any) -> Runner:
    return Runner(engine, slots, Recipe().request, **options)


def answers(outcomes: list[Outcome]) -> dict[int, str]:
    return {o.line: o.result.text if o.result else failure_type(o.error or KeyError()) for o in outcomes}


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_every_item_gets_its_own_answer(slots: int) -> None:
    prompts = [f"prompt {'x' * (i % 7)} {i}" for i in range(20)]
    outcomes = list(runner(ScriptedEngine(), slots).run(items(*prompts)))
    assert answers(outcomes) == {i: recited(Request(p)) for i, p in enumerate(prompts, 1)}
    assert len(outcomes) == 20


def test_a_free_slot_is_refilled_before_the_next_step() -> None:
    engine = ScriptedEngine(per_step=8)
    list(runner(engine, 3).run(items("a" * 400, *"bcdefg")))
    assert [len(step) for step in engine.steps[:9]] == [3] * 9, "six short ones of three steps share two slots"
    assert len(engine.steps[-1]) == 1, "the long one is left alone"


def test_failures_end_one_item_only() -> None:
    prompts = ["fine", "REFUSE", "DEFECT", "also fine", "x" * 5000, "good"]
    outcomes = list(runner(ScriptedEngine(), 3).run(items(*prompts)))
    assert answers(outcomes) == {
        1: recited(Request("fine")), 2: "usage", 3: "internal", 4: recited(Request("also fine")), 5: "context_full",
        6: recited(Request("good")),
    }  # fmt: skip
    (defect,) = (o for o in outcomes if o.line == 3)
    assert defect.record()["error"] == {"type": "internal", "message": "KeyError: 'a defect'"}


def test_a_pass_that_fails_for_all_is_tried_again_one_by_one() -> None:
    prompts = ["one " * 20, "two " * 20, "EXPLODE", "three " * 20, *(f"later {i}" for i in range(6))]
    outcomes = list(runner(ScriptedEngine(), 4).run(items(*prompts)))
    expected = {i: recited(Request(p)) for i, p in enumerate(prompts, 1)} | {3: "backend"}
    assert answers(outcomes) == expected


def test_many_bad_items_among_good_ones_do_not_end_the_run() -> None:
    prompts = [f"EXPLODE {i}" if i % 2 else f"good {i}" for i in range(12)]
    found = answers(list(runner(ScriptedEngine(), 1).run(items(*prompts))))
    assert [found[i + 1] == "backend" for i in range(12)] == [i % 2 == 1 for i in range(12)]


@pytest.mark.parametrize("slots", [1, 4])
def test_a_backend_that_always_fails_ends_the_run(slots: int) -> None:
    engine = ScriptedEngine()
    engine.broken = True
    outcomes: list[Outcome] = []
    with pytest.raises(BackendError):
        outcomes.extend(runner(engine, slots).run(items(*"abcdefghijkl")))
    assert len(outcomes) <= 2


def test_timeout_fails_the_item_and_frees_its_slot() -> None:
    engine = ScriptedEngine(delay_s=0.002)
    found = answers(list(runner(engine, 2, timeout_s=0.1).run(items("FOREVER", "a", "SLOWPREFILL", "b", "c"))))
    assert found == {
        1: "timeout",
        2: recited(Request("a")),
        3: "timeout",
        4: recited(Request("b")),
        5: recited(Request("c")),
    }


def test_drain_finishes_what_is_in_flight_and_begins_nothing() -> None:
    engine = ScriptedEngine(delay_s=0.001)
    r = runner(engine, 3)
    outcomes = []
    for outcome in r.run(items("short", *(f"{'long ' * 30}{i}" for i in range(20)))):
        outcomes.append(outcome)
        r.drain()
    assert {o.line for o in outcomes} == {1, 2, 3} or {o.line for o in outcomes} == {1, 2, 3, 4}
    assert all(o.result for o in outcomes)


def test_stop_drops_what_is_in_flight() -> None:
    engine = ScriptedEngine(delay_s=0.001)
    r = runner(engine, 3)
    threading.Timer(0.05, r.stop).start()
    outcomes = list(r.run(items("FOREVER 1", "FOREVER 2", "FOREVER 3", "never begun")))
    assert outcomes == []
    assert engine.cancelled


def test_a_slow_source_does_not_hold_up_what_is_running() -> None:
    engine = ScriptedEngine(delay_s=0.002)
    arrived: list[float] = []

    def slow() -> Iterator[Item | BadLine]:
        yield Item(1, None, "first")
        time.sleep(0.5)
        arrived.append(time.perf_counter())
        yield Item(2, None, "second")

    ended = {o.line: time.perf_counter() for o in runner(engine, 4).run(slow())}
    assert ended[1] < arrived[0] < ended[2]


def test_a_source_that_fails_ends_the_run_after_what_was_read() -> None:
    def broken() -> Iterator[Item | BadLine]:
        yield Item(1, None, "first")
        raise UsageError("The input is UTF-16.")

    with pytest.raises(UsageError):
        list(runner(ScriptedEngine(), 1).run(broken()))


def test_bad_lines_are_outcomes_in_passing() -> None:
    bad = BadLine(2, "x", ItemError(Failure.INVALID_JSON, "No."), None)
    source: Iterator[Item | BadLine] = iter([Item(1, None, "a"), bad, Item(3, None, "b")])
    found = {o.line: o.record() for o in runner(ScriptedEngine(), 1).run(source)}
    assert found[2] == {"id": "x", "line": 2, "error": {"type": "invalid_json", "message": "No."}}
    assert len(found) == 3


def test_own_sampling_comes_before_that_of_the_run() -> None:
    from spec_local.sampling import Sampling

    recipe = Recipe(Sampling(temperature=0.5, top_k=7), system="run")
    request = recipe.request(Item(1, None, "a", "own", {"temperature": 0.0, "seed": 3}))
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) == (0.0, 7, 3)
    assert request.sampling.model_fields_set == {"temperature", "top_k", "seed"}, (
        "the rest stays the model's to recommend"
    )
    assert text_of(request) == "own\na"
    assert text_of(recipe.request(Item(1, None, "a"))) == "run\na"


# -- how many at once ------------------------------------------------------------------------------------------------


def settle(speed_of: dict[int, float], most: int) -> Measured:
    """Let `Measured` choose on a machine of these speeds (tokens/s of all sequences together, by their number)."""
    chosen = Measured(most)
    for _ in range(10_000):
        n = chosen.limit
        chosen.observe(n, n, n / speed_of[n])
    return chosen


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ({1: 10, 2: 19, 4: 35, 8: 60}, 8),
        ({1: 10, 2: 19, 4: 35, 8: 36}, 4),
        ({1: 10, 2: 10.2}, 1),
        ({1: 10, 2: 8}, 1),
        ({1: 10, 2: 19, 4: 18}, 2),
    ],
)
def test_auto_finds_the_fastest_number(speeds: dict[int, float], best: int) -> None:
    chosen = settle(speeds, 8)
    assert chosen.limit == best
    assert chosen.settled


def test_auto_with_a_number_of_slots_that_is_no_power_of_two() -> None:
    assert settle({1: 10, 2: 20, 4: 40, 6: 60}, 6).limit == 6
    assert settle({1: 10, 2: 20, 4: 40, 6: 41}, 6).limit == 4
    assert Measured(1).settled


def test_auto_ignores_rounds_that_are_not_full() -> None:
    chosen = Measured(8)
    for _ in range(1000):
        chosen.observe(3, 3, 1.0)
    assert chosen.limit == 1


def test_the_limit_is_kept() -> None:
    engine = ScriptedEngine()
    list(runner(engine, 8, concurrency=Fixed(2)).run(items(*"abcdefgh")))
    assert max(map(len, engine.steps)) == 2
