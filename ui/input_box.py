"""The input with its list of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from spec_local.session.store_records import StoredMessage
from spec_local.ui.completion import Candidate, CompletionList, candidates
from spec_local.ui.composer import Composer
from spec_local.ui.lines_view import LinesView
from spec_local.ui.tones import QUIET, WARN
from spec_local.ui.visible import visible

if TYPE_CHECKING:
    from spec_local.ui.app import ChatApp


class Waiting(LinesView):
    """A message that is sent when it can be, as one line."""

    MARGINS = (2, 1)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = ""
        self.display = False

    def show(self, text: str | None) -> None:
        """Show this one; None for none."""
        if (text or "") != self._text:
            self._text = text or ""
            self.display = bool(text)
            self.changed()

    def build(self, width: int) -> Sequence[Content]:
        line = " ".join(visible(self._text[: 4 * width]).split())
        return [Content.assemble(("waiting  ", WARN), (line, QUIET)).truncate(width, ellipsis=True)]


class InputBox(Vertical):
    """Completes what is written, and knows whether it is another version of an earlier message."""

    class Changed(Message):
        """The input is no longer, or newly, an edit."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.completions = CompletionList(id="completions")
        self.waiting = Waiting(id="waiting")
        self.composer = Composer(id="composer")
        self.editing: int | None = None
        """The message that what is written will be a new version of."""
        self._aside = ""
        """What stood here before the edit; it comes back afterwards."""

    def compose(self) -> ComposeResult:
        yield self.completions
        yield self.waiting
        yield self.composer

    def show_waiting(self, text: str | None) -> None:
        """Show a message that waits for its turn; None for none."""
        self.waiting.show(text)

    # -- edits -----------------------------------------------------------------------------------------------------

    def edit(self, message: StoredMessage) -> None:
        """Begin another version of a message."""
        if self.editing is None:
            self._aside = self.composer.whole_text
        self.editing = message.id
        self.composer.load_whole(message.text)
        self.composer.focus()
        self.post_message(self.Changed())

    def leave_edit(self) -> None:
        """Keep the old version; what was being written before comes back."""
        if self.editing is not None:
            self.sent()

    def sent(self) -> None:
        """What is written was sent: the input is empty, or holds what an edit had put aside."""
        aside, self._aside = self._aside, ""
        self.editing = None
        self.composer.clear_all()
        if aside:
            self.composer.load_whole(aside)
        self.post_message(self.Changed())

    # -- completion ------------------------------------------------------------------------------------------------

    def on_composer_edited(self, event: Composer.Edited) -> None:
        event.stop()
        composer = self.composer
        if self.editing is not None and not composer.text:
            self.leave_edit()
        app = cast("ChatApp", self.app)
        self._offer(candidates(app, composer.before_cursor(), composer.text) if composer.has_focus else [])

    def on_composer_steered(self, event: Composer.Steered) -> None:
        completions = self.completions
        if not self.composer.completing or event.key in ("pageup", "pagedown"):
            return
        event.stop()
        if event.key in ("up", "down"):
            completions.move(-1 if event.key == "up" else 1)
        elif event.key == "escape":
            self._offer([])
        elif (candidate := completions.chosen) is not None:
            typed = self.composer.before_cursor()[-candidate.length :] if candidate.length else ""
            if event.key == "enter" and candidate.text.strip() == typed.strip():
                self._offer([])
                self.post_message(Composer.Submitted(self.composer.whole_text))
            else:
                self.composer.complete(candidate.length, candidate.text)

    def _offer(self, found: list[Candidate]) -> None:
        self.completions.offer(found)
        self.composer.completing = bool(found)
