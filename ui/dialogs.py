"""The modal screens: conversations, the system message, a question."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from spec_local.ui.finder import Finder
from spec_local.ui.lines_view import LinesView
from spec_local.ui.tones import DIM
from spec_local.ui.visible import visible
from spec_local.words import counted

if TYPE_CHECKING:
    from spec_local.session.store import Store
    from spec_local.session.store_records import Found


class Hint(LinesView):
    """One faint line."""

    def __init__(self, text: str) -> None:
        super().__init__(classes="hint")
        self._text = text

    def build(self, width: int) -> Sequence[Content]:
        return [Content.styled(self._text, DIM).truncate(width, ellipsis=True)]


class ConversationPicker(ModalScreen["Found | None"]):
    """Earlier conversations, narrowed by what is typed, in titles and messages."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Close")]

    def __init__(self, store: Store, text: str = "") -> None:
        super().__init__()
        self._store = store
        self._text = text
        self._found: list[Found] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -tall"):
            yield Finder(self._text, "Search titles and messages")
            yield Hint("Enter opens · ↑ ↓ choose · Esc closes")

    def on_mount(self) -> None:
        self._search(self._text)

    def on_finder_sought(self, event: Finder.Sought) -> None:
        self._search(event.text)

    def _search(self, text: str) -> None:
        self._found = self._store.find(text)
        lines = [(_conversation_line(found), True) for found in self._found]
        nothing = "Nothing is found." if text.strip() else "There is no conversation yet."
        self.query_one(Finder).show(lines or [(Content.styled(nothing, DIM), False)])

    def on_finder_chosen(self, event: Finder.Chosen) -> None:
        if event.index < len(self._found):
            self.dismiss(self._found[event.index])


def _conversation_line(found: Found) -> Content:
    when = datetime.fromtimestamp(found.updated).strftime("%Y-%m-%d %H:%M")
    count = counted(found.messages, "message")
    line = Content.assemble(visible(found.title or "Untitled"), "\n", (f"{when} · {count}", DIM))
    return line + Content.styled(f"\n{visible(found.snippet)}", "$text-accent") if found.snippet else line


class Question(ModalScreen[int | None]):
    """A question with a few answers; the first one is chosen at first. Dismissed with the answer's index."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Close")]

    def __init__(self, text: str, answers: Sequence[str]) -> None:
        super().__init__()
        self._text = text
        self._answers = answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Heading(self._text)
            yield OptionList(*(Option(Content(answer)) for answer in self._answers), compact=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


class Heading(LinesView):
    """A line or two of text above a dialog's contents."""

    def __init__(self, text: str) -> None:
        super().__init__(classes="heading")
        self._text = text

    def say(self, text: str) -> None:
        """Say something else."""
        self._text = text
        self.changed()

    def build(self, width: int) -> Sequence[Content]:
        return Content.styled(visible(self._text), "bold").wrap(width)


class SystemEditor(ModalScreen["str | None"]):
    """Edits the system message."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Close"), ("ctrl+s", "save", "Save")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -tall"):
            yield Heading("System message")
            yield TextArea(self._text, soft_wrap=True, compact=True)
            yield Hint("Ctrl+S saves · Esc leaves it as it was")

    def action_save(self) -> None:
        """Take the text over."""
        self.dismiss(self.query_one(TextArea).text.strip())
