"""Copying, whatever kind of terminal this is, and honest words about it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec_local.ui.app import ChatApp

HELPER_S = 2.0
"""Seconds a helper program of the system's clipboard has: some wait for a display that is not there."""


def put_on_clipboard(app: ChatApp, text: str, what: str) -> None:
    """Copy through the terminal (OSC 52) and, where it is installed and works, the system's own clipboard.

    The system's helper program runs in a thread of its own, since it may hang. Whether the terminal took the text
    nobody can know, so only the system's clipboard is a promise.

    Args:
        app: The chat, which says what came of it.
        text: What to copy.
        what: What to call it: "The answer".
    """
    app.copy_to_clipboard(text)
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    copied: list[bool] = []

    def helper() -> None:
        try:
            import pyperclip

            pyperclip.copy(text)
            copied.append(True)
        except Exception:  # no clipboard here: the terminal has it, or nothing does
            copied.append(False)
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    async def report() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), HELPER_S)
        sent = f"{what} was sent to the terminal, for its clipboard if it has one."
        app.flash(f"{what} is on the clipboard." if copied and copied[0] else sent)

    threading.Thread(target=helper, name="spec-local clipboard", daemon=True).start()
    app.run_worker(report(), exit_on_error=False)
