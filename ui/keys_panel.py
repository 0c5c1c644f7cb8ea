"""The keys panel: commands and their keys from the registry, and the keys of writing and choosing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from spec_local.ui.commands import COMMANDS, GROUPS, shown_key
from spec_local.ui.dialogs import Hint
from spec_local.ui.lines_view import LinesView


class KeysPanel(ModalScreen[None]):
    """Every key and command, from the registry."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -tall"):
            with VerticalScroll(can_focus=True):
                yield KeysList()
            yield Hint("↑ ↓ scroll · Esc closes")


WRITING = (
    ("Enter", "send"),
    ("Ctrl+J, Shift+Enter", "new line"),
    ("↑ ↓", "what was sent before (at the first and last line)"),
    ("Tab", "complete a command or an @path"),
    ("PgUp PgDn", "scroll the conversation"),
    ("Ctrl+P", "command palette"),
    ("Ctrl+C", "copy what is selected; stop an answer; twice: leave"),
)
CHOOSING = (("↑ ↓", "previous and next message"), ("← →", "other versions of it"), ("Enter", "unfold it"))


class KeysList(LinesView):
    """The table of keys."""

    def build(self, width: int) -> Sequence[Content]:
        lines: list[Content] = []

        def section(title: str, rows: Sequence[tuple[str, str]]) -> None:
            if lines:
                lines.append(Content())
            lines.append(Content.styled(title, "bold $text-primary"))
            for left, right in rows:
                pieces = Content(right).wrap(max(1, width - 26)) or [Content()]
                lines.append(Content.styled(left.ljust(25) + " ", "$text-accent").truncate(26) + pieces[0])
                lines.extend(Content(" " * 26) + piece for piece in pieces[1:])

        section("Writing", WRITING)
        for group, title in GROUPS.items():
            rows = []
            for command in (c for c in COMMANDS if c.group == group):
                keys = ", ".join(shown_key(key) for key in command.keys)
                rows.append((f"/{command.name}".ljust(15) + keys, command.summary))
            section(title, rows)
        chosen = [(key, c.summary) for c in COMMANDS for key in c.message_keys]
        section("While a message is chosen", [*CHOOSING, *chosen])
        return lines
