"""The live view of speculation: whether it is on and why, what it earns, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from textual.content import Content

from spec_local.models_manifest import show_bytes
from spec_local.ui import figures as show
from spec_local.ui.figures import TurnFigures
from spec_local.ui.lines_view import EMPTY, LinesView
from spec_local.ui.tones import ACCENT, FAINT, GOOD, WARN

_MOST_POSITIONS = 8


class SpeculationPanel(LinesView):
    """Shows one answer's figures. They freeze when the answer ends; another one can be put in its place."""

    MARGINS = (3, 2)

    def bar(self) -> tuple[str, str]:
        return "│", "$foreground 15%"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.figures: TurnFigures | None = None
        self.next_on = True
        """Whether the next turn speculates."""
        self.memory: int | None = None
        """Bytes this process holds."""
        self.kernels: Mapping[str, Any] | None = None
        """Whether our own kernels compute, and if not, why; None while nothing is loaded."""

    def show(self, figures: TurnFigures | None) -> None:
        """Show these figures, or that there are none yet."""
        self.figures = figures
        self.changed()

    def build(self, width: int) -> Sequence[Content]:
        return [EMPTY, *panel_lines(self.figures, width, self.next_on, self.memory), *kernel_lines(self.kernels, width)]


def panel_lines(
    figures: TurnFigures | None, width: int, next_on: bool = True, memory: int | None = None
) -> list[Content]:
    """The lines of the panel."""
    if figures is None:
        return _nothing_yet(next_on, width, memory)
    lines = [*_state(figures, next_on, width), EMPTY]
    lines += [*_draft(figures, width), EMPTY]
    lines += [*_acceptance(figures, width), EMPTY]
    lines += [*_speed(figures, width), EMPTY]
    return lines + _cost(figures, width, memory)


def kernel_lines(kernels: Mapping[str, Any] | None, width: int) -> list[Content]:
    """Whose kernels multiply, and where they are llama.cpp's, why."""
    if kernels is None:
        return []
    if kernels["on"]:
        return [_row("kernels", kernels["instructions"], width)]
    reason = [line.stylize(FAINT) for line in Content(kernels["reason"]).wrap(width)[:3]]
    return [_row("kernels", "llama.cpp's", width), *reason]


def _nothing_yet(next_on: bool, width: int, memory: int | None) -> list[Content]:
    """The panel before the first answer. It asks nobody for figures: what works them out takes longer to load than the
    whole screen."""
    lines = [_title("on" if next_on else "off", width), Content.styled("for the next answer", FAINT), EMPTY]
    labels = ["draft", "tokens per pass", "", "accepted", "", "decode", "plain, estimated", "net gain", ""]
    labels += ["prefill", "first token", "context"]
    lines += [_row(label, "–", width) if label else EMPTY for label in labels]
    return lines + ([_row("memory", show_bytes(memory), width)] if memory is not None else [])


def _row(label: str, value: str, width: int, style: str = "") -> Content:
    space = " " * max(1, width - cell_len(label) - cell_len(value))
    row = Content.assemble((label, FAINT), space, (value, style))
    return row.truncate(width, ellipsis=True)


def _bar(share: float, width: int, style: str = ACCENT) -> tuple[tuple[str, str], tuple[str, str]]:
    filled, rest = show.bar(share, width)
    return (filled, style), (rest, "$foreground 20%")


def _title(state: str, width: int) -> Content:
    mark = Content.assemble(("● ", GOOD if state == "on" else WARN), (state, "bold"))
    title = Content.styled("Speculation", "bold")
    return title + " " * max(1, width - title.cell_length - mark.cell_length) + mark


def _state(f: TurnFigures, next_on: bool, width: int) -> list[Content]:
    last = f.rounds[-1] if f.rounds else None
    if not f.speculate:
        reason = "switched off for this answer"
    else:
        reason = f.reason if f.state == "off" or last is None else last.reason
    lines = [_title(f.state or ("on" if f.speculate else "off"), width)]
    lines += [line.stylize(FAINT) for line in Content(reason).wrap(width)[:3]] if reason else []
    if next_on != f.speculate:
        lines.append(Content.styled(f"{'on' if next_on else 'off'} for the next answer", WARN))
    return lines


def _draft(f: TurnFigures, width: int) -> list[Content]:
    s = f.statistics
    last = f.rounds[-1] if f.rounds else None
    draft = "–" if last is None else "no draft" if not last.drafted else f"{last.source}, {last.drafted} drafted"
    per_pass = "–" if s.tokens_per_pass is None else f"{s.tokens_per_pass:.2f}"
    spark = show.sparkline([r.emitted for r in f.rounds[-width:]], width)
    return [
        _row("draft", draft, width),
        _row("tokens per pass", per_pass, width, "bold"),
        Content.styled(spark.rjust(width) if spark else "·" * width, ACCENT if spark else FAINT),
    ]


def _acceptance(f: TurnFigures, width: int) -> list[Content]:
    s = f.statistics
    rate = "–" if s.acceptance_rate is None else f"{s.acceptance_rate:.0%} of {s.tested}"
    lines = [_row("accepted", rate, width, "bold")]
    if len(s.sources) > 1:
        for source, own in s.sources.items():
            value = "–" if own.acceptance_rate is None else f"{own.acceptance_rate:.0%} of {own.tested}"
            lines.append(_row(f"  {source}", value, width))
    room = max(1, width - 9)
    for position, share in enumerate(s.per_position[:_MOST_POSITIONS], 1):
        lines.append(
            Content.assemble(
                (f"{position:>2} ", FAINT),
                *_bar(share, room),
                (f"{share:>5.0%}", FAINT),
            ).truncate(width)
        )
    if len(s.per_position) > _MOST_POSITIONS:
        lines.append(Content.styled(f"   … {len(s.per_position)} positions", FAINT))
    return lines


def _speed(f: TurnFigures, width: int) -> list[Content]:
    s = f.statistics
    known = f.speedup
    style = "" if known is None else GOOD if known >= 1 else WARN
    return [
        _row("decode", show.speed(s.tokens_per_s), width, "bold"),
        _row("plain, estimated", show.speed(s.plain_tokens_per_s_estimate), width),
        _row("net gain", show.gain(known), width, f"bold {style}".strip()),
    ]


def _cost(f: TurnFigures, width: int, memory: int | None) -> list[Content]:
    if f.prefilling is not None and f.ttft_s is None:
        done, total = f.prefilling
        prefill = f"{done} of {total}"
    elif f.prefilling is not None:
        prefill = f"{f.prefilling[1]} tok"
    elif f.prompt_tokens is not None and f.cached_tokens is not None:
        prefill = f"{f.prompt_tokens - f.cached_tokens} tok, {show.seconds(f.prefill_s)}"
    else:
        prefill = "–"
    lines = [_row("prefill", prefill, width)]
    if f.cached_tokens:
        lines.append(_row("  from cache", f"{f.cached_tokens} tok", width))
    lines.append(_row("first token", show.seconds(f.ttft_s), width))
    if f.n_ctx and f.context_used is not None:
        lines.append(_row("context", f"{f.context_used} of {f.n_ctx}", width))
        share = f.context_used / f.n_ctx
        lines.append(Content.assemble(*_bar(share, width, WARN if share > 0.9 else ACCENT)))
    else:
        lines.append(_row("context", "–", width))
    if memory is not None:
        lines.append(_row("memory", show_bytes(memory), width))
    return lines
