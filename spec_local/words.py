"""Words that more than one layer says to people."""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


def counted(count: int, noun: str) -> str:
    """`3 tokens`, `1 token`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


_ESCAPE = re.compile(r"\\(?:([ntr\\])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(0010[0-9a-fA-F]{4}|000[0-9a-fA-F]{5}))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def unescaped(text: str) -> str:
    r"""Text in which somebody at a shell could write what has no key: \n \t \r \\ \xHH \uHHHH \UHHHHHHHH; any other
    backslash is one."""
    return _ESCAPE.sub(lambda m: _LETTERS[m[1]] if m[1] else chr(int(m[2] or m[3] or m[4], 16)), text)


def harmless(text: str) -> str:
    """Text without the control characters that could drive a terminal; line feeds and tabs stay."""
    return _CONTROLS.sub("", text)
