"""One message in the transcript: what a person wrote, or an answer with its figures."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from textual.content import Content, Span
from textual.reactive import reactive
from textual.timer import Timer

from spec_local.session.provenance import Origin, TokenText, clip
from spec_local.session.store_records import StoredMessage
from spec_local.speculation.round import Round
from spec_local.ui import figures as show
from spec_local.ui.figures import TurnFigures
from spec_local.ui.lines_view import EMPTY, LinesView
from spec_local.ui.markdown_document import MarkdownDocument
from spec_local.ui.tones import ERROR, FAINT, WARN
from spec_local.ui.visible import visible
from spec_local.words import counted

ORIGIN_STYLES = {
    Origin.ACCEPTED: "$text-success",
    Origin.CORRECTION: "underline $text-error",
    Origin.BONUS: "$text-accent",
    Origin.PLAIN: "$foreground",
}
ORIGIN_NAMES = {
    Origin.ACCEPTED: "accepted draft",
    Origin.CORRECTION: "correction",
    Origin.BONUS: "bonus",
    Origin.PLAIN: "plain",
}
_FRAME_S = 0.05
"""Shortest time between two renderings of a growing answer."""
_SHARE = 3
"""From one rendering to the next pass at least this many times what one takes: a long block, or a slow machine, gets
fewer pictures and not slower keys."""
_LONG = 40
"""Lines of a person's message shown before it is folded."""


class TurnView(LinesView, can_focus=True):
    """A message. An answer on its way grows by `feed`, whose cost does not depend on what is there already."""

    MARGINS = (2, 1)
    WIDEST = 104

    show_provenance: reactive[bool] = reactive(False)

    def __init__(self, message: StoredMessage, branch: tuple[int, int] = (1, 1)) -> None:
        super().__init__(classes=f"turn -{message.role}")
        self.message = message
        self.branch = branch
        """(which, of how many) versions of this message."""
        self.figures = TurnFigures()
        self.tokens: list[TokenText] = []
        self.waiting = ""
        """What an answer without text is waiting for; empty once it ended."""
        self.unfolded = False
        self.thoughts = str(message.result.get("reasoning") or "")
        """What was thought before the answer."""
        self._thinking_tokens = int(message.result.get("usage", {}).get("reasoning_tokens") or 0)
        self._thinking_began: float | None = None
        self._document = MarkdownDocument(message.text if message.role == "assistant" else "")
        self._drawn = -1.0
        self._pause = _FRAME_S
        self._timer: Timer | None = None

    @property
    def text(self) -> str:
        """What is there so far."""
        return self._document.source if self.message.role == "assistant" else self.message.text

    def bar(self) -> tuple[str, str]:
        if self.has_focus:
            return "▌", "$accent"
        return ("▌", "$primary") if self.message.role == "user" else (" ", "")

    def watch_has_focus(self, _: bool) -> None:
        self._strips.clear()
        self.refresh()

    # -- growing ---------------------------------------------------------------------------------------------------

    def feed(
        self,
        text: str,
        tokens: Iterable[TokenText],
        rounds: Iterable[Round],
        thinking: str = "",
        thinking_tokens: int = 0,
    ) -> None:
        """Add what came; drawn at once or a little later."""
        if thinking_tokens and self._thinking_began is None:
            self._thinking_began = time.monotonic()
        self.thoughts += thinking
        self._thinking_tokens += thinking_tokens
        first = not self._document.source
        self._document.append(text)
        self.tokens += tokens
        self.figures.rounds += rounds
        if first or time.monotonic() - self._drawn >= self._pause:
            self.draw()
        elif self._timer is None:
            self._timer = self.set_timer(self._pause, self.draw)

    def finish(self, message: StoredMessage) -> None:
        """The answer has ended and is this."""
        self.message = message
        self.waiting = ""
        self.thoughts = str(message.result.get("reasoning") or self.thoughts)
        if message.text != self._document.source:
            self._document = MarkdownDocument(message.text)
        self.draw()

    def draw(self) -> None:
        """Render now, and see what that costs."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if self.is_attached:
            begin = self._drawn = time.monotonic()
            self.changed()
            self.call_after_refresh(self._painted, begin)

    def _painted(self, begin: float) -> None:
        """The screen has it. What building, layout and painting took decides when to draw again."""
        self._pause = max(_FRAME_S, _SHARE * (time.monotonic() - begin))

    def watch_show_provenance(self) -> None:
        self.changed()

    # -- lines -----------------------------------------------------------------------------------------------------

    def build(self, width: int) -> Sequence[Content]:
        return self._question(width) if self.message.role == "user" else self._answer(width)

    def _question(self, width: int) -> list[Content]:
        lines = plain_lines(self.message.text, width)
        if len(lines) > _LONG and not self.unfolded:
            hidden = len(lines) - _LONG // 2
            lines = [
                *lines[: _LONG // 2],
                Content.styled(f"… {hidden} more lines (Enter on the message shows them)", FAINT),
            ]
        for file in self.message.attachments:
            note = f"+ {visible(file.name)}, {counted(len(file.text.splitlines()), 'line')}"
            lines.append(Content.styled(note, "$text-accent").truncate(width, ellipsis=True))
        return [*lines, *self._branch_line()]

    def _answer(self, width: int) -> list[Content]:
        if self.show_provenance and self.tokens:
            lines = provenance_lines(clip(self.tokens, len(self.text.rstrip())), width)
        else:
            lines = list(self._document.lines(width))
        below = self._below()
        thought = self._thought(width)
        if lines or not self.waiting:
            thought += [EMPTY] if thought and (lines or below) else []
        elif thought:
            return thought
        if self.waiting and not lines:
            return [Content.styled(self.waiting, FAINT).truncate(width, ellipsis=True)]
        if below and lines:
            lines.append(EMPTY)
        for text, style in below:
            lines += [line.stylize(style) for line in Content(text).wrap(width)]
        return [*thought, *lines, *self._branch_line()]

    def _thought(self, width: int) -> list[Content]:
        """What was thought, folded into a line until Enter opens it, and the tools that are to be called."""
        lines: list[Content] = []
        if self._thinking_tokens:
            seconds = self.message.result.get("timings", {}).get("thinking_s")
            if seconds is None and self._thinking_began is not None:
                seconds = time.monotonic() - self._thinking_began
            verb = "thinking" if self.waiting and not self._document.source else "thought"
            took = "" if seconds is None else f" for {seconds:.0f} s"
            hint = "" if self.unfolded or verb == "thinking" else " (Enter on the message shows it)"
            line = f"{'▾' if self.unfolded else '▸'} {verb}{took}, {counted(self._thinking_tokens, 'token')}{hint}"
            lines.append(Content.styled(line, FAINT).truncate(width, ellipsis=True))
            if self.unfolded:
                lines += [part.stylize(FAINT) for part in plain_lines(self.thoughts, max(8, width - 2))]
        for call in self.message.result.get("tool_calls") or ():
            function = call["function"]
            text = visible(f"→ {function['name']}({function['arguments']})")
            lines += [part.stylize("$text-accent") for part in Content(text).wrap(width)]
        return lines

    def _below(self) -> list[tuple[str, str]]:
        """What stands under an answer: how it ended, and its figures."""
        message, result = self.message, self.message.result
        found = []
        if message.state == "stopped":
            found.append(("■ stopped here", WARN))
        elif message.state == "writing" and not self.waiting:
            found.append(("■ cut off here: the program ended, or another window is still writing", WARN))
        elif message.state == "failed":
            found.append((f"✗ {visible(message.error)}", ERROR))
        elif result.get("limit") == "context":
            found.append(("■ the context is full; the next answer leaves out the oldest turns", WARN))
        elif result.get("limit") == "max_tokens":
            found.append(("■ cut at max_tokens", WARN))
        if not self.waiting and (line := show.summary(self.figures)):
            found.append((line, FAINT))
        return found

    def _branch_line(self) -> list[Content]:
        which, count = self.branch
        return [Content.styled(f"‹ {which} of {count} ›", FAINT)] if count > 1 else []


def plain_lines(text: str, width: int) -> list[Content]:
    """Text as it is, wrapped."""
    found: list[Content] = []
    for line in visible(text).split("\n"):
        found += Content(line.expandtabs(4)).wrap(width) or [Content()]
    return found


def provenance_lines(tokens: Iterable[TokenText], width: int) -> list[Content]:
    """The text as it is, each token in the colour of its origin."""
    found: list[Content] = []
    text: list[str] = []
    spans: list[Span] = []
    at = 0

    def end_line() -> None:
        nonlocal at
        line = Content("".join(text), list(spans))
        found.extend(line.wrap(width) if line.plain else [Content()])
        text.clear()
        spans.clear()
        at = 0

    for token in tokens:
        style = ORIGIN_STYLES[token.origin]
        for number, part in enumerate(token.text.split("\n")):
            if number:
                end_line()
            part = visible(part)
            text.append(part)
            if seen := part.strip():  # blanks have no colour, and an underline would give them one
                start = at + part.index(seen)
                spans.append(Span(start, start + len(seen), style))
            at += len(part)
    end_line()
    return found


def legend(width: int) -> Content:
    """What the colours of provenance mean."""
    parts = [
        Content.assemble(("■ ", style.removeprefix("underline ")), (ORIGIN_NAMES[origin], style))
        for origin, style in ORIGIN_STYLES.items()
    ]
    return Content("   ").join(parts).truncate(width, ellipsis=True)
