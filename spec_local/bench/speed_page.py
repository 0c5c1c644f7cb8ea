"""The report as one self-contained page: inline styles and SVG, no script, nothing fetched from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from spec_local.bench.arms import AUTO, PLAIN
from spec_local.bench.results import Figures, Results
from spec_local.bench.speed_report import About, shown_by_position
from spec_local.bench.verdict import NOTICED, Verdict, busy, slowdown
from spec_local.bench.workloads import prompts_used
from spec_local.drafting.draft import MODEL_SOURCE, TEXT_SOURCE
from spec_local.words import counted

_COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#65a30d")
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --slow: #dc2626; --gain: #059669; --some: #d97706; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.about { color: #888; margin-top: 0; }
.verdict { border-left: 4px solid var(--gain); padding: .2rem 1rem; background: var(--soft); }
.verdict.no { border-color: var(--slow); } .verdict.partly { border-color: var(--some); }
.verdict.unknown { border-color: #888; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .slow { color: var(--slow); } .gain { color: var(--gain); }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
svg .grid { stroke: var(--line); } svg .axis { stroke: currentColor; }
figcaption { color: #888; } figure { margin: 1rem 0; }
"""


def page(about: About, results: Results, verdict: Verdict) -> str:
    """The whole page."""
    title = f"{about.target} with {about.draft}" if about.draft else about.target
    temperatures = [t for t in results.temperatures if results.get(PLAIN, t)]
    sections = [
        _verdict(verdict),
        *(_ratios(results, t) for t in temperatures),
        *(_arms(results, t) for t in temperatures),
        _curves(results),
        _positions(results, temperatures),
    ]
    stopped = "" if results.complete else "<p class=slow>Stopped before its end: these are the figures so far.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>spec-local bench: {escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n<p class=about>{escape(_about(about, results))}</p>\n{stopped}"
        + "\n".join(section for section in sections if section)
        + "\n</body></html>\n"
    )


def _about(about: About, results: Results) -> str:
    return (
        f"{about.machine}; {counted(about.threads, 'thread')}; {about.rule} acceptance; "
        f"{prompts_used(about.prompts, about.prompts_given)} in {counted(len(results.workloads), 'workload')}, "
        f"{about.tokens} tokens each, {counted(results.repeats, 'repeat')}, arms in turn; "
        f"seed {about.seed}; spec-local {about.version}"
    )


def _verdict(verdict: Verdict) -> str:
    sentences = "".join(f"<li>{escape(s)}</li>" for s in verdict.sentences)
    advice = "".join(f"<li>{escape(s)}</li>" for s in verdict.advice)
    slow = "".join(f"<li>{escape(s)}</li>" for s in verdict.slowdowns)
    return (
        f'<section class="verdict {verdict.earns}"><p><strong>{escape(verdict.headline)}</strong></p>'
        + f"<ul>{sentences}</ul>"
        + (f"<p>What would help:</p><ul>{advice}</ul>" if advice else "")
        + (f"<details><summary>{len(verdict.slowdowns)} slowdowns</summary><ul>{slow}</ul></details>" if slow else "")
        + "</section>"
    )


# -- tables --------------------------------------------------------------------------------------------------------


def _arms(results: Results, temperature: float) -> str:
    head = ["arm", "tokens/s", "against plain", "whole answers", "per pass", "drafted", "tested", "accepted", "rate"]
    head += ["first tokens", "text as plain's"]
    rows = []
    for arm in results.arms:
        figures = results.get(arm.name, temperature)
        if figures is None:
            continue
        s, plain = figures.statistics, arm.name == PLAIN
        counts = [f"{s.drafted}", f"{s.tested}", f"{s.accepted}"] if s.drafted else ["", "", ""]
        rows.append(
            [
                f'<td title="{escape(arm.title)}">{escape(arm.name)}</td>',
                _cell(_range(figures.tokens_per_s.median, figures.tokens_per_s.least, figures.tokens_per_s.most, 1)),
                "<td></td>" if plain else _ratio_cell(results, figures),
                _cell("" if plain else f"{figures.answer_ratio.median:.2f}×"),
                _cell("" if s.tokens_per_pass is None else f"{s.tokens_per_pass:.2f}"),
                *(_cell(count) for count in counts),
                _cell("" if s.acceptance_rate is None else f"{s.acceptance_rate:.0%}"),
                _cell(f"{figures.ttft_s:.2f} s"),
                _cell("" if plain else f"{figures.same_text[0]}/{figures.same_text[1]}"),
            ]
        )
    return f"<h2>Arms at temperature {temperature:g}</h2>{_table(head, rows)}"


def _ratio_cell(results: Results, figures: Figures) -> str:
    r = figures.ratio
    gain = r.median > 1 + NOTICED and not busy(results)  # nothing is coloured where nothing is judged
    kind = "slow" if slowdown(results, figures) else "gain" if gain else ""
    word = " slowdown" if kind == "slow" else ""
    return f'<td class="{kind}">{_range(r.median, r.least, r.most, 2)}×{word}</td>'


def _range(median: float, least: float, most: float, digits: int) -> str:
    value = f"{median:.{digits}f}"
    return value if least == most else f"{value} ({least:.{digits}f}–{most:.{digits}f})"


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


# -- plots ---------------------------------------------------------------------------------------------------------


def _ratios(results: Results, temperature: float) -> str:
    """Bars: speed of every arm against plain, by workload, with the oracle as a tick."""
    arms = [arm.name for arm in results.arms if arm.name != PLAIN]
    present = [(name, title) for name, title in results.workloads if results.get(AUTO, temperature, name)]
    if not arms or not present:
        return ""
    ceilings = {name: c.oracle for (t, name), c in results.ceilings.items() if t == temperature}
    found = [(name, a, results.get(a, temperature, name)) for name, _ in present for a in arms]
    values = {(name, a): f.ratio.median for name, a, f in found if f}
    most = max([1.2, *values.values(), *ceilings.values()]) * 1.05
    left, right, thick, gap = 150, 20, 13, 16
    width = 760
    scale = (width - left - right) / most
    height = len(present) * (len(arms) * thick + gap) + 40
    parts = []
    for tick in _ticks(most):
        x = left + tick * scale
        parts.append(_line(x, 8, x, height - 24, "axis" if tick == 1 else "grid"))
        parts.append(_text(x, height - 8, f"{tick:g}×", "middle"))
    y = 10.0
    for name, title in present:
        parts.append(_text(left - 8, y + len(arms) * thick / 2 + 4, title, "end"))
        top = y
        for i, arm in enumerate(arms):
            value = values.get((name, arm))
            if value is not None:
                tip = escape(f"{arm} on {title}: {value:.2f}×")
                parts.append(
                    f'<rect x="{left}" y="{y:.1f}" width="{value * scale:.1f}" height="{thick - 2}" '
                    f'fill="{_COLOURS[i % len(_COLOURS)]}"><title>{tip}</title></rect>'
                )
            y += thick
        if name in ceilings:
            x = left + ceilings[name] * scale
            tip = escape(f"oracle on {title}: {ceilings[name]:.2f}×")
            parts.append(
                f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{y:.1f}" class="axis" stroke-dasharray="3 2">'
                f"<title>{tip}</title></line>"
            )
        y += gap
    caption = (
        "Decode speed against plain decoding; left of 1× is a slowdown. Dashed: a policy that knows every outcome."
    )
    heading = f"<h2>Speed by kind of text at temperature {temperature:g}</h2>"
    return heading + _figure(width, height, parts, arms, caption)


def _curves(results: Results) -> str:
    curves = results.curves
    series = {"target": curves.target} | ({"draft": curves.draft} if curves.draft else {})
    lines = {name: {float(n): 1e3 * s for n, s in points.items()} for name, points in series.items()}
    even = [
        f"{'the draft model' if source == 'model' else 'drafts from the text'} at {found.acceptance:.2f}"
        for source in (MODEL_SOURCE, TEXT_SOURCE)
        if (found := curves.break_even(source)) is not None
    ]
    caption = "Milliseconds of a pass over n rows." + (f" Break-even acceptance: {', '.join(even)}." if even else "")
    return "<h2>What a pass costs</h2>" + _plot(lines, caption, "ms")


def _positions(results: Results, temperatures: Sequence[float]) -> str:
    lines = {}
    for name in shown_by_position(results):
        for t in temperatures:
            figures = results.get(name, t)
            if figures and figures.statistics.per_position:
                rates = enumerate(figures.statistics.per_position[:16], 1)
                lines[f"{name} at {t:g}"] = {float(i): 100 * rate for i, rate in rates}
    if not lines:
        return ""
    caption = "Share of the drafts reaching a position that were accepted there."
    return "<h2>Acceptance by position</h2>" + _plot(lines, caption, "%")


def _plot(lines: Mapping[str, Mapping[float, float]], caption: str, unit: str) -> str:
    """A line plot from (0, 0)."""
    width, height, left, top, right, bottom = 760, 280, 60, 12, 20, 34
    most_x = max(x for points in lines.values() for x in points)
    most_y = max(max(points.values()) for points in lines.values()) * 1.05 or 1.0
    sx, sy = (width - left - right) / most_x, (height - top - bottom) / most_y
    parts = []
    for tick in _ticks(most_y):
        y = height - bottom - tick * sy
        parts.append(_line(left, y, width - right, y, "grid" if tick else "axis"))
        parts.append(_text(left - 6, y + 4, f"{tick:g} {unit}", "end"))
    shown = sorted({x for points in lines.values() for x in points})
    parts += [_text(left + x * sx, height - bottom + 18, f"{x:g}", "middle") for x in shown]
    for i, points in enumerate(lines.values()):
        colour = _COLOURS[i % len(_COLOURS)]
        at = [(left + x * sx, height - bottom - y * sy, x, y) for x, y in sorted(points.items())]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in at)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"><title>{x:g}: {y:.4g} {unit}</title></circle>'
            for px, py, x, y in at
        ]
    return _figure(width, height, parts, list(lines), caption)


def _figure(width: float, height: float, parts: Sequence[str], names: Sequence[str], caption: str) -> str:
    legend = " ".join(
        f'<span style="color:{_COLOURS[i % len(_COLOURS)]}">■</span> {escape(name)}' for i, name in enumerate(names)
    )
    return (
        f'<figure><svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">{"".join(parts)}</svg>'
        f"<div>{legend}</div><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to `most`, at most nine."""
    step = next(s * 10**e for e in range(-4, 9) for s in (1, 2, 2.5, 5) if most / (s * 10**e) <= 8)
    return [round(i * step, 6) for i in range(int(most / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
