"""Ways to end the program, all of which keep what an answer has so far and leave the terminal as it was."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

from textual.app import App

from spec_local.ui.engine_thread import EngineThread

_TWICE_S = 2.0
_PATIENCE_S = 10.0
"""How long the engine's thread has for its last pass."""


class Leaving:
    """Ends the application.

    Args:
        app: The application.
        engine_thread: The engine's thread, to be joined first.
        changed: Called when the program is about to end.
    """

    def __init__(self, app: App[int], engine_thread: EngineThread, changed: Callable[[], None]) -> None:
        self._app = app
        self._engine_thread = engine_thread
        self._changed = changed
        self._asked = -_TWICE_S
        self.begun = False
        """The program ends when the pass under way does."""

    def is_meant(self) -> bool:
        """Whether this is the second time within a moment that somebody asks."""
        meant = time.monotonic() - self._asked < _TWICE_S
        self._asked = time.monotonic()
        return meant

    def leave(self) -> None:
        """Leave once the pass under way is done, with the screen alive meanwhile; a second time leaves at once."""
        if self.begun:
            self._app.exit()
            return
        self.begun = True
        self._engine_thread.cancel()
        self._changed()
        self._app.run_worker(self._join(), exit_on_error=False)

    async def _join(self) -> None:
        await asyncio.to_thread(self._engine_thread.close, _PATIENCE_S)
        self._app.exit()

    def close(self) -> None:
        """Join the thread where that has not been done."""
        self._engine_thread.close(0.5 if self.begun else _PATIENCE_S)

    def on_signals(self) -> None:
        """Leave in order when asked to from outside; the exit code is 128 + the signal's number."""
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            number: Any = getattr(signal, name, None)
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; not the main thread
                if number is not None:
                    loop.add_signal_handler(number, self._app.exit, 128 + int(number))
