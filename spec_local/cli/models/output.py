"""How the answers of `spec-local models` look: aligned columns, labelled lines, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from spec_local.words import harmless

_LABEL = 15


def print_json(value: Any) -> None:
    """One line of JSON on standard output, UTF-8 whatever the locale says."""
    sys.stdout.buffer.write(json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n")


def columns(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Rows as aligned columns; those with an index in `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush_right = set(right)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in flush_right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(harmless("  ".join(cells)).rstrip())
    return "\n".join(lines)


def labelled(label: str, text: str) -> str:
    """`label   text`; further lines of the text stand under the first."""
    lines = harmless(text).split("\n")
    return "\n".join(f"{label if i == 0 else '':<{_LABEL}}{line}".rstrip() for i, line in enumerate(lines))
