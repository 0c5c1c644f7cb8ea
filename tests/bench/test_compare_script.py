"""The comparison with llama.cpp's server, which is played: what is swept, who goes on, which ratios are told."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
from compare_llama_cpp import OURS_AUTO, OURS_PLAIN, THEIRS_PLAIN, Comparison, Found
from comparing.servers import Answer, ServerError
from comparing.sweep import PLAIN, Setting, settings
from timed_engine import TimedEngine

from spec_local.bench.workloads import BenchPrompt, Workload

WORKLOADS = [
    Workload("edit", "edit", (BenchPrompt("a", "abcabcabc"),)),
    Workload("chat", "chat", (BenchPrompt("b", "xyz"),)),
]


def test_what_is_swept():
    greedy = settings((2, 3, 5, 7), (0.0, 0.5, 0.75), 0.0)
    names = [s.name for s in greedy]
    assert len(set(names)) == len(names) == 12 + 5 + 3
    assert not any(s.probabilistic for s in greedy)
    assert {s.types[0] for s in greedy if "ngram" in s.name} == {
        *("ngram_simple", "ngram_map_k", "ngram_map_k4v", "ngram_mod", "ngram_cache")
    }
    sampled = settings((2, 3, 5, 7), (0.0, 0.5, 0.75), 0.8)
    assert len(sampled) == 24 + 8 and sum(s.probabilistic for s in sampled) == 12
    assert {s.types for s in settings((2,), (0.0,), 0.8, draft=False)} & {("draft_simple",)} == set()
    assert settings((3,), (0.5,), 0.0, ngram=False) == [Setting("draft 3 p_min 0.5", ("draft_simple",), 3, 0.5)]


def test_their_decode_speed_leaves_the_first_token_to_the_prompt():
    assert Answer("", 11, 2.0, 0, 0).tokens_per_s == 5.0


class _Pool:
    """Answers with known speeds: 8 tokens/s plain; draft 3 is best on edits, draft 2 on chat."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def get(self, setting: Setting) -> Any:
        if setting.name == "draft 9":
            raise ServerError("it does not start")

        def ask(request: dict[str, Any]) -> Answer:
            self.asked.append((setting.name, request))
            edit = "abc" in request["prompt"]
            speed = {"plain": 8.0, "draft 2": 9.0, "draft 3": 12.0 if edit else 6.0, "draft 5": 1.0}[setting.name]
            n = request["n_predict"]
            return Answer("text", n, (n - 1) / speed, 0, 0)

        return SimpleNamespace(ask=ask)


@pytest.fixture
def comparison(capsys: pytest.CaptureFixture[str]) -> Comparison:
    engine: Any = TimedEngine(("model",), noise=0.0)
    engine.vocabulary = SimpleNamespace(
        text=lambda ids, special=False: "abc" if len(ids) == 9 else "xyz" if len(ids) == 3 else "text"
    )
    arguments = argparse.Namespace(seed=5, max_tokens=20, sweep_tokens=10, finalists=1, repeats=3, per_workload=1)
    pool: Any = _Pool()
    return Comparison(arguments, engine, pool, engine.clock)


def test_the_best_setting_of_each_workload_goes_on_and_is_what_counts(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
):
    swept = [Setting(f"draft {n}", ("draft_simple",), n) for n in (2, 9, 3, 5)]
    candidates = {0.0: swept, 0.8: swept}
    for _ in comparison.sweep_all(WORKLOADS, candidates):
        pass
    assert "it does not start" in capsys.readouterr().err
    assert comparison.finalists(WORKLOADS[0], swept, 0.0) == [swept[2]]
    assert comparison.finalists(WORKLOADS[1], swept, 0.0) == [swept[0]]
    for _ in comparison.compare(WORKLOADS, candidates):
        pass
    greedy, _ = comparison.summary()
    edit, chat = greedy["workloads"]
    assert (edit["best_setting"], chat["best_setting"]) == ("draft 3", "draft 2")
    assert edit["tokens_per_s"][THEIRS_PLAIN] == pytest.approx(8.0)
    ours = edit["tokens_per_s"][OURS_AUTO]
    assert ours > edit["tokens_per_s"][OURS_PLAIN] > 0
    assert edit["auto_vs_best"] == pytest.approx(ours / 12.0)
    assert edit["best_vs_their_plain"] == pytest.approx(1.5)
    means = greedy["geometric_means"]
    assert means["best_vs_their_plain"] == pytest.approx((12 * 9) ** 0.5 / 8)
    assert means["gain_vs_best_gain"] == pytest.approx(means["auto_vs_our_plain"] / means["best_vs_their_plain"])
    assert edit["answers"] == edit["same_text"] == 3
    report = comparison.report()
    assert "geometric mean" in report and "Temperature 0.8" in report
    pool: Any = comparison.pool
    seeds = {
        t: {r["seed"] for _, r in pool.asked if r["temperature"] == t and r["n_predict"] == 20} for t in (0.0, 0.8)
    }
    assert seeds == {0.0: {5}, 0.8: {5, 6, 7}}
    assert all(r["ignore_eos"] and not r["cache_prompt"] for _, r in pool.asked)


def test_plain_decoding_may_be_their_best():
    found = Found({OURS_PLAIN: [10.0], OURS_AUTO: [11.0], THEIRS_PLAIN: [9.0], "draft 3": [5.0]}, [True])
    assert found.best() == THEIRS_PLAIN
    assert PLAIN.types == ("none",)
