"""The verdict in words, from made records."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from measured_bench import ABOUT, CURVES, TOKENS, WORKLOADS, measured, played

from spec_local.bench import speed_page, speed_report
from spec_local.bench.arms import make_arms
from spec_local.bench.results import Ceiling, Results, Run, collect
from spec_local.bench.verdict import judge, versus_plain
from spec_local.speculation.round import Round


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.5, "0.50× plain decoding, a slowdown"),
        (0.99, "0.99× plain decoding, a slowdown"),
        (0.998, "1.00× plain decoding, no difference"),
        (1.0, "1.00× plain decoding, no difference"),
        (1.31, "1.31× plain decoding"),
    ],
)
def test_below_one_is_called_a_slowdown(ratio: float, words: str):
    assert versus_plain(ratio) == words


def test_the_verdict_where_it_pays():
    verdict = judge(measured({"edit": [0.6, 0.6, 0.5], "chat": [1.0, 1.0, 1.0]}), threads=2, cores=2)
    assert verdict.earns == "yes"
    assert verdict.ratio == pytest.approx(math.sqrt(2.0 * 1.2))
    assert verdict.headline == "The draft model earns its place here. Over all texts: 1.55× plain decoding."
    assert "At temperature 0 the default is 1.55× plain decoding (1.55 to 1.70 over 3 repeats)." in verdict.sentences
    assert "It gains on edit code (2.00×) and chat (1.20×)." in verdict.sentences
    assert verdict.slowdowns == ()


def test_the_verdict_where_it_pays_on_some_texts():
    verdict = judge(measured({"edit": [0.6], "chat": [1.5]}), threads=2, cores=2)
    assert verdict.earns == "partly"
    assert "on some kinds of text only" in verdict.headline
    assert "It gains on edit code (2.00×)." in verdict.sentences
    assert "It is a slowdown on chat (0.80×)." in verdict.sentences
    assert (
        "At temperature 0 the default is 1.26× plain decoding (one repeat: the spread is unknown)." in verdict.sentences
    )
    assert verdict.slowdowns == ("auto on chat at temperature 0: 0.80× plain decoding, a slowdown",)


def test_the_verdict_where_it_does_not_pay_gives_advice():
    results = measured({"edit": [1.5], "chat": [1.5]}, fixed=2.4)
    results.what_if = {"as_measured": 0.8, "half_draft_cost": 1.1, "flat_target": 1.9}
    results.ceilings = {(0.0, "edit"): Ceiling(1.25, 0.4, 100), (0.0, "chat"): Ceiling(1.0, 0.2, 100)}
    verdict = judge(results, threads=1, cores=4)
    assert verdict.earns == "no"
    assert (
        verdict.headline
        == "The draft model does not earn its place here. Over all texts: 0.80× plain decoding, a slowdown."
    )
    assert "It is a slowdown on edit code (0.80×) and chat (0.80×)." in verdict.sentences
    assert any("the draft agrees with the target at 30% of positions" in s for s in verdict.sentences)
    told = "\n".join(verdict.advice)
    assert "The default is a slowdown here (0.80×): use --draft none" in told
    assert "Do not fix the draft length at 2 (0.50×, a slowdown): leave it at auto." in told
    assert (
        "A cheaper draft: at half its cost and equal agreement the same texts would give 1.10× instead of 0.80×" in told
    )
    assert "with flat ones it would be 1.90×" in told
    assert "A draft that agrees more often: this one does at 30% of positions" in told
    assert "More threads: 1 of 4 physical cores were used (--threads 4)." in told
    assert len(verdict.slowdowns) == 4


def test_the_verdict_says_when_the_draft_model_adds_nothing_to_the_text():
    arms = make_arms(("model", "text"), ())
    assert [arm.name for arm in arms] == ["plain", "model", "text", "auto"]
    seconds = {"plain": 1.2, "model": 1.2, "text": 0.8, "auto": 0.8}
    runs = [
        Run(
            a.name,
            "edit",
            "p",
            0.0,
            0,
            played(seconds[a.name]) if a.name == "plain" else played(seconds[a.name], "text", 3, 2),
        )
        for a in arms
    ]
    verdict = judge(collect(arms, [0.0], WORKLOADS[:1], CURVES, runs), 2, 2)
    assert (
        "Alone, the draft model reaches 1.00× and the text 1.50×. The draft model adds nothing to drafting from the "
        "text: --draft text saves its memory." in verdict.sentences
    )


def test_the_verdict_without_a_draft_and_without_enough():
    plain = collect(make_arms((), ()), [0.0], WORKLOADS, CURVES, [Run("plain", "edit", "p", 0.0, 0, played(1.0))])
    verdict = judge(plain, 2, 2)
    assert (verdict.earns, verdict.ratio) == ("no", None)
    assert "no draft was in play" in verdict.headline
    short = collect(
        make_arms(("model",), (2,)), [0.0], WORKLOADS, CURVES, [Run("plain", "edit", "p", 0.0, 0, played(1.0))]
    )
    verdict = judge(short, 2, 2)
    assert (verdict.earns, verdict.ratio) == ("unknown", None)
    assert "Too little was measured" in verdict.headline


def repeated(
    plain: list[float], fixed: list[float], auto: list[float], drafts: str = "many", prompts: int = 1
) -> Results:
    """Answers of plain, fixed-4 and auto in so many seconds by repeat; each prompt takes plain 3 times the last one's.

    auto drafts in every round ("many"), in one round of its first repeat ("one"), or in none.
    """
    arms = make_arms(("model",), (4,), alone=False)
    runs = []
    for repeat, seconds in enumerate(auto):
        mine = played(seconds, "model", 3, 2) if drafts == "many" else played(seconds)
        if drafts == "one" and repeat == 0:
            lonely = Round("model", 2, 2, 1, 0, 1, 0.0, seconds / TOKENS, 0.0, "")
            mine = replace(mine, rounds=(lonely, *mine.rounds[1:]))
        for prompt in range(prompts):
            answers = {"plain": played(plain[repeat] * 3**prompt), "fixed-4": played(fixed[repeat], "model", 4, 1)}
            answers["auto"] = mine
            runs += [Run(arm.name, "chat", str(prompt), 0.0, repeat, answers[arm.name]) for arm in arms]
    return collect(arms, [0.0], WORKLOADS[1:], CURVES, runs)


def test_a_machine_too_busy_for_plain_decoding_gets_no_verdict():
    results = repeated([12 / 4.4, 12 / 11.6], fixed=[4.0, 1.1], auto=[2.6, 2.1], drafts="one")
    verdict = judge(results, 8, 4)
    assert verdict.headline == (
        "This machine was too busy for a verdict: plain decoding of the same answer ran at 4.4 to 11.6 tokens/s from "
        "repeat to repeat; close other programs and run it again, with more --repeats than 2 and without --quick, "
        "which has no time for them."
    )
    assert (verdict.earns, verdict.ratio, verdict.sentences, verdict.slowdowns) == ("unknown", None, (), ())
    assert verdict.advice == ("Fewer threads: 8 on 4 physical cores slow each other down (--threads 4).",)
    assert "ratio" not in verdict.as_dict() and verdict.as_dict()["earns_its_place"] == "unknown"
    report = speed_report.render(ABOUT, results, verdict)
    assert not re.search(r"× \([^)]*\)\s+slowdown|▾\d", report)
    assert "× slowdown" not in speed_page.page(ABOUT, results, verdict)


def test_prompts_of_different_speed_are_no_busy_machine():
    results = repeated([1.0, 1.1, 1.0], fixed=[1.0] * 3, auto=[0.8] * 3, prompts=3)
    assert results.plain_repeats is not None and results.plain_repeats.factor == pytest.approx(1.1)
    assert judge(results, 2, 2).earns == "yes"


def test_one_bad_repeat_of_many_is_no_busy_machine_and_one_repeat_cannot_tell():
    assert judge(repeated([1.0, 1.0, 1.0, 9.0, 1.0], [1.0] * 5, [0.8] * 5), 2, 2).earns == "yes"
    assert judge(repeated([1.0, 9.0, 1.0], [1.0] * 3, [0.8] * 3), 2, 2).earns == "unknown"
    assert repeated([1.0], [1.0], [0.8]).plain_repeats is None


@pytest.mark.parametrize("drafts", ["none", "one"])
def test_a_default_that_hardly_drafted_is_not_called_a_slowdown(drafts: str):
    results = repeated([1.0, 1.1], fixed=[0.9, 1.0], auto=[1.3, 1.4], drafts=drafts)
    verdict = judge(results, 2, 2)
    assert verdict.earns == "no"
    assert "0.78× plain decoding with hardly a draft, so drafting is not why." in verdict.headline
    assert "It hardly drafted on chat (0.78×)." in verdict.sentences
    page, report = speed_page.page(ABOUT, results, verdict), speed_report.render(ABOUT, results, verdict)
    assert verdict.slowdowns == ()
    assert not any("slowdown" in line for line in verdict.text())
    assert not re.search(r"× \([^)]*\)\s+slowdown|▾\d", report) and "× slowdown" not in page


def test_a_default_that_hardly_drafted_gained_nothing_by_drafting_either():
    verdict = judge(repeated([1.3, 1.2], fixed=[1.0, 1.0], auto=[1.0, 1.0], drafts="one"), 2, 2)
    assert verdict.earns == "no"
    assert "1.25× plain decoding with hardly a draft, so drafting is not why." in verdict.headline
    assert "It hardly drafted on chat (1.25×)." in verdict.sentences


def test_a_kind_of_text_that_was_not_drafted_for_does_not_speak_against_drafting():
    results = measured({"edit": [0.4, 0.4]})
    arms, plain, auto = results.arms, played(1.2), played(1.4)
    runs = [Run(a.name, "edit", "p", 0.0, 0, played(0.4, "model", 3, 2) if a.length is None else plain) for a in arms]
    runs += [Run(a.name, "chat", "p", 0.0, 0, auto if a.length is None else plain) for a in arms]
    verdict = judge(collect(arms, [0.0], WORKLOADS, CURVES, runs), 2, 2)
    assert verdict.earns == "yes"
    assert "It hardly drafted on chat (0.86×)." in verdict.sentences


def test_a_slowdown_that_not_every_repeat_shows_gives_no_advice():
    verdict = judge(repeated([1.0, 1.0, 1.0], [0.9, 1.3, 1.3], [0.9, 1.3, 1.3]), 2, 2)
    assert "a slowdown" in verdict.headline
    assert not any("slowdown" in line for line in verdict.advice)


@pytest.mark.parametrize(
    ("fixed", "auto", "faster"),
    [
        ([1.22, 1.22], [1.5, 1.5], True),  # both slow, the default clearly more so
        ([1.22, 1.6], [1.5, 1.9], False),  # the ranges overlap: it may be chance
        ([1.5, 1.5], [1.22, 1.22], False),
    ],
)
def test_nobody_is_told_both_that_a_fixed_length_was_faster_and_not_to_fix_it(
    fixed: list[float], auto: list[float], faster: bool
):
    verdict = judge(repeated([1.0, 1.0], fixed, auto), 2, 2)
    assert any("was faster than the default" in line for line in verdict.sentences) == faster
    told = any("Do not fix the draft length" in line for line in verdict.advice)
    assert told == (fixed[0] > auto[0])
    assert any("The default is a slowdown here" in line for line in verdict.advice)
