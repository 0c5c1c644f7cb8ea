"""Where a person writes: grows to a cap, completes commands and paths, and takes pastes of any size."""

from __future__ import annotations

import re

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import TextArea

from spec_local.cli.first_frame import PLACEHOLDER
from spec_local.ui.visible import visible

_LARGE_CHARACTERS, _LARGE_LINES = 4000, 60
"""A paste beyond either is folded into a word: the editor would wrap it again at every key."""
_FOLDED = re.compile(r"⟦paste (\d+): [^⟧]*⟧")


class Composer(TextArea):
    """The input. What was pasted in bulk stands in it as ⟦paste 1: 2000 lines⟧ and is put back when it is sent."""

    class Submitted(Message):
        """Enter was pressed."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Edited(Message):
        """Text or cursor changed: what can be completed may be other now."""

    class Steered(Message):
        """A key for the list of completions, or for scrolling: up, down, tab, escape, pageup, pagedown."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            tab_behavior="focus",
            compact=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder=PLACEHOLDER,
        )
        self.completing = False
        """A list of completions is open: up, down, tab and enter belong to it."""
        self._pastes: list[str] = []
        self._history: list[str] = []
        self._place = 0
        """Index in the history; its length: below the newest entry, in what is being written."""
        self._draft = ""

    # -- text ------------------------------------------------------------------------------------------------------

    @property
    def whole_text(self) -> str:
        """The text with pastes put back."""

        def unfold(match: re.Match[str]) -> str:
            number = int(match[1])
            return self._pastes[number - 1] if 0 < number <= len(self._pastes) else match[0]

        return _FOLDED.sub(unfold, self.text)

    def load_whole(self, text: str) -> None:
        """Replace the text, folding what is large, and go to its end."""
        self.text = self._fold(text)
        self.move_cursor(self.document.end)

    def clear_all(self) -> None:
        """Empty the input."""
        self._pastes.clear()
        self.text = ""
        self._place = len(self._history)

    def before_cursor(self) -> str:
        """The current line up to the cursor."""
        row, column = self.cursor_location
        return str(self.document.get_line(row)[:column])

    def complete(self, length: int, text: str) -> None:
        """Replace the `length` characters before the cursor."""
        row, column = self.cursor_location
        self.replace(text, (row, column - length), (row, column))

    def _fold(self, text: str) -> str:
        lines = text.count("\n") + 1
        odd = visible(text) != text
        if len(text) <= _LARGE_CHARACTERS and lines <= _LARGE_LINES and not odd:
            return text
        self._pastes.append(text)
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        return f"⟦paste {len(self._pastes)}: {size}⟧"

    # -- history ---------------------------------------------------------------------------------------------------

    def set_history(self, prompts: list[str]) -> None:
        """What was sent before, oldest first."""
        self._history = prompts
        self._place = len(prompts)

    def _step_history(self, step: int) -> bool:
        place = self._place + step
        if not 0 <= place <= len(self._history):
            return False
        if self._place == len(self._history):
            self._draft = self.whole_text
        self._place = place
        self.load_whole(self._draft if place == len(self._history) else self._history[place])
        return True

    def _is_history_key(self, key: str) -> bool:
        """Whether the key stepped through the history: up in the first line, down in the last."""
        if key == "up" and self.cursor_at_first_line:
            return self._step_history(-1)
        return key == "down" and self.cursor_at_last_line and self._step_history(1)

    # -- keys ------------------------------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        key = event.key
        handled = True
        if self.completing and key in ("up", "down", "tab", "escape", "enter"):
            self.post_message(self.Steered(key))
        elif key == "enter":
            self.post_message(self.Submitted(self.whole_text))
        elif key in ("ctrl+j", "shift+enter", "alt+enter"):
            self._replace_via_keyboard("\n", *self.selection)
        elif key in ("pageup", "pagedown", "tab"):
            self.post_message(self.Steered(key))
        elif not self._is_history_key(key):
            handled = False
        if handled:
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")  # many terminals paste line ends as CR
        self._replace_via_keyboard(self._fold(text), *self.selection)

    def on_text_area_changed(self) -> None:
        self.post_message(self.Edited())

    def on_text_area_selection_changed(self) -> None:
        self.post_message(self.Edited())

    def get_line(self, line_index: int) -> Text:
        return Text(visible(str(self.document.get_line(line_index))), end="", no_wrap=True)
