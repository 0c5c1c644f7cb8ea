"""The first and the last line of the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.timer import Timer

from spec_local.cli.first_frame import UNTITLED
from spec_local.ui import figures as show
from spec_local.ui.events import EngineFacts
from spec_local.ui.figures import TurnFigures
from spec_local.ui.lines_view import LinesView
from spec_local.ui.tones import FAINT, GOOD, WARN
from spec_local.ui.visible import visible

_FLASH_S = 4.0
_BESIDE_HINT = 4
"""Cells of the mark, and between an answer's figures and the hint."""


class TitleLine(LinesView):
    """The conversation's title, and what is loaded."""

    MARGINS = (2, 2)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown = ("", "")

    def show(self, title: str, facts: EngineFacts | None, doing: str) -> None:
        """Show these."""
        shown = (title or UNTITLED, doing or (facts.title if facts else "no model"))
        if shown != self._shown:
            self._shown = shown
            self.changed()

    def build(self, width: int) -> Sequence[Content]:
        title, right = (visible(text) for text in self._shown)
        model = Content.styled(right, FAINT).truncate(max(1, width * 3 // 5), ellipsis=True)
        left = Content.styled(title, "bold").truncate(max(1, width - model.cell_length - 2), ellipsis=True)
        space = " " * max(1, width - left.cell_length - model.cell_length)
        return [(left + space + model).truncate(width)]


@dataclass(frozen=True, slots=True)
class Situation:
    """How things stand in the chat."""

    next_on: bool = True
    """The next answer speculates."""
    busy: bool = False
    """An answer is under way."""
    doing: str = ""
    """What else goes on."""
    queued: bool = False
    """A message waits to be sent."""
    editing: bool = False
    """What is written replaces an earlier message."""
    chosen: str = ""
    """Role of the message that has the keys; empty for none."""
    choosing: bool = False
    """A choice in the transcript has the keys."""
    offered: bool = False
    """There is something to choose in the transcript."""
    below: bool = False
    """The transcript goes on below what is seen."""
    leaving: bool = False
    """The program ends when the pass under way does."""


class StatusLine(LinesView):
    """State of speculation in short where there is no panel, else what the keys do."""

    MARGINS = (2, 2)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._state = Situation()
        self._figures: TurnFigures | None = None
        """The answer's figures; None where the panel shows them."""
        self._shown = ""
        self._flash = ""
        self._timer: Timer | None = None

    def show(self, state: Situation) -> None:
        """Show how things stand."""
        if state != self._state:
            self._state = state
            self.changed()

    def show_figures(self, figures: TurnFigures | None) -> None:
        """Show an answer's figures as they are now; None where the panel does."""
        self._figures = figures if figures is not None and figures.rounds else None
        if self._short(self._inner(self.size.width)) != self._shown:
            self.changed()

    def _short(self, width: int) -> str:
        """The figures, with room for the shortest hint of what keys do."""
        if self._figures is None:
            return ""
        hint = min(cell_len(each) for each in self._hints())
        return show.compact(self._figures, width - _BESIDE_HINT - hint)

    def flash(self, text: str) -> None:
        """Show a text for a few seconds."""
        self._flash = text
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_FLASH_S, self._end_flash)
        self.changed()

    def _end_flash(self) -> None:
        self._flash, self._timer = "", None
        self.changed()

    def build(self, width: int) -> Sequence[Content]:
        if self._flash:
            return [Content.styled(visible(self._flash), "bold").truncate(width, ellipsis=True)]
        state = self._state
        left = Content.assemble(("● ", GOOD if state.next_on else WARN))
        self._shown = self._short(width)
        left = left + (self._shown or f"speculation {'on' if state.next_on else 'off'}")
        room = width - left.cell_length - 2
        hint = Content.styled(next((h for h in self._hints() if cell_len(h) <= room), ""), FAINT)
        space = " " * max(0, width - left.cell_length - hint.cell_length)
        return [(left + space + hint).truncate(width, ellipsis=True)]

    def _hints(self) -> tuple[str, ...]:
        """What to do next, in words and in fewer words."""
        state = self._state
        if state.leaving:
            return "leaving after this pass · Ctrl+Q leaves at once", "leaving …"
        if state.choosing:
            return "Enter does it · ↑ ↓ others · Esc back to writing", "Enter does it · Esc back", "Esc back"
        if state.chosen:
            keys = ("r again · e edit · c copy · ← → versions", "r again · e edit · c copy", "")
            return tuple(f"{each} · Esc back".removeprefix(" · ") for each in keys)
        if state.queued:
            when = "the model is there" if state.doing else "this is done"
            return f"sent when {when} · Esc takes it back", "Esc takes it back"
        if state.busy:
            return ("PgDn follows · Esc stops", "Esc stops") if state.below else ("Esc stops",)
        if state.doing:
            return f"{state.doing} · Esc stops", "Esc stops"
        if state.editing:
            return "Enter asks this instead · Esc keeps the old one", "Esc keeps the old one"
        if state.offered:
            return "Tab chooses above · / commands · F1 keys", "Tab chooses above"
        if state.below:
            return "PgDn goes on · / commands · F1 keys", "PgDn goes on"
        return "Enter sends · / commands · F1 keys", "/ commands · F1 keys", "F1 keys"
