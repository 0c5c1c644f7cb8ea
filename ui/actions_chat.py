"""What the commands about answers and conversations do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spec_local.errors import UsageError
from spec_local.session.attachments import mention, read_attachment
from spec_local.session.conversation import NO_SYSTEM

if TYPE_CHECKING:
    from spec_local.session.store_records import Found, StoredMessage
    from spec_local.ui.app import ChatApp


def stop(app: ChatApp, _: str) -> None:
    """Stop what runs."""
    app.dialogue.stop()


async def regenerate(app: ChatApp, _: str) -> None:
    """Answer the last question again, or the chosen one."""
    chosen = app.chosen
    if chosen is None:
        await app.dialogue.regenerate()
        return
    await app.dialogue.regenerate(chosen.id if chosen.role == "user" else chosen.parent)
    app.composer.focus()


def edit(app: ChatApp, _: str) -> None:
    """Put the chosen message of the person's, or the last one, into the input; sending it makes a branch."""
    path = app.dialogue.conversation.path()
    chosen = app.chosen
    if chosen is not None and chosen.role == "assistant":
        chosen = next((m for m in path if m.id == chosen.parent), None)
    message = chosen or next((m for m in reversed(path) if m.role == "user"), None)
    if message is None:
        raise UsageError("There is no message to edit yet.")
    app.begin_edit(message)


async def undo(app: ChatApp, _: str) -> None:
    """Take the last question back."""
    await app.dialogue.undo()


async def branch(app: ChatApp, which: str) -> None:
    """View another version of the chosen message, or of the last one that has versions."""
    step = {"next": 1, "previous": -1}.get(which)
    if step is None:
        raise UsageError("/branch takes next or previous.")
    await switch(app, step)


async def switch(app: ChatApp, step: int) -> None:
    """Step through the versions of a message."""
    conversation = app.dialogue.conversation
    chosen = app.chosen
    path = conversation.path()[::-1] if chosen is None else [chosen]
    message = next((m for m in path if len(conversation.siblings(m.id)) > 1), None)
    if message is None:
        raise UsageError("There is only one version.", "/regenerate and /edit make others.")
    where = _position(app, message)
    await app.dialogue.switch(message.id, step)
    if where is not None:
        app.call_after_refresh(app.transcript.choose, where)


def _position(app: ChatApp, message: StoredMessage) -> int | None:
    if app.chosen is None:
        return None
    return next((i for i, view in enumerate(app.transcript.turns) if view.message.id == message.id), None)


async def new(app: ChatApp, _: str) -> None:
    """Begin a new conversation."""
    await app.dialogue.new()
    app.composer.focus()


def resume(app: ChatApp, text: str) -> None:
    """Choose a conversation."""

    from spec_local.ui.dialogs import ConversationPicker

    def chosen(found: Found | None) -> None:
        if found is not None:
            app.run_worker(app.do(lambda: app.dialogue.open(found.id, found.message)))

    app.push_screen(ConversationPicker(app.dialogue.store, text), chosen)


def title(app: ChatApp, text: str) -> None:
    """Name the conversation."""
    app.dialogue.conversation.rename(text)
    app.refresh_state()


def system(app: ChatApp, text: str) -> None:
    """Edit the system message, or set it to what was given."""
    if text:
        set_system(app, NO_SYSTEM if text == "none" else text)
        return

    from spec_local.ui.dialogs import SystemEditor

    def saved(edited: str | None) -> None:
        if edited is not None and edited != app.dialogue.conversation.system.strip():
            set_system(app, edited or NO_SYSTEM)

    app.push_screen(SystemEditor(app.dialogue.conversation.system.strip()), saved)


def set_system(app: ChatApp, text: str) -> None:
    """Change the system message, and say so."""
    app.dialogue.conversation.set_system(text)
    app.transcript.note(f"System message: {text}" if text.strip() else "There is no system message now.")


def attach(app: ChatApp, path: str) -> None:
    """Check a file and mention it in the input."""
    file = read_attachment(Path(path).expanduser())
    app.composer.insert(f"{mention(file.name)} ")
    app.composer.focus()


def export(app: ChatApp, path: str) -> None:
    """Write the branch in view (.md) or the whole tree (.json)."""
    conversation = app.dialogue.conversation
    if not conversation.path():
        raise UsageError("There is nothing to export yet.")
    from spec_local.session.export import export_to

    written = export_to(conversation, Path(path).expanduser() if path else None)
    app.transcript.note(f"Written to {written}")


def delete(app: ChatApp, _: str) -> None:
    """Delete the conversation, after a question."""
    identity = app.dialogue.conversation.id
    if identity is None:
        raise UsageError("There is no conversation to delete yet.")

    from spec_local.ui.dialogs import Question

    async def go() -> None:
        await app.dialogue.new()
        app.dialogue.store.delete(identity)

    def answered(index: int | None) -> None:
        if index == 1:
            app.run_worker(app.do(go))

    question = f"Delete “{app.dialogue.conversation.title}” with all its branches?"
    app.push_screen(Question(question, ["Keep it", "Delete it"]), answered)
