"""The screen of the chat before there is one: Textual takes longer to import than a person should look at nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_BOLD, _FAINT, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
LOW = 12
"""Rows below which the chat has no title line."""
UNTITLED = "New conversation"
"""In the title line, while a conversation has no title."""
PLACEHOLDER = "Ask something"
"""In the input, while nothing is typed."""
_SIGN = "spec-local is starting …"


@contextmanager
def first_frame(title: str) -> Iterator[Callable[[], None]]:
    """Paint where title, input and status will be, with the cursor in the input: what is typed there is kept for it.

    The terminal is as it was when the block ends, but for the case that what the block is given was called: then
    somebody else has the screen by now, and leaves it as they please.
    """
    try:
        columns, rows = os.get_terminal_size()
    except OSError:
        columns = rows = 0
    knows = os.name != "nt" and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")  # the sequences, already now
    if not (knows and columns and rows):
        yield lambda: None
        return
    taken = False
    before = signal.signal(signal.SIGTERM, _leave)  # which would end the program with this picture on the screen

    def take() -> None:
        nonlocal taken
        taken = True
        signal.signal(signal.SIGTERM, before)

    _write(_ENTER + frame(title, columns, rows))
    try:
        yield take
    finally:
        if not taken:
            _write(_LEAVE)
            signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def frame(title: str, columns: int, rows: int) -> str:
    """The picture, as a terminal of this size is told to draw it."""
    sign = _SIGN[: columns - 4]
    parts = ["\x1b[2J"]
    if rows >= LOW and len(title) + len(sign) + 6 <= columns:
        right = columns - len(sign) - 1
        parts.append(f"\x1b[1;3H{_BOLD}{title}{_PLAIN}\x1b[1;{right}H{_FAINT}{sign}{_PLAIN}")
    else:
        parts.append(f"\x1b[{rows};3H{_FAINT}{sign}{_PLAIN}")
    parts.append(f"\x1b[{rows - 1};2H▌ {_FAINT}{PLACEHOLDER}{_PLAIN}\x1b[{rows - 1};4H")
    return "".join(parts)


def _write(text: str) -> None:
    sys.stderr.write(text)  # where Textual draws
    sys.stderr.flush()
