"""The first and the last line of the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.timer import Timer

from spec_local.ui import figures as show
from spec_local.ui.events import EngineFacts
from spec_local.ui.figures import TurnFigures
from spec_local.ui.lines_view import LinesView
from spec_local.ui.visible import visible

_FLASH_S = 4.0
FAINT, GOOD, WARN = "$foreground 55%", "$text-success", "$text-warning"


class TitleLine(LinesView):
    """The conversation's title, and what is loaded."""

    MARGINS = (2, 2)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown = ("", "")

    def show(self, title: str, facts: EngineFacts | None, doing: str) -> None:
        """Show these."""
        shown = (title or "New conversation", doing or (facts.title if facts else "no model"))
        if shown != self._shown:
            self._shown = shown
            self.changed()

    def build(self, width: int) -> Sequence[Content]:
        title, right = (visible(text) for text in self._shown)
        model = Content.styled(right, FAINT).truncate(max(1, width * 3 // 5), ellipsis=True)
        left = Content.styled(title, "bold").truncate(max(1, width - model.cell_length - 2), ellipsis=True)
        space = " " * max(1, width - left.cell_length - model.cell_length)
        return [(left + space + model).truncate(width)]


class StatusLine(LinesView):
    """State of speculation in short where there is no panel, else what the keys do."""

    MARGINS = (2, 2)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._left: Content = Content()
        self._right = ""
        self._key: tuple[object, ...] = ()
        self._flash = ""
        self._timer: Timer | None = None

    def show(
        self,
        *,
        figures: TurnFigures | None,
        panel: bool,
        next_on: bool,
        busy: bool,
        doing: str,
        queued: bool,
        editing: bool,
    ) -> None:
        """Show the state of the chat."""
        self._figures, self._panel = figures, panel
        rounds = len(figures.rounds) if figures else 0
        key = (id(figures), rounds, panel, next_on, busy, doing, queued, editing)
        if key == self._key:
            return
        self._key = key
        self._next_on, self._busy, self._doing, self._queued, self._editing = next_on, busy, doing, queued, editing
        self.changed()

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
        if not self._key:
            return [Content()]
        left = Content.assemble(("● ", GOOD if self._next_on else WARN))
        if not self._panel and self._figures is not None and self._figures.rounds:
            left = left + show.compact(self._figures, width >= 100)
        else:
            left = left + ("speculation on" if self._next_on else "speculation off")
        room = width - left.cell_length - 2
        hint = Content.styled(next((h for h in self._hints() if cell_len(h) <= room), ""), FAINT)
        space = " " * max(0, width - left.cell_length - hint.cell_length)
        return [(left + space + hint).truncate(width, ellipsis=True)]

    def _hints(self) -> tuple[str, ...]:
        """What to do next, in words and in fewer words."""
        if self._queued:
            when = "the model is there" if self._doing else "this is done"
            return f"sent when {when} · Esc takes it back", "Esc takes it back"
        if self._busy:
            return ("Esc stops",)
        if self._doing:
            return f"{self._doing} · Esc stops", "Esc stops"
        if self._editing:
            return "Enter asks this instead · empty it to keep the old one", "Enter asks this instead"
        return "Enter sends · / commands · F1 keys", "/ commands · F1 keys", "F1 keys"
