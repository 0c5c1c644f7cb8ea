"""The tones of the screen, named by what they say; widgets take them from here, so that the same looks the same."""

from __future__ import annotations

FAINT = "$foreground 55%"
"""Beside the point, but readable: labels, hints, counts."""
QUIET = "$foreground 70%"
"""Part of the point, said softly."""
DIM = "dim"
"""As faint on whatever colour a row has: the chosen row of a list has one of its own."""
GOOD, WARN, ERROR = "$text-success", "$text-warning", "$text-error"
ACCENT = "$text-primary"
