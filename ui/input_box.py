"""The input with its list of completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from spec_local.session.store_records import StoredMessage
from spec_local.ui.completion import Candidate, CompletionList, candidates
from spec_local.ui.composer import Composer

if TYPE_CHECKING:
    from spec_local.ui.app import ChatApp


class InputBox(Vertical):
    """Completes what is written, and knows whether it is another version of an earlier message."""

    class Changed(Message):
        """The input is no longer, or newly, an edit."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.completions = CompletionList(id="completions")
        self.composer = Composer(id="composer")
        self.editing: int | None = None
        """The message that what is written will be a new version of."""

    def compose(self) -> ComposeResult:
        yield self.completions
        yield self.composer

    def edit(self, message: StoredMessage) -> None:
        """Begin another version of a message."""
        self.editing = message.id
        self.composer.load_whole(message.text)
        self.composer.focus()
        self.post_message(self.Changed())

    def on_composer_edited(self, event: Composer.Edited) -> None:
        event.stop()
        composer = self.composer
        if self.editing is not None and not composer.text:
            self.editing = None
            self.post_message(self.Changed())
        app = cast("ChatApp", self.app)
        self._offer(candidates(app, composer.before_cursor(), composer.text) if composer.has_focus else [])

    def on_composer_steered(self, event: Composer.Steered) -> None:
        completions = self.completions
        if event.key in ("pageup", "pagedown"):
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
