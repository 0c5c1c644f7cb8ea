"""A list that is narrowed by typing: the keys stay with the text, the arrows move in the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option


class Finder(Vertical):
    """See the module.

    Args:
        text: What is typed at first.
        placeholder: What stands there while nothing is typed.
    """

    class Sought(Message):
        """Something else was typed: the lines should be others."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Chosen(Message):
        """A line was chosen."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, text: str = "", placeholder: str = "") -> None:
        super().__init__(classes="finder")
        self._input = Input(text, placeholder=placeholder, compact=True, select_on_focus=False)
        self._list = OptionList(compact=True)
        self._list.can_focus = False

    def compose(self) -> ComposeResult:
        yield self._input
        yield self._list

    def ask_for(self, placeholder: str) -> None:
        """Begin anew, with nothing typed."""
        with self._input.prevent(Input.Changed):
            self._input.value = ""
        self._input.placeholder = placeholder
        self._input.focus()

    def show(self, lines: Sequence[tuple[Content, bool]], at: int | None = None) -> None:
        """Show these lines; True beside a line says that it can be chosen.

        Args:
            lines: What there is.
            at: The line to begin at, instead of the first that can be chosen.
        """
        first = next((i for i, (_, enabled) in enumerate(lines) if enabled), None)
        self._list.clear_options()
        self._list.add_options([Option(line, disabled=not enabled) for line, enabled in lines])
        self._list.highlighted = first if at is None else at
        self.call_after_refresh(self._see_highlighted)

    def _see_highlighted(self) -> None:
        """From the beginning, where the highlighted line can be seen from there: headings are part of the picture."""
        if (self._list.highlighted or 0) < self._list.size.height:
            self._list.scroll_to(y=0, animate=False, immediate=True)

    def on_key(self, event: events.Key) -> None:
        moves: dict[str, Callable[[], None]] = {
            "down": self._list.action_cursor_down,
            "up": self._list.action_cursor_up,
            "pagedown": self._list.action_page_down,
            "pageup": self._list.action_page_up,
        }
        if (move := moves.get(event.key)) is not None:
            move()
            event.stop()

    @on(Input.Changed)
    def _seek(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Sought(event.value))

    @on(Input.Submitted)
    def _take_highlighted(self, event: Input.Submitted) -> None:
        event.stop()
        if (at := self._list.highlighted) is not None:
            self.post_message(self.Chosen(at))

    @on(OptionList.OptionSelected)
    def _take(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(event.option_index))
