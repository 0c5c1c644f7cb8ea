"""Text that cannot drive a terminal."""

from __future__ import annotations

_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys(range(128, 160), 65533)


def visible(text: str) -> str:
    """The text with control characters as their pictures (␛ for ESC): a terminal must never be driven by a message."""
    return text.translate(_CONTROLS)
