"""Sizes for people."""

from __future__ import annotations


def show_bytes(count: int) -> str:
    """`1117320768` → `1.12 GB` (decimal units, as disks and hubs count)."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.5:
            return f"{size:.3g} {unit}"
    return f"{size / 1000:.3g} TB"
