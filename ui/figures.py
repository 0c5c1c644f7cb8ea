"""What a turn amounts to, in figures and in the few characters a terminal has for them.

Every figure is `summarise` over `Round` records; this module only writes them down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spec_local.session.store_records import StoredMessage
from spec_local.speculation.round import Round
from spec_local.words import counted

if TYPE_CHECKING:
    from spec_local.session.result import Result
    from spec_local.speculation.statistics import Statistics, Tally

_LEVELS = "▁▂▃▄▅▆▇█"
_FEWEST_COMPARED = 8
"""Tokens of an answer that is compared with plain decoding: in fewer, one slow pass decides what comes out."""


@dataclass(slots=True)
class TurnFigures:
    """The figures of one answer: while it is written, or as stored."""

    rounds: list[Round] = field(default_factory=list)
    speculate: bool = True
    """Whether it was asked for with speculation."""
    state: str = ""
    """"on", "off", or empty while that is not known."""
    reason: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    n_ctx: int | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    prefilling: tuple[int, int] | None = None
    """(tokens read, tokens to read) before the first token."""
    _summary: Statistics | None = None
    _counted: int = 0
    """Rounds in the summary: they are added to, never taken from."""
    _tally: Tally = field(init=False, repr=False)

    @property
    def statistics(self) -> Statistics:
        """`summarise` of the rounds so far; only those that came since the last look are counted."""
        from spec_local.speculation.statistics import Tally

        if self._summary is None:
            self._tally = Tally()
        if self._summary is None or self._counted != len(self.rounds):
            self._tally.add(self.rounds[self._counted :])
            self._counted, self._summary = len(self.rounds), self._tally.statistics()
        return self._summary

    @property
    def context_used(self) -> int | None:
        """Tokens in the context: prompt and answer."""
        if self.prompt_tokens is None:
            return None
        return self.prompt_tokens + self.statistics.emitted

    @property
    def speedup(self) -> float | None:
        """Estimated speed against plain decoding; None where nothing was tested or too little was written."""
        s = self.statistics
        return s.speedup_estimate if s.tested and s.emitted >= _FEWEST_COMPARED else None

    def finish(self, result: Result) -> None:
        """Take over what only the finished answer knows."""
        self._take(result.as_dict())

    @classmethod
    def of(cls, message: StoredMessage, rounds: Sequence[Round]) -> TurnFigures:
        """The figures of a stored answer."""
        figures = cls(list(rounds))
        if message.result:
            figures._take(message.result)
        return figures

    def _take(self, result: dict[str, Any]) -> None:
        usage, timings, speculation = result["usage"], result["timings"], result["speculation"]
        self.prompt_tokens, self.cached_tokens = usage["prompt_tokens"], usage["cached_tokens"]
        self.prefill_s, self.ttft_s = timings["prefill_s"], timings["ttft_s"]
        self.state, self.reason = speculation["state"], speculation["reason"]
        self.n_ctx = result["model"].get("n_ctx")
        self.prefilling = None


def bar(share: float, width: int) -> tuple[str, str]:
    """A horizontal bar for `share` (0 to 1) in half cells: the filled part, and the rest of `width` cells."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    filled = "━" * (halves // 2) + ("╸" if halves % 2 else "")
    return filled, "─" * (width - len(filled))


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as columns; the tallest stands for the largest of them, or for 2 where that is less."""
    shown = list(values[-width:])
    top = max([2.0, *shown])
    return "".join(_LEVELS[min(7, int(value / top * 7.999))] for value in shown)


def speed(tokens_per_s: float | None) -> str:
    """ "42.1 tok/s"; a dash where it is not known."""
    return "–" if tokens_per_s is None else f"{tokens_per_s:.1f} tok/s"


def gain(speedup: float | None) -> str:
    """A speed-up as "+39%" or "−4%"; a dash where it is not known."""
    if speedup is None:
        return "–"
    percent = round((speedup - 1) * 100)
    return f"{'+' if percent >= 0 else '−'}{abs(percent)}%"


def seconds(value: float | None) -> str:
    """ "0.42 s", "12 s"; a dash where it is not known."""
    if value is None:
        return "–"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def summary(figures: TurnFigures) -> str:
    """One line below an answer."""
    s = figures.statistics
    parts = [counted(s.emitted, "token"), speed(s.tokens_per_s)]
    if s.tested and s.tokens_per_pass is not None:
        parts.append(f"{s.tokens_per_pass:.2f} per pass")
        if figures.speedup is not None:
            parts.append(f"{gain(figures.speedup)} against plain")
    elif not figures.speculate or figures.state == "off":
        parts.append("plain decoding")
    return " · ".join(parts) if s.emitted else ""


def compact(figures: TurnFigures, width: int) -> str:
    """The state of speculation in one line of at most `width` cells; what matters least gives way first."""
    s = figures.statistics
    last = figures.rounds[-1] if figures.rounds else None
    parts: list[tuple[int, str]] = []  # (importance, text), in order of appearance
    if last is not None:
        parts.append((3, f"{last.source} {last.drafted}" if last.drafted else "no draft"))
    if s.tokens_per_pass is not None:
        parts.append((4, f"{s.tokens_per_pass:.2f} tok/pass"))
    if s.acceptance_rate is not None:
        parts.append((2, f"{s.acceptance_rate:.0%} accepted"))
    if s.tokens_per_s is not None:
        parts.append((6, speed(s.tokens_per_s)))
    if figures.speedup is not None:
        parts.append((5, gain(figures.speedup)))
    if figures.n_ctx and figures.context_used is not None:
        parts.append((1, f"ctx {figures.context_used / figures.n_ctx:.0%}"))
    while parts and len(line := " · ".join(text for _, text in parts)) > width:
        parts.remove(min(parts))
    return line if parts else ""
