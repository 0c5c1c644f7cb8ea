"""The screen of the chat before there is one: Textual takes longer to import than a person should look at nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_BOLD, _FAINT, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_LOW = 12
"""Rows below which the chat has no title line."""
_SIGN = "spec-local is starting …"


@contextmanager
def first_frame(title: str) -> Iterator[Callable[[], None]]:
    """Paint where title, input and status will be, with the cursor in the input: what is typed there is kept for it.

    The terminal is as it was when the block ends, but for the case that what the block is given was called: then
    somebody else has the screen by now, and leaves it as they please.
    """
    if os.name == "nt" or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):  # may not know the sequences yet
        yield lambda: None
        return
    taken = False

    def take() -> None:
        nonlocal taken
        taken = True

    _write(_ENTER + frame(title, *os.get_terminal_size()))
    try:
        yield take
    finally:
        if not taken:
            _write(_LEAVE)


def frame(title: str, columns: int, rows: int) -> str:
    """The picture, as a terminal of this size is told to draw it."""
    sign = _SIGN[: columns - 4]
    parts = ["\x1b[2J"]
    if rows >= _LOW and len(title) + len(sign) + 6 <= columns:
        right = columns - len(sign) - 1
        parts.append(f"\x1b[1;3H{_BOLD}{title}{_PLAIN}\x1b[1;{right}H{_FAINT}{sign}{_PLAIN}")
    else:
        parts.append(f"\x1b[{rows};3H{_FAINT}{sign}{_PLAIN}")
    parts.append(f"\x1b[{rows - 1};2H▌ {_FAINT}Ask something{_PLAIN}\x1b[{rows - 1};4H")
    return "".join(parts)


def _write(text: str) -> None:
    sys.stderr.write(text)  # where Textual draws
    sys.stderr.flush()
