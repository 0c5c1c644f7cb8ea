"""Copying, whatever kind of terminal this is."""

from __future__ import annotations

import contextlib
from typing import Any

from textual.app import App


def put_on_clipboard(app: App[Any], text: str) -> None:
    """Copy through the terminal (OSC 52) and, where it is installed and works, the system's own clipboard."""
    app.copy_to_clipboard(text)
    with contextlib.suppress(Exception):  # no clipboard here: the terminal has it, or nothing does
        import pyperclip

        pyperclip.copy(text)
