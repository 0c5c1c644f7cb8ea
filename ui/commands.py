"""The registry of commands: slash commands, their keys, the keys panel's list of them and the command palette."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spec_local.errors import UsageError
from spec_local.ui import actions_chat as chat, actions_model as model, actions_view as view

if TYPE_CHECKING:
    from spec_local.ui.app import ChatApp

Action = Callable[["ChatApp", str], Awaitable[None] | None]
"""Takes what stands behind the command's name, stripped; empty for a key."""


@dataclass(frozen=True, slots=True)
class Command:
    """Something a person can have done."""

    name: str
    """As in /name."""
    summary: str
    group: Literal["answer", "conversation", "model", "view"]
    action: Action
    argument: str = ""
    """What may follow the name; "<x>" must, "[x]" may."""
    keys: tuple[str, ...] = ()
    """Keys that do it from anywhere."""
    message_keys: tuple[str, ...] = ()
    """Keys that do it while a message is chosen."""
    values: Callable[[ChatApp], Sequence[str]] | None = None
    """What can be completed behind the name."""

    @property
    def needs_argument(self) -> bool:
        """Without one it does nothing."""
        return self.argument.startswith("<")


COMMANDS: tuple[Command, ...] = (
    Command("stop", "stop the answer and keep what is there", "answer", chat.stop, keys=("escape",)),
    Command(
        "regenerate",
        "answer again, as another branch",
        "answer",
        chat.regenerate,
        keys=("ctrl+r",),
        message_keys=("r",),
    ),
    Command("edit", "edit a message of yours and ask again", "answer", chat.edit, keys=("f7",), message_keys=("e",)),
    Command("undo", "take the last question back into the input", "answer", chat.undo),
    Command(
        "branch",
        "view another version of a message",
        "answer",
        chat.branch,
        "<next|previous>",
        values=lambda _: ("next", "previous"),
    ),
    Command("compare", "run the last answer the other way and compare", "answer", model.compare, keys=("f5",)),
    Command(
        "copy",
        "copy the answer, or its n-th code block",
        "answer",
        view.copy,
        "[n|all]",
        keys=("f8",),
        message_keys=("c",),
    ),
    Command("new", "begin a new conversation", "conversation", chat.new, keys=("ctrl+n",)),
    Command("resume", "go on with an earlier conversation", "conversation", chat.resume, "[text]", keys=("ctrl+o",)),
    Command("search", "search all conversations", "conversation", chat.resume, "[text]"),
    Command("title", "name the conversation", "conversation", chat.title, "<text>"),
    Command("system", "read or change the system message", "conversation", chat.system, "[text|none]"),
    Command("attach", "attach a text file to the next message", "conversation", chat.attach, "<path>"),
    Command("export", "write the conversation to a .md or .json file", "conversation", chat.export, "[path]"),
    Command("delete", "delete this conversation", "conversation", chat.delete),
    Command(
        "set", "show or set sampling values", "model", model.set_sampling, "[name value]", values=model.sampling_names
    ),
    Command(
        "unset",
        "put a sampling value back to its default",
        "model",
        model.unset_sampling,
        "<name>",
        values=model.sampling_names,
    ),
    Command("model", "choose target and draft", "model", model.pick, "[name]", keys=("f6",), values=model.runnable),
    Command("pull", "fetch a model or pair", "model", model.pull, "<name>", values=model.pullable),
    Command(
        "speculation",
        "switch speculation for the next answer",
        "model",
        model.speculation,
        "[on|off]",
        keys=("f4",),
        values=lambda _: ("on", "off"),
    ),
    Command("provenance", "show where each token came from", "view", view.provenance, keys=("f3",)),
    Command("panel", "show or hide the speculation panel", "view", view.panel, keys=("f2",)),
    Command("messages", "choose a message with the arrow keys", "view", view.choose_message, keys=("ctrl+up",)),
    Command("theme", "choose colours", "view", view.theme, "[name]", values=view.theme_names),
    Command("keys", "show all keys and commands", "view", view.keys, keys=("f1",)),
    Command("quit", "leave; an answer under way is kept", "view", view.leave, keys=("ctrl+q",)),
)

BY_NAME = {command.name: command for command in COMMANDS}
GROUPS = {"answer": "Answers", "conversation": "Conversation", "model": "Model", "view": "View"}


def parse(text: str) -> tuple[Command, str] | None:
    """The command a text asks for, with what stands behind its name; None for a message.

    Raises:
        UsageError: It looks like a command and is none, or lacks its argument.
    """
    if not text.startswith("/") or "\n" in text.strip():
        return None
    name, _, rest = text[1:].rstrip().partition(" ")
    if not name or "/" in name or not name.replace("-", "").isalpha():
        return None
    command = BY_NAME.get(name.lower())
    if command is None:
        near = difflib.get_close_matches(name.lower(), BY_NAME, 1)
        hint = f"Did you mean /{near[0]}?" if near else "F1 lists the commands."
        raise UsageError(f"There is no command /{name}.", f"{hint} A message may begin with a blank before the slash.")
    if command.needs_argument and not rest.strip():
        raise UsageError(f"/{command.name} takes {command.argument}: it would {command.summary}.")
    return command, rest.strip()


def shown_key(key: str) -> str:
    """A key's name for people: "Ctrl+R", "F3", "Esc"."""
    names = {"escape": "Esc", "up": "↑", "down": "↓", "left": "←", "right": "→", "enter": "Enter"}
    return "+".join(names.get(part, part.capitalize() if len(part) > 1 else part.upper()) for part in key.split("+"))
