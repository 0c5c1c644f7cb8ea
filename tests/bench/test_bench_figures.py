"""Figures, words and pages from runs whose seconds are known."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from measured_bench import ABOUT, CURVES, FLAT, TOKENS, WORKLOADS, measured, played

from spec_local.bench import speed_page, speed_report
from spec_local.bench.arms import make_arms
from spec_local.bench.curves import Curves
from spec_local.bench.player import Played
from spec_local.bench.results import Ceiling, Results, Run, collect
from spec_local.bench.verdict import judge
from spec_local.speculation.round import Round


def test_a_ratio_is_the_median_over_repeats_of_paired_speeds():
    results = measured({"edit": [0.6, 0.8, 0.4]})
    figures = results.get("auto", 0.0, "edit")
    assert figures is not None
    assert figures.tokens_per_s.values == pytest.approx([20.0, 15.0, 30.0])
    assert figures.tokens_per_s.median == pytest.approx(20.0)
    assert figures.ratio.values == pytest.approx([2.0, 1.5, 3.0])
    assert (figures.ratio.median, figures.ratio.least, figures.ratio.most) == pytest.approx((2.0, 1.5, 3.0))
    plain = results.get("plain", 0.0, "edit")
    assert plain is not None and plain.ratio.values == (1.0, 1.0, 1.0)


def test_over_all_workloads_the_ratio_is_the_geometric_mean_of_medians():
    results = measured({"edit": [0.3, 0.3, 9.9], "chat": [1.2, 9.9, 1.2]})
    figures = results.get("auto", 0.0)
    assert figures is not None
    assert figures.ratio.median == pytest.approx(2.0)  # sqrt(4 · 1), whatever single repeats were
    assert figures.ratio.values == pytest.approx([2.0, math.sqrt(4 * 1.2 / 9.9), math.sqrt(1.2 / 9.9)])


def test_whole_answers_count_the_reading_of_the_prompt_in_both_caches():
    figures = measured({"edit": [0.6]}).get("auto", 0.0)
    assert figures is not None
    assert figures.answer_ratio.median == pytest.approx((0.5 + 1.2) / (0.5 + 0.1 + 0.6))


def test_runs_without_their_plain_counterpart_do_not_count():
    arms = make_arms(("model",), (2,), alone=False)
    runs = [
        Run("plain", "edit", "a", 0.0, 0, played(1.2)),
        Run("auto", "edit", "a", 0.0, 0, played(0.6, "model", 3, 2)),
        Run("auto", "edit", "b", 0.0, 0, played(0.1, "model", 3, 2)),  # stopped before plain's turn
    ]
    figures = collect(arms, [0.0], WORKLOADS, CURVES, runs, False).get("auto", 0.0)
    assert figures is not None and figures.ratio.median == pytest.approx(2.0)
    assert figures.statistics.emitted == TOKENS


def test_break_even_is_where_expected_tokens_pay_for_their_time():
    even = CURVES.break_even("model")  # one token: α = c + v(2) − 1 = 0.2 + 0.2; longer drafts need less per token
    assert even is not None
    gained = sum(even.acceptance**i for i in range(1, even.length + 1))
    assert gained == pytest.approx(even.length * 0.2 + CURVES.relative(even.length + 1) - 1)
    assert Curves({1: 0.1, 2: 0.12, 16: 1.6}, {1: 0.02}).break_even("model").acceptance == pytest.approx(0.4)  # type: ignore[union-attr]
    assert Curves({1: 0.1, 16: 2.0}, {1: 0.1}).break_even("model") is None
    assert Curves({1: 0.1, 16: 0.4}, None).break_even("model") is None
    free = FLAT.break_even("text")
    assert free is not None and free.acceptance == 0.0


def statistics_in_json(results: Results, arm: str) -> dict[str, Any]:
    verdict = judge(results, 2, 2)
    data = json.loads(json.dumps(speed_report.as_dict(ABOUT, results, verdict)))
    entry = next(entry for entry in data["arms"] if entry["name"] == arm)
    found = entry["temperatures"][0]["statistics"]
    assert isinstance(found, dict)
    return found


def scripted(drafts: list[tuple[int, int, int]]) -> Results:
    """Rounds of (drafted, tested, accepted) under "auto", beside a plain run."""
    rounds = tuple(Round("model" if d else "none", 1 + t, d, t, a, a + 1, 0.01, 0.1, 0.0, "") for d, t, a in drafts)
    answer = Played((1,), rounds, 0.5, 0.0, 0.6)
    arms = make_arms(("model",), (), alone=False)
    runs = [Run("plain", "edit", "p", 0.0, 0, played(1.2)), Run("auto", "edit", "p", 0.0, 0, answer)]
    return collect(arms, [0.0], WORKLOADS[:1], CURVES, runs)


def test_case_19_counts_are_equal_in_json_table_and_page():
    """ggml-org/llama.cpp#14048: drafts thrown away before verification are not part of the acceptance rate."""
    results = scripted([(4, 4, 4), (4, 4, 0), (1, 0, 0)])
    found = statistics_in_json(results, "auto")
    assert (found["drafted"], found["tested"], found["accepted"], found["skipped"]) == (9, 8, 4, 1)
    assert found["acceptance_rate"] == 0.5
    verdict = judge(results, 2, 2)
    line = next(
        line for line in speed_report.render(ABOUT, results, verdict).splitlines() if line.startswith("  auto ")
    )
    assert re.search(r"\s9\s+8\s+4\s+50%\s", line)
    page = speed_page.page(ABOUT, results, verdict)
    assert "<td>9</td><td>8</td><td>4</td><td>50%</td>" in page


def test_case_19_always_wrong_always_right_and_never_drafted():
    assert statistics_in_json(scripted([(4, 4, 0)] * 3), "auto")["acceptance_rate"] == 0.0
    assert statistics_in_json(scripted([(4, 4, 4)] * 3), "auto")["acceptance_rate"] == 1.0
    plain = statistics_in_json(scripted([(4, 4, 4)]), "plain")
    assert "acceptance_rate" not in plain and "per_position" not in plain
    line = next(
        line
        for line in speed_report.render(ABOUT, scripted([(0, 0, 0)]), judge(scripted([(0, 0, 0)]), 2, 2)).splitlines()
        if line.startswith("  auto ")
    )
    assert "%" not in line


def test_the_json_object_has_its_parts():
    results = measured({"edit": [0.6, 0.8], "chat": [1.5, 1.4]}, complete=False)
    results.ceilings = {(0.0, "edit"): Ceiling(2.5, None, 100)}
    data = json.loads(json.dumps(speed_report.as_dict(ABOUT, results, judge(results, 2, 2)), allow_nan=False))
    assert {"arms", "curves", "verdict", "oracle", "settings", "model", "machine"} <= data.keys()
    assert data["complete"] is False
    assert [arm["name"] for arm in data["arms"]] == ["plain", "fixed-2", "auto"]
    auto = data["arms"][-1]
    assert auto["draft_length"] == "auto" and auto["sources"] == ["model"]
    (at,) = auto["temperatures"]
    assert at["temperature"] == 0.0
    assert {"median", "min", "max", "values"} == at["ratio"].keys() == at["tokens_per_s"].keys()
    assert [w["name"] for w in at["workloads"]] == ["edit", "chat"]
    assert at["same_text"] == {"same": 4, "compared": 4}
    assert data["curves"]["target_s"]["1"] == 0.1
    assert data["curves"]["draft_step"] == pytest.approx(0.2)
    assert 0 < data["curves"]["break_even"]["model"]["acceptance"] < 1
    assert data["verdict"]["earns_its_place"] == "partly"
    assert data["oracle"]["workloads"] == [{"temperature": 0.0, "name": "edit", "oracle_ratio": 2.5, "tokens": 100}]


def test_the_terminal_report_names_slowdowns_and_shows_the_curve():
    results = measured({"edit": [0.6, 0.8], "chat": [1.5, 1.4]}, fixed=2.4)
    text = speed_report.render(ABOUT, results, judge(results, 2, 2))
    lines = text.splitlines()
    fixed = next(line for line in lines if line.startswith("  fixed-2 "))
    assert "0.50× (0.50–0.50)" in fixed and "slowdown" in fixed
    chat = next(line for line in lines if line.startswith("  chat "))
    assert "▾0.50" in chat and "▾0.83" in chat
    curve = next(line for line in lines if line.startswith("    2 "))
    assert "1.20" in curve and "120.0 ms" in curve and "█" in curve
    assert "Verdict" in lines
    assert "stopped" not in text.lower()
    part = measured({"edit": [0.6]}, complete=False)
    assert "Stopped before its end" in speed_report.render(ABOUT, part, judge(part, 2, 2))


class _Page(HTMLParser):
    """Collects what a page would fetch, and whether its tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        self.references += [
            value or "" for name, value in attrs if name in ("src", "href", "data", "xlink:href", "action")
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained_and_well_formed():
    results = measured({"edit": [0.6, 0.8], "chat": [1.5, 1.4]})
    results.ceilings = {(0.0, "edit"): Ceiling(2.5, 0.8, 100)}
    text = speed_page.page(ABOUT, results, judge(results, 2, 2))
    page = _Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.references == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", text)
    assert page.tags.count("svg") == 3
    assert "toy &lt;target&gt; with toy &amp; draft" in text and "<target>" not in text
    assert "slowdown" in text
