"""`spec-local chat`: the terminal application."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.first_frame import UNTITLED, first_frame
from spec_local.cli.options import add_options, resolve
from spec_local.cli.terminal import is_terminal
from spec_local.errors import UsageError

EPILOG = """\
examples:
  spec-local chat
  spec-local chat --continue
  spec-local chat -m qwen2.5-coder-1.5b-instruct --system "Answer briefly."

In the chat, F1 shows all keys and commands.
"""

SMALLEST = (24, 6)
"""Columns and rows of the smallest terminal that a conversation can be read in."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags, then the shared ones."""
    chat = parser.add_argument_group("conversation")
    chat.add_argument("--continue", dest="go_on", action="store_true", help="go on with the last conversation")
    chat.add_argument(
        "--system", metavar="TEXT", help="system message of new conversations; '' for none, the template's own included"
    )
    add_options(parser, ("models", "device", "speculation", "sampling", "reply", "comparison"))


def run(arguments: Any) -> int:
    """Open the application; returns when it is left."""
    require_terminal()
    settings = resolve(vars(arguments))

    def prepare() -> Any:
        # Not before the first paint: what these import takes longer than the screen does.
        from spec_local.cli.loading import engine_options, reply, sampling

        return engine_options(settings), sampling(settings), reply(settings)

    with first_frame("" if arguments.go_on else UNTITLED) as take:
        try:
            with no_garbage():
                # The layer above this one, and with it Textual, is loaded only by the command that needs it.
                ui = import_module("spec_local.ui.start")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("textual", "markdown_it", "pygments", "rich"):
                raise
            raise UsageError(
                f"The chat needs {error.name}, which is not installed.", "`pip install 'spec-local[chat]'` brings it."
            ) from error
        from spec_local.session.conversation import NO_SYSTEM

        system = NO_SYSTEM if arguments.system == "" else arguments.system or ""
        return int(ui.start(prepare, system=system, go_on=arguments.go_on, take=take) or ExitCode.OK)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Look for no garbage meanwhile: what is imported stays, and looking is a tenth of the time that takes."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def require_terminal() -> None:
    """Raise `UsageError` where nobody could read or type."""
    if not all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr))):  # the screen is drawn on stderr
        raise UsageError(
            "chat needs a terminal, and standard input, output or error is not one.",
            "For pipes and files there is `spec-local generate`.",
        )
    try:
        columns, rows = os.get_terminal_size()
    except OSError:
        return
    if columns < SMALLEST[0] or rows < SMALLEST[1]:
        raise UsageError(
            f"This terminal has {columns} columns and {rows} rows; chat needs {SMALLEST[0]} and {SMALLEST[1]}.",
            "Make the window larger.",
        )
