"""What the commands about the screen do."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spec_local.errors import UsageError
from spec_local.ui.clipboard import put_on_clipboard
from spec_local.ui.markdown_document import code_blocks

if TYPE_CHECKING:
    from spec_local.ui.app import ChatApp


def copy(app: ChatApp, which: str) -> None:
    """Copy the chosen or last answer, its n-th code block, or the whole conversation."""
    chosen = app.chosen
    if which == "all":
        text, what = "\n\n".join(m.text for m in app.dialogue.conversation.path()), "The conversation"
    else:
        message = chosen if chosen is not None else app.transcript.last_answer()
        view = app.transcript.turn(message.id) if message is not None else None
        if view is None:
            raise UsageError("There is no answer to copy yet.")
        text, what = view.text, "The message" if view.message.role == "user" else "The answer"
        if which:
            blocks = code_blocks(text)
            if not which.isdigit() or not 1 <= int(which) <= len(blocks):
                count = "no code block" if not blocks else f"code blocks 1 to {len(blocks)}"
                raise UsageError(f"There is no code block {which}: the answer has {count}.")
            text, what = blocks[int(which) - 1], f"Code block {which}"
    put_on_clipboard(app, text, what)


def provenance(app: ChatApp, _: str) -> None:
    """Colour tokens by where they came from."""
    app.toggle_provenance()


def panel(app: ChatApp, _: str) -> None:
    """Show or hide the panel."""
    app.toggle_panel()


def choose_message(app: ChatApp, _: str) -> None:
    """Go to the messages with the keys."""
    app.transcript.choose(-1)


def theme_names(app: ChatApp) -> Sequence[str]:
    """Names that /theme knows."""
    return sorted(app.available_themes)


def theme(app: ChatApp, name: str) -> None:
    """Choose a theme, from a list where none is named."""
    if not name:
        app.search_themes()
        return
    if name not in app.available_themes:
        near = difflib.get_close_matches(name, app.available_themes, 1)
        hint = f"Did you mean {near[0]}?" if near else "/theme alone lists them."
        raise UsageError(f"There is no theme {name!r}.", hint)
    app.theme = name


def keys(app: ChatApp, _: str) -> None:
    """Show keys and commands."""
    from spec_local.ui.keys_panel import KeysPanel  # it lists the registry, which names this function

    app.push_screen(KeysPanel())


async def leave(app: ChatApp, _: str) -> None:
    """End the program; what an answer has so far is stored."""
    await app.action_quit()
