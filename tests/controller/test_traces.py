"""The simulator: replayed rounds add up, and no policy beats the oracle."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from replaying.costs import COSTS
from replaying.trace_file import load, save

from spec_local.bench.traces import Costs, Trace, TraceText, oracle_seconds, plain_seconds, replay
from spec_local.drafting.draft import Draft
from spec_local.speculation.controller import FixedController, Plan
from spec_local.speculation.cost import Curve

_JAGGED = Costs("jagged", {1: 1.0, 2: 1.4, 3: 1.9, 4: 1.5, 5: 2.2, 64: 20.0}, {1: 0.3, 2: 0.45, 64: 6.0})


def _trace(prompt: list[int], tokens: list[int], agree: list[bool]) -> Trace:
    own = np.where(agree, tokens, -1).astype(np.int32)
    return Trace("made", "made", 0.0, prompt, tokens, own, np.full(len(tokens), 0.8))


@st.composite
def traces(draw: st.DrawFn, longest: int = 9) -> Trace:
    n = draw(st.integers(1, longest))
    ids = st.integers(0, 2)
    return _trace(
        draw(st.lists(ids, min_size=2, max_size=8)),
        draw(st.lists(ids, min_size=n, max_size=n)),
        draw(st.lists(st.booleans(), min_size=n, max_size=n)),
    )


def _exhaustive(trace: Trace, costs: Costs, sources: tuple[str, ...]) -> float:
    """The oracle by trying everything, drafted tokens that turn out wrong included."""
    text, n = TraceText(trace), len(trace)
    target, model = Curve(costs.target), Curve(costs.draft)

    @functools.cache
    def left(at: int, lag: int) -> float:
        if at >= n:
            return 0.0
        best = target.seconds(1) + left(at + 1, lag + 1)
        for k in range(1, n - at):
            if "text" in sources and k <= len(text.drafts[at][0]):
                a = min(k, text.right[at])
                best = min(best, target.seconds(1 + k) + left(at + a + 1, lag + a + 1))
            if "model" in sources:
                a = 0
                while a < k and trace.agree[at + a]:
                    a += 1
                drafting = model.seconds(lag) + (k - 1) * model.seconds(1)
                best = min(best, drafting + target.seconds(1 + k) + left(at + a + 1, 2 if a == k else 1))
        return best

    return left(1, 1)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_oracle_is_not_beaten_by_exhaustive_search(trace: Trace) -> None:
    for sources in (("model",), ("text",), ("model", "text")):
        least = _exhaustive(trace, _JAGGED, sources)
        assert oracle_seconds(trace, _JAGGED, sources) <= least + 1e-9
        if sources == ("model",):  # fillers may pad a text draft, but a model's cost their steps
            assert least <= plain_seconds(trace, _JAGGED) + 1e-9


@settings(max_examples=60, deadline=None)
@given(traces(40), st.integers(0, 6), st.sampled_from(["model", "text"]))
def test_replay_emits_the_text_once_and_the_oracle_is_faster(trace: Trace, length: int, source: str) -> None:
    rounds = replay(trace, FixedController(source, length), COSTS["A"])
    assert sum(r.emitted for r in rounds) == len(trace) - 1
    for r in rounds:
        assert 0 <= r.accepted <= r.tested <= r.drafted <= length
        assert r.emitted == r.accepted + 1
        assert r.width == r.tested + 1
    assert oracle_seconds(trace, COSTS["A"]) <= sum(r.seconds for r in rounds) + 1e-9


def test_fixed_draft_of_an_agreeing_model_costs_what_the_tables_say() -> None:
    trace = _trace([1, 2], [3] * 9, [True] * 9)
    rounds = replay(trace, FixedController("model", 3), _JAGGED)
    assert [r.emitted for r in rounds] == [4, 4]
    assert [r.draft_s for r in rounds] == pytest.approx([0.3 * 3, 0.45 + 0.3 * 2])  # the second catches up one token
    assert [r.verify_s for r in rounds] == pytest.approx([1.5, 1.5])


def test_what_the_model_reads_along_saves_steps_where_it_agrees() -> None:
    class ReadsThree(FixedController):
        def guess(self, plan: Plan, draft: Draft, rows: int) -> int:
            return 3

    passage = [3, 4, 5, 6, 7, 8, 9]
    right = _trace([1, 2, *passage, 1, 2], passage, [True] * 7)
    (first, *_) = replay(right, ReadsThree("model", 4), _JAGGED)
    assert (first.drafted, first.emitted) == (4, 5)
    assert first.draft_s == pytest.approx(Curve(_JAGGED.draft).seconds(1 + 3))
    wrong = _trace([1, 2, *passage, 1, 2], passage, [True, True, False, True, True, True, True])
    (first, *_) = replay(wrong, ReadsThree("model", 4), _JAGGED)
    steps = Curve(_JAGGED.draft)
    assert first.accepted == 1
    assert first.draft_s == pytest.approx(steps.seconds(1 + 3) + steps.seconds(1 + 1))  # two tokens from each pass


def test_saved_traces_come_back(tmp_path: Path) -> None:
    made = [_trace([1, 2, 3], [4, 5], [True, False]), _trace([7], [8, 9, 10], [False, True, True])]
    save(tmp_path / "traces.npz", made)
    for before, after in zip(made, load(tmp_path / "traces.npz"), strict=True):
        assert (before.name, before.kind, before.temperature) == (after.name, after.kind, after.temperature)
        assert (before.prompt, before.tokens) == (after.prompt, after.tokens)
        assert np.array_equal(before.own, after.own)
        assert np.allclose(before.confidence, after.confidence, atol=1e-4)
