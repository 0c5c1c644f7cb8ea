"""Words that more than one layer says to people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`3 tokens`, `1 token`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
