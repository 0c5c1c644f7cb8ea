"""Words that more than one layer says to people."""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


def counted(count: int, noun: str) -> str:
    """`3 tokens`, `1 token`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def harmless(text: str) -> str:
    """Text without the control characters that could drive a terminal; line feeds and tabs stay."""
    return _CONTROLS.sub("", text)
