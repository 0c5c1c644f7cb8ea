"""The verdict in words: does drafting earn its place here, on which texts, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from spec_local.bench.arms import AUTO, PLAIN
from spec_local.bench.results import Figures, Results, geometric_mean
from spec_local.drafting.draft import MODEL_SOURCE, TEXT_SOURCE
from spec_local.words import counted

GAIN = 1.05
"""From here on a ratio is called a gain: less is not worth a second model in memory."""
NOTICED = 0.005
"""Ratios within this of 1 are called as fast as plain decoding."""
LOSS = 0.95
"""Below this on some kind of text, drafting earns its place on others only."""
BETTER = 1.03
"""From here on one arm is called better than another."""

BUSY = 1.5
"""Where plain decoding of one answer differs by more than this factor between repeats, ratios to it say nothing."""
IDLE = 0.05
"""Where drafting can have cost no more than this share of the time, the arm was plain decoding by another name."""

Earns = Literal["yes", "partly", "no", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a person should take home."""

    earns: Earns
    """Whether drafting as it is set by default earns its place: on the whole, on some texts, or not at all;
    unknown where what was measured does not tell."""
    headline: str
    sentences: tuple[str, ...]
    """What was found, most important first."""
    advice: tuple[str, ...]
    """What would help; empty where nothing is wanted."""
    ratio: float | None
    """Geometric mean over temperatures and workloads of the default arm's speed against plain; None without drafts or
    a verdict."""
    slowdowns: tuple[str, ...]
    """Every arm, workload and temperature that drafted and has a ratio below 1, in words; none on a busy machine."""

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return {
            "earns_its_place": self.earns,
            "headline": self.headline,
            "sentences": list(self.sentences),
            "advice": list(self.advice),
            "slowdowns": list(self.slowdowns),
            **({} if self.ratio is None else {"ratio": self.ratio}),
        }

    def text(self) -> list[str]:
        """Lines for a terminal, unwrapped."""
        lines = [self.headline, *self.sentences]
        return lines + (["What would help:", *(f"- {line}" for line in self.advice)] if self.advice else [])


def versus_plain(ratio: float, idle: bool = False) -> str:
    """A ratio in words; below 1 it is a slowdown and is called one, unless there were hardly any drafts (`idle`)."""
    if idle and abs(ratio - 1) > NOTICED:
        return f"{ratio:.2f}× plain decoding with hardly a draft, so drafting is not why"
    if ratio < 1 - NOTICED:
        return f"{ratio:.2f}× plain decoding, a slowdown"
    if ratio <= 1 + NOTICED:
        return f"{ratio:.2f}× plain decoding, no difference"
    return f"{ratio:.2f}× plain decoding"


def busy(results: Results) -> bool:
    """Whether plain decoding itself was too unsteady to compare anything with it."""
    return results.plain_repeats is not None and results.plain_repeats.factor > BUSY


def slowdown(results: Results, figures: Figures) -> bool:
    """Whether these figures are to be called a slowdown: they are below plain decoding's, and drafting can be why."""
    return figures.ratio.median < 1 - NOTICED and not _idle(figures) and not busy(results)


def _idle(figures: Figures) -> bool:
    return figures.drafting_share <= IDLE


def judge(results: Results, threads: int, cores: int) -> Verdict:
    """The verdict on what was measured.

    Args:
        results: The figures.
        threads: Threads that computed.
        cores: Physical cores this process may use.
    """
    if all(arm.name == PLAIN for arm in results.arms):
        return Verdict("no", "There is nothing to judge: no draft was in play.", (), _no_draft_advice(), None, ())
    temperatures = [t for t in results.temperatures if results.get(AUTO, t)]
    if not temperatures:
        return Verdict("unknown", "Too little was measured for a verdict.", (), ("Let it run longer.",), None, ())
    if busy(results):
        return _too_busy(results, threads, cores)
    cells = {
        (t, name): figures.ratio.median
        for t in temperatures
        for name, _ in results.workloads
        if (figures := results.get(AUTO, t, name)) is not None
    }
    kinds = _by_kind(results, cells)
    ratio = geometric_mean(list(kinds.values()))
    idle = {name for name in kinds if _idle_at(results, AUTO, temperatures, name)}
    drafted = [value for name, value in kinds.items() if name not in idle]  # only these are drafting's doing
    gains = any(value >= GAIN for value in drafted)
    earns: Earns = "no" if not gains else "yes" if ratio >= GAIN and min(drafted) >= LOSS else "partly"
    sentences = [
        *(_temperature(results, t) for t in temperatures),
        *_kinds(results, kinds, idle),
        *_sources(results, temperatures),
        *_fixed(results, temperatures),
        *_break_even(results),
        *_ceiling(results, temperatures),
    ]
    slowdowns = _slowdowns(results)
    advice = [
        *_slow_advice(results, temperatures),
        *_advice(results, earns, ratio),
        *_thread_advice(threads, cores),
    ]
    versus = versus_plain(ratio, _idle_at(results, AUTO, temperatures))
    return Verdict(earns, _headline(earns, versus, results), tuple(sentences), tuple(advice), ratio, tuple(slowdowns))


def _too_busy(results: Results, threads: int, cores: int) -> Verdict:
    """No verdict, and nothing that rests on a ratio."""
    plain = results.plain_repeats
    assert plain is not None
    headline = (
        f"This machine was too busy for a verdict: plain decoding of the same answer ran at {plain.least:.1f} to "
        f"{plain.most:.1f} tokens/s from repeat to repeat; close other programs and run it again, with more --repeats "
        f"than {results.repeats} and without --quick, which has no time for them."
    )
    return Verdict("unknown", headline, (), tuple(_thread_advice(threads, cores)), None, ())


def _headline(earns: Earns, versus: str, results: Results) -> str:
    who = " and ".join(
        {MODEL_SOURCE: "the draft model", TEXT_SOURCE: "drafting from the text"}[s] for s in _sources_of(results)
    )
    who = f"{who[:1].upper()}{who[1:]}"
    plural = "earn their" if " and " in who else "earns its"
    if earns == "yes":
        return f"{who} {plural} place here. Over all texts: {versus}."
    negated = "do not earn their" if " and " in who else "does not earn its"
    if earns == "partly":
        return f"{who} {plural} place here on some kinds of text only. Over all texts: {versus}."
    return f"{who} {negated} place here. Over all texts: {versus}."


def _sources_of(results: Results) -> tuple[str, ...]:
    return results.arm(AUTO).sources


def _temperature(results: Results, temperature: float) -> str:
    figures = results.get(AUTO, temperature)
    assert figures is not None
    spread = figures.ratio
    words = f"At temperature {temperature:g} the default is {versus_plain(spread.median, _idle(figures))}"
    if len(spread.values) > 1:
        return f"{words} ({spread.least:.2f} to {spread.most:.2f} over {len(spread.values)} repeats)."
    return f"{words} (one repeat: the spread is unknown)."


def _by_kind(results: Results, cells: dict[tuple[float, str], float]) -> dict[str, float]:
    """Geometric mean over the temperatures, by workload."""
    values = {name: [v for (_, n), v in cells.items() if n == name] for name, _ in results.workloads}
    return {name: geometric_mean(found) for name, found in values.items() if found}


def _kinds(results: Results, means: dict[str, float], idle: set[str]) -> list[str]:
    """Which kinds of text gain, stay and lose."""
    titles = dict(results.workloads)
    groups = {
        "It gains on": [n for n, v in means.items() if v >= GAIN and n not in idle],
        "It makes no difference to speak of on": [n for n, v in means.items() if 1 - NOTICED <= v < GAIN],
        "It is a slowdown on": [n for n, v in means.items() if v < 1 - NOTICED and n not in idle],
        "It hardly drafted on": [n for n, v in means.items() if not 1 - NOTICED <= v < GAIN and n in idle],
    }
    return [
        f"{words} {_list([f'{titles[n]} ({means[n]:.2f}×)' for n in names])}."
        for words, names in groups.items()
        if names
    ]


def _sources(results: Results, temperatures: list[float]) -> list[str]:
    """What each source brings alone, and whether the draft model is worth its memory."""
    alone = {
        arm.name: _mean(results, arm.name, temperatures)
        for arm in results.arms
        if arm.name in (MODEL_SOURCE, TEXT_SOURCE)
    }
    auto = _mean(results, AUTO, temperatures)
    model, text = alone.get(MODEL_SOURCE), alone.get(TEXT_SOURCE)
    if model is None or text is None or auto is None:
        return []
    words = f"Alone, the draft model reaches {model:.2f}× and the text {text:.2f}×."
    if auto >= BETTER * text:
        return [f"{words} The draft model brings {auto / text:.2f}× on top of drafting from the text."]
    return [f"{words} The draft model adds nothing to drafting from the text: --draft text saves its memory."]


def _fixed(results: Results, temperatures: list[float]) -> list[str]:
    """Whether a fixed length would have been better, or why it is no good idea."""
    fixed = [arm for arm in results.arms if arm.name.startswith("fixed-")]
    speeds = {arm: mean for arm in fixed if (mean := _mean(results, arm.name, temperatures)) is not None}
    auto = _mean(results, AUTO, temperatures)
    if not speeds or auto is None:
        return []
    best = max(speeds, key=lambda arm: speeds[arm])
    least, _ = _range(results, best.name, temperatures)
    _, most = _range(results, AUTO, temperatures)
    if speeds[best] >= BETTER * auto and least > most:  # in every repeat: else it may be chance
        return [
            f"A fixed length of {best.length} was faster than the default: {speeds[best]:.2f}× against {auto:.2f}×."
        ]
    return [f"The best fixed length, {best.length}, reaches {versus_plain(speeds[best])}; the default {auto:.2f}×."]


def _break_even(results: Results) -> list[str]:
    curves = results.curves
    sentences = []
    if MODEL_SOURCE in _sources_of(results) and curves.step is not None:
        even = curves.break_even(MODEL_SOURCE)
        has = _agreement(results)
        says = "" if has is None else f"; the draft agrees with the target at {has:.0%} of positions"
        if even is None:
            sentences.append(
                f"No acceptance lets the draft model pay: its step costs {curves.step:.2f} of a pass{says}."
            )
        else:
            sentences.append(
                f"A step of the draft costs {curves.step:.2f} of a one-row pass; it breaks even at an acceptance of "
                f"{even.acceptance:.2f}, with {counted(even.length, 'token')} per draft{says}."
            )
    if TEXT_SOURCE in _sources_of(results):
        even = curves.break_even(TEXT_SOURCE)
        if even is not None and even.acceptance == 0.0:
            sentences.append(f"Drafts of {counted(even.length, 'token')} from the text cost nothing here.")
        elif even is not None:
            sentences.append(
                f"Drafts from the text break even at {even.acceptance:.2f}, with {counted(even.length, 'token')} per "
                "draft."
            )
    return sentences


def _agreement(results: Results) -> float | None:
    known = [(c.agreement, c.tokens) for c in results.ceilings.values() if c.agreement is not None]
    return sum(a * n for a, n in known) / sum(n for _, n in known) if known else None


def _ceiling(results: Results, temperatures: list[float]) -> list[str]:
    """How near the default comes to a policy that knows everything."""
    found = []
    for t in temperatures:
        oracle, auto = results.oracle(t), results.get(AUTO, t)
        if oracle is not None and auto is not None:
            share = auto.ratio.median / oracle
            found.append(f"{oracle:.2f}× at temperature {t:g}, of which the default reaches {share:.0%}")
    return [f"Knowing every outcome beforehand would give {'; '.join(found)}."] if found else []


def _slowdowns(results: Results) -> list[str]:
    titles = dict(results.workloads)
    found = []
    for arm in results.arms:
        for t in results.temperatures:
            for name, title in titles.items():
                figures = results.get(arm.name, t, name)
                if arm.name != PLAIN and figures is not None and slowdown(results, figures):
                    note = "" if figures.ratio.most < 1 else ", within the spread of its repeats"
                    ratio = figures.ratio.median
                    found.append(f"{arm.name} on {title} at temperature {t:g}: {versus_plain(ratio)}{note}")
    return found


def _slow_advice(results: Results, temperatures: list[float]) -> list[str]:
    """Advice for arms that drafted and were slower than plain decoding on the whole and in every repeat."""
    advice = []
    auto = _mean(results, AUTO, temperatures)
    for arm in results.arms:
        mean = _mean(results, arm.name, temperatures)
        if arm.name == PLAIN or mean is None or mean >= 1 - NOTICED:
            continue
        if _range(results, arm.name, temperatures)[1] >= 1 or _idle_at(results, arm.name, temperatures):
            continue
        if arm.length is not None and auto is not None and mean > auto:
            continue  # the default was slower still: nobody is sent there
        if arm.name == AUTO:
            advice.append(f"The default is a slowdown here ({mean:.2f}×): use --draft none, and please report it.")
        elif arm.length is not None:
            advice.append(f"Do not fix the draft length at {arm.length} ({mean:.2f}×, a slowdown): leave it at auto.")
        elif arm.name == MODEL_SOURCE:
            advice.append(f"Do not use the draft model alone ({mean:.2f}×, a slowdown): --draft auto or text.")
        else:
            advice.append(f"Do not draft from the text alone ({mean:.2f}×, a slowdown): --draft auto or none.")
    return advice


def _advice(results: Results, earns: Earns, ratio: float) -> list[str]:
    advice = []
    curves = results.curves
    base = results.what_if.get("as_measured", ratio)
    half, flat = results.what_if.get("half_draft_cost"), results.what_if.get("flat_target")
    if MODEL_SOURCE not in _sources_of(results):
        advice.append(
            "A draft model: `spec-local models list` shows which ones fit; text alone helps repeating text only."
        )
    elif curves.break_even(MODEL_SOURCE) is None:
        advice.append("A much cheaper draft: with this one's steps not even full acceptance pays here.")
    elif half is not None and half >= BETTER * base and curves.step is not None and curves.step > 0.1:
        advice.append(
            f"A cheaper draft: at half its cost and equal agreement the same texts would give {half:.2f}× instead of "
            f"{base:.2f}× (estimated from their traces). Try a smaller one, or this one in q4_0 (`spec-local models "
            "requantise`)."
        )
    steep = curves.relative(4)
    if flat is not None and flat >= 1.1 * base and steep > 1.5:
        advice.append(
            f"A target whose pass grows less with its rows: four rows cost {steep:.2f} times one row here. Passes are "
            f"flatter on a GPU, or in a quantisation bound by memory (q8_0); with flat ones it would be {flat:.2f}×."
        )
    agreement, even = _agreement(results), curves.break_even(MODEL_SOURCE)
    if earns != "yes" and even is not None and agreement is not None and agreement < even.acceptance:
        advice.append(
            f"A draft that agrees more often: this one does at {agreement:.0%} of positions, and fixed lengths need "
            f"{even.acceptance:.0%}. A larger one of the target's own family costs more per step but agrees more."
        )
    return advice


def _thread_advice(threads: int, cores: int) -> list[str]:
    if threads < cores:
        return [f"More threads: {threads} of {cores} physical cores were used (--threads {cores})."]
    if threads > cores:
        return [f"Fewer threads: {threads} on {cores} physical cores slow each other down (--threads {cores})."]
    return []


def _no_draft_advice() -> tuple[str, ...]:
    return ("Name a draft with --draft, or leave it at auto.",)


def _mean(results: Results, arm: str, temperatures: list[float]) -> float | None:
    """Geometric mean over temperatures of an arm's ratio over all workloads."""
    found = [f.ratio.median for t in temperatures if (f := results.get(arm, t)) is not None]
    return geometric_mean(found) if found else None


def _range(results: Results, arm: str, temperatures: list[float]) -> tuple[float, float]:
    """Least and most of an arm's ratio over the repeats: geometric means over the temperatures it was measured at."""
    found = [f.ratio for t in temperatures if (f := results.get(arm, t)) is not None]
    return geometric_mean([ratio.least for ratio in found]), geometric_mean([ratio.most for ratio in found])


def _idle_at(results: Results, arm: str, temperatures: list[float], workload: str | None = None) -> bool:
    """Whether an arm hardly drafted at any of these temperatures."""
    return all(_idle(f) for t in temperatures if (f := results.get(arm, t, workload)) is not None)


def _list(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
