"""The list of messages: follows its end until somebody scrolls up, and shows errors where they happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Button

from spec_local.errors import SpecLocalError
from spec_local.session.store_records import StoredMessage
from spec_local.ui.lines_view import LinesView
from spec_local.ui.turn_view import TurnView, legend
from spec_local.ui.visible import visible

SHOWN_AT_FIRST = 20
"""Messages shown when a conversation is opened; the ones before them come on request."""


class Notice(LinesView):
    """A remark, warning or error of the program's, in its place among the messages.

    Args:
        text: What there is to say; several lines are kept.
        hint: What to do about it.
        kind: "note", "warning" or "error".
    """

    def __init__(self, text: str, hint: str = "", kind: str = "note") -> None:
        super().__init__(classes=f"notice -{kind}")
        self.text = text
        self.hint = hint
        self.kind = kind

    MARGINS = (2, 1)
    WIDEST = 104

    def bar(self) -> tuple[str, str]:
        return "▎", {"error": "$error", "warning": "$warning"}.get(self.kind, "$foreground 25%")

    def say(self, text: str, hint: str = "") -> None:
        """Say something else."""
        self.text, self.hint = text, hint
        self.changed()

    def build(self, width: int) -> Sequence[Content]:
        lines: list[Content] = []
        for part, style in ((self.text, ""), (self.hint, "$foreground 60%")):
            for line in visible(part).split("\n") if part else ():
                lines += [piece.stylize(style) for piece in Content(line).wrap(width)] or [Content()]
        return lines


class Offer(Vertical):
    """A notice with buttons: a question the program has, or a way on after an error."""

    def __init__(self, notice: Notice, choices: Sequence[tuple[str, Callable[[], Any]]]) -> None:
        super().__init__(classes="offer")
        self.notice = notice
        self._choices = list(choices)

    def compose(self) -> ComposeResult:
        yield self.notice
        with Horizontal(classes="choices"):
            for number, (label, _) in enumerate(self._choices):
                yield Button(
                    Content(label), id=f"choice-{number}", compact=True, variant="primary" if not number else "default"
                )

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        number = int((event.button.id or "choice-0").removeprefix("choice-"))
        self.remove()
        self.post_message(self.Chosen(self._choices[number][1]))

    class Chosen(Message):
        """A button was pressed; the application does what it stands for."""

        def __init__(self, act: Callable[[], Any]) -> None:
            super().__init__()
            self.act = act


class Legend(LinesView):
    """The colours of provenance."""

    MARGINS = (2, 2)

    def build(self, width: int) -> Sequence[Content]:
        return [legend(width)]


class EmptyState(LinesView):
    """What an empty conversation says."""

    MARGINS = (2, 2)

    loaded: reactive[str] = reactive("")

    def watch_loaded(self) -> None:
        self.changed()

    def build(self, width: int) -> Sequence[Content]:
        rows = [
            ("", ""),
            (self.loaded or "No model yet", "bold"),
            ("", ""),
            ("Enter sends, Ctrl+J or Shift+Enter begins a new line, Esc stops an answer.", ""),
            ("@path attaches a text file. / lists the commands, F1 the keys.", ""),
            ("", ""),
            ("Each answer shows how much of it was drafted, and whether that made it faster.", "$foreground 55%"),
        ]
        lines: list[Content] = []
        for text, style in rows:
            lines += [line.stylize(style) for line in Content(text).wrap(width)] or [Content()]
        return lines


class Transcript(VerticalScroll, can_focus=False):
    """The messages of the branch in view, with notices between them."""

    BLANK = True

    show_provenance: reactive[bool] = reactive(False)

    def compose(self) -> ComposeResult:
        yield EmptyState(classes="notice -empty")

    def on_mount(self) -> None:
        self.anchor()

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """As Textual does; but a transcript that fits begins at the top. Anchored, it would hang from the bottom, at a
        negative offset from which the first scroll jumps."""
        arranged = super().arrange(size, optimal)
        self._anchored = arranged.total_region.bottom > size.height
        if not self._anchored and self.scroll_y:
            self.set_reactive(Transcript.scroll_y, 0)
            self.set_reactive(Transcript.scroll_target_y, 0)
        return arranged

    @property
    def turns(self) -> list[TurnView]:
        """The messages shown, in order."""
        return [child for child in self.children if isinstance(child, TurnView)]

    def turn(self, message: int) -> TurnView | None:
        """The view of a message, if it is shown."""
        return next((view for view in self.turns if view.message.id == message), None)

    def watch_show_provenance(self, shown: bool) -> None:
        for view in self.turns:
            view.show_provenance = shown

    async def show_messages(self, views: Sequence[TurnView], earlier: int, more: Callable[[], Any]) -> None:
        """Replace everything by these messages.

        Args:
            views: What to show.
            earlier: Messages before them that are not shown.
            more: Shows those too.
        """
        with self.app.batch_update():
            await self.remove_children()
            parts: list[Any] = []
            if earlier:
                parts.append(Offer(Notice(f"{earlier} earlier messages"), [("Show them", more)]))
            for view in views:
                view.set_reactive(TurnView.show_provenance, self.show_provenance)
            await self.mount_all([*parts, *views] if views else [EmptyState(classes="notice -empty")])
        self.follow()

    async def add(self, view: TurnView) -> None:
        """Add a message at the end."""
        view.set_reactive(TurnView.show_provenance, self.show_provenance)
        await self.query(EmptyState).remove()
        await self.mount(view)
        self.follow()

    def note(self, text: str, hint: str = "", kind: str = "note") -> Notice:
        """Add a notice at the end."""
        notice = Notice(text, hint, kind)
        self.mount(notice)
        return notice

    def complain(self, error: SpecLocalError, choices: Sequence[tuple[str, Callable[[], Any]]] = ()) -> None:
        """Add an error at the end, with ways on."""
        notice = Notice(error.message, error.hint, "error")
        self.mount(Offer(notice, choices) if choices else notice)

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._anchor_released = False
        self.anchor()

    def last_answer(self) -> StoredMessage | None:
        """The last answer that is shown, whole or not."""
        return next((view.message for view in reversed(self.turns) if view.message.role == "assistant"), None)
