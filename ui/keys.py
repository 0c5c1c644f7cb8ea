"""Keys of the application, made from the registry of commands."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from spec_local.ui.commands import COMMANDS

ON_MESSAGE = ("run_on_message", "step", "version", "unfold")
"""Actions of keys that act on a chosen message, and are letters or something else's keys otherwise."""
MESSAGE_KEYS = frozenset(key for command in COMMANDS for key in command.message_keys)
"""Letters that are commands while a message is chosen."""


def bindings() -> list[BindingType]:
    """Every key that works outside the input."""
    made: list[BindingType] = [
        Binding(key, f"run_command('{command.name}')", command.summary, show=False, priority=True)
        for command in COMMANDS
        for key in command.keys
        if key != "escape"
    ]
    made.append(Binding("escape", "step_back", show=False))  # /stop, unless there is something nearer to leave
    for key, action in (("up", "step(-1)"), ("down", "step(1)"), ("left", "version(-1)"), ("right", "version(1)")):
        made.append(Binding(key, action, show=False))
    made += [
        Binding(key, f"run_on_message('{command.name}')", show=False)
        for command in COMMANDS
        for key in command.message_keys
    ]
    made.append(Binding("enter", "unfold", show=False))
    made.append(Binding("ctrl+c", "interrupt", show=False, priority=False))
    return made
