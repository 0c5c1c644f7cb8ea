"""The report for a terminal: plain Unicode text, the same on a screen and in a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_local.bench.arms import AUTO, PLAIN
from spec_local.bench.results import Figures, Results, Spread
from spec_local.bench.verdict import Verdict, slowdown
from spec_local.bench.workloads import prompts_used
from spec_local.words import counted

WIDTH = 100
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class About:
    """What was measured, for the head of a report and its JSON."""

    target: str
    draft: str | None
    machine: str
    """Processor and system in a few words."""
    threads: int
    rule: str
    """Acceptance rule."""
    tokens: int
    """Tokens of every answer."""
    prompts: int
    """Prompts per repeat, over all workloads."""
    seed: int
    version: str
    model: dict[str, Any]
    """What the engine says about itself."""
    prompts_given: int = 0
    """Prompts those were chosen from, where they are not all of them."""


def as_dict(about: About, results: Results, verdict: Verdict) -> dict[str, Any]:
    """The object `bench --json` prints: arms, curves, verdict, and how they came about."""
    return {
        "spec_local": about.version,
        "complete": results.complete,
        "model": about.model,
        "machine": about.machine,
        "settings": {
            "threads": about.threads,
            "acceptance_rule": about.rule,
            "tokens": about.tokens,
            "prompts": about.prompts,
            "prompts_given": max(about.prompts, about.prompts_given),
            "repeats": results.repeats,
            "temperatures": list(results.temperatures),
            "workloads": [name for name, _ in results.workloads],
            "seed": about.seed,
        },
        "arms": [
            {
                "name": arm.name,
                "title": arm.title,
                "sources": list(arm.sources),
                "draft_length": "auto" if arm.length is None else arm.length,
                "temperatures": [
                    {
                        "temperature": t,
                        **overall.as_dict(),
                        "workloads": [
                            {"name": name, **figures.as_dict()}
                            for name, _ in results.workloads
                            if (figures := results.get(arm.name, t, name)) is not None
                        ],
                    }
                    for t in results.temperatures
                    if (overall := results.get(arm.name, t)) is not None
                ],
            }
            for arm in results.arms
        ],
        "curves": results.curves.as_dict(),
        "oracle": {
            "workloads": [
                {"temperature": t, "name": name, **ceiling.as_dict()} for (t, name), ceiling in results.ceilings.items()
            ],
            "what_if": dict(results.what_if),
        },
        "verdict": verdict.as_dict(),
    }


def render(about: About, results: Results, verdict: Verdict) -> str:
    """The whole report, lines of at most `WIDTH` columns (tables of many arms may be wider)."""
    parts = [
        _head(about, results),
        _curves(results),
        *(_arms(results, t) for t in results.temperatures if results.get(PLAIN, t)),
        *(_workloads(results, t) for t in results.temperatures if results.get(PLAIN, t)),
        _positions(results),
        _verdict(verdict),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(about: About, results: Results) -> str:
    draft = f" with {about.draft}" if about.draft else ""
    prompts = f"{prompts_used(about.prompts, about.prompts_given)} in {counted(len(results.workloads), 'workload')}"
    lines = [
        f"{about.target}{draft}",
        f"{about.machine}, {counted(about.threads, 'thread')}; {about.rule} acceptance",
        f"{prompts}, {about.tokens} tokens each, {counted(results.repeats, 'repeat')}; the arms take turns",
    ]
    if not results.complete:
        lines.append("Stopped before its end: these are the figures so far.")
    return "\n".join(lines)


def _curves(results: Results) -> str:
    """V(n) and the draft's passes as bars."""
    curves = results.curves
    unit = curves.target[1]
    most = max([*curves.target.values(), *(curves.draft or {}).values()])
    room = 30
    head = f"Seconds of a pass over n rows; 1.00 is one row of the target, {_ms(unit)}"
    lines = [head, f"  {'n':>3}  {'target':<{room + 16}}" + ("draft" if curves.draft else "")]
    for n in sorted({*curves.target, *(curves.draft or {})}):
        cells = [
            f"{s / unit:5.2f} {_ms(s):>9} {bar(s / most, room if column == 0 else room // 2)}"
            if (s := points.get(n)) is not None
            else ""
            for column, points in enumerate([curves.target, curves.draft or {}])
        ]
        lines.append(f"  {n:>3}  {cells[0]:<{room + 16}}{cells[1]}".rstrip())
    return "\n".join(lines)


def _arms(results: Results, temperature: float) -> str:
    rows = [["", "tokens/s", "against plain", "", "per pass", "drafted", "tested", "accepted", "rate", "first", "text"]]
    for arm in results.arms:
        figures = results.get(arm.name, temperature)
        if figures is not None:
            rows.append([arm.name, *_arm_row(results, figures, arm.name == PLAIN)])
    plain = results.get(PLAIN, temperature)
    oracle = results.oracle(temperature)
    if oracle is not None:
        rows.append(["oracle", "", f"{oracle:.2f}×", "knows every outcome", "", "", "", "", "", "", ""])
    assert plain is not None
    draft_s = max((f.draft_prefill_s for a in results.arms if (f := results.get(a.name, temperature))), default=0.0)
    reading = f"Reading a prompt takes {_seconds(plain.prefill_s)}"
    reading += f", into the draft's cache {_seconds(draft_s)}" if draft_s else ""
    answer = results.get(AUTO, temperature)
    whole = f"; with it whole answers are {answer.answer_ratio.median:.2f}× plain (auto)" if answer else ""
    title = f"Temperature {temperature:g}: decoding, the reading of prompts excluded"
    notes = "first: seconds to the first tokens; text: answers equal to plain's, token by token"
    return f"{title}\n{table(rows, left=(0, 3))}\n{reading}{whole}.\n{notes}"


def _arm_row(results: Results, figures: Figures, plain: bool) -> list[str]:
    s = figures.statistics
    ratio = figures.ratio
    word = "slowdown" if not plain and slowdown(results, figures) else ""
    drafts = [f"{s.drafted}", f"{s.tested}", f"{s.accepted}"] if s.drafted else ["", "", ""]
    same, compared = figures.same_text
    return [
        _spread(figures.tokens_per_s, ".1f"),
        "" if plain else f"{_spread(ratio, '.2f', '×')}",
        word,
        "" if s.tokens_per_pass is None else f"{s.tokens_per_pass:.2f}",
        *drafts,
        "" if s.acceptance_rate is None else f"{s.acceptance_rate:.0%}",
        _seconds(figures.ttft_s),
        "" if plain else f"{same}/{compared}",
    ]


def _workloads(results: Results, temperature: float) -> str:
    arms = [arm.name for arm in results.arms if arm.name != PLAIN]
    traced = any(t == temperature for t, _ in results.ceilings)
    agrees = any(c.agreement is not None for (t, _), c in results.ceilings.items() if t == temperature)
    if not arms:
        return ""
    rows = [["", "plain t/s", *arms, *(["oracle"] if traced else []), *(["draft agrees"] if agrees else [])]]
    for name, title in results.workloads:
        plain = results.get(PLAIN, temperature, name)
        if plain is None:
            continue
        row = [title, f"{plain.tokens_per_s.median:.1f}"]
        row += [_ratio(results, results.get(arm, temperature, name)) for arm in arms]
        found = results.ceilings.get((temperature, name))
        row += [f"{found.oracle:.2f}" if found else ""] if traced else []
        row += [f"{found.agreement:.0%}" if found and found.agreement is not None else ""] if agrees else []
        rows.append(row)
    title = f"Temperature {temperature:g}: speed against plain decoding by kind of text; ▾ is a slowdown"
    return f"{title}\n{table(rows)}"


def _positions(results: Results) -> str:
    """Acceptance by position: of the longest fixed length, and of the default."""
    lines = []
    for t in results.temperatures:
        for name in shown_by_position(results):
            figures = results.get(name, t)
            rates = figures.statistics.per_position[:8] if figures else ()
            if rates:
                cells = "  ".join(f"{i}: {rate:4.0%} {bar(rate, 4):<4}" for i, rate in enumerate(rates, 1))
                lines.append(f"  {name + f' at {t:g}':<16}{cells}".rstrip())
    return "\n".join(["Acceptance by position: of the drafts that reached it", *lines]) if lines else ""


def shown_by_position(results: Results) -> list[str]:
    """The arms whose acceptance by position is shown: the longest fixed length, and the default."""
    fixed = [arm.name for arm in results.arms if arm.name.startswith("fixed-")]
    return [*fixed[-1:], AUTO]


def _verdict(verdict: Verdict) -> str:
    lines = ["Verdict"]
    for line in verdict.text():
        indent = "    " if line.startswith("- ") else "  "
        lines += textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent=indent)
    if verdict.slowdowns:
        lines += ["", "Slowdowns"] + [f"  {line}" for line in verdict.slowdowns]
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns two spaces apart; those in `left` flush left, the others flush right. Row 0 is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def bar(share: float, room: int) -> str:
    """A bar over `share` of `room` columns, to an eighth of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * room * 8)
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _spread(spread: Spread, form: str, unit: str = "") -> str:
    median = f"{spread.median:{form}}{unit}"
    return median if len(spread.values) < 2 else f"{median} ({spread.least:{form}}–{spread.most:{form}})"


def _ratio(results: Results, figures: Figures | None) -> str:
    if figures is None:
        return ""
    return f"{'▾' if slowdown(results, figures) else ''}{figures.ratio.median:.2f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.0995 else _ms(seconds)
