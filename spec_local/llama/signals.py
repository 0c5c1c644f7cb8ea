"""How a child process that a signal ended is spoken of."""

from __future__ import annotations

import signal


def signal_name(code: int) -> str:
    """The name of the signal that ended a process with return code `code`, which is below 0."""
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal has none
        return f"signal {-code}"
