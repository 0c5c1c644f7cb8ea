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
from spec_local.ui.tones import FAINT
from spec_local.ui.turn_view import TurnView, legend
from spec_local.ui.visible import visible
from spec_local.words import counted

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
        for part, style in ((self.text, ""), (self.hint, FAINT)):
            for line in visible(part).split("\n") if part else ():
                lines += [piece.stylize(style) for piece in Content(line).wrap(width)] or [Content()]
        return lines


class ChoiceButton(Button):
    """One way on; Enter or a click takes it."""

    def __init__(self, label: str, act: Callable[[], Any], first: bool) -> None:
        super().__init__(Content(visible(label)), compact=True, variant="primary" if first else "default")
        self.act = act


class Offer(Vertical):
    """A notice with buttons: a question the program has, or a way on after an error.

    Args:
        notice: What is said; it stays when the buttons go.
        choices: Labels and what they stand for, the likeliest first.
    """

    class Chosen(Message):
        """A button was pressed; the application does what it stands for."""

        def __init__(self, act: Callable[[], Any]) -> None:
            super().__init__()
            self.act = act

    def __init__(self, notice: Notice, choices: Sequence[tuple[str, Callable[[], Any]]]) -> None:
        super().__init__(classes="offer")
        self.notice = notice
        self.choices = [ChoiceButton(label, act, not number) for number, (label, act) in enumerate(choices)]
        self.is_open = True
        """There is still something to choose."""

    def compose(self) -> ComposeResult:
        yield self.notice
        with Horizontal(classes="choices"):
            yield from self.choices

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if isinstance(event.button, ChoiceButton):
            self.post_message(self.Chosen(event.button.act))

    def settle(self) -> None:
        """Take the buttons away: something was done about it."""
        self.is_open = False
        self.query(".choices").remove()


class Earlier(Offer):
    """Stands for messages that are not shown; it stays while they are not."""


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
            ("Each answer shows how much of it was drafted, and whether that made it faster.", FAINT),
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

    class Scrolled(Message):
        """The end came into view, or left it."""

    def on_mount(self) -> None:
        self.anchor()

    @property
    def is_behind(self) -> bool:
        """There is more below what is seen."""
        return self.max_scroll_y - self.scroll_y >= 1

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if self.is_behind != self._was_behind:
            self._was_behind = self.is_behind
            self.post_message(self.Scrolled())

    _was_behind = False

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

    @property
    def chosen(self) -> TurnView | None:
        """The message that has the keys."""
        return next((view for view in self.turns if view.has_focus), None)

    def choose(self, index: int) -> None:
        """Give a message the keys."""
        turns = self.turns
        if -len(turns) <= index < len(turns):
            turns[index].focus()

    def step(self, step: int) -> bool:
        """Choose the message before or after the chosen one. False where there is none after it."""
        turns = self.turns
        at = turns.index(self.chosen) + step if self.chosen in turns else len(turns)
        if at >= len(turns):
            return False
        if at >= 0:
            turns[at].focus()
        return True

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
                parts.append(Earlier(Notice(counted(earlier, "earlier message")), [("Show them", more)]))
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
        """Add a notice at the end, and go there: it answers what a person did just now."""
        notice = Notice(text, hint, kind)
        self.mount(notice)
        self.follow()
        return notice

    def complain(self, error: SpecLocalError) -> None:
        """Add an error at the end."""
        self.note(error.message, error.hint, "error")

    def offer(self, notice: Notice, choices: Sequence[tuple[str, Callable[[], Any]]]) -> None:
        """Add a notice with ways on at the end, in place of what was offered before."""
        self.settle_offers()
        self.mount(Offer(notice, choices))
        self.follow()

    def settle_offers(self) -> None:
        """Something began that answers what was offered: the notices stay, their buttons go."""
        for offer in self.query(Offer):
            if offer.is_open and not isinstance(offer, Earlier):
                offer.settle()

    @property
    def open_offer(self) -> Offer | None:
        """The last notice that has something to choose."""
        return next((offer for offer in reversed(self.query(Offer)) if offer.is_open), None)

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._anchor_released = False
        self.anchor()

    def last_answer(self) -> StoredMessage | None:
        """The last answer that is shown, whole or not."""
        return next((view.message for view in reversed(self.turns) if view.message.role == "assistant"), None)
