"""What arranges other widgets and is covered by them: painted blank, without being asked line by line."""

from __future__ import annotations

from textual.containers import Horizontal, Vertical


class Row(Horizontal):
    """Widgets side by side."""

    BLANK = True


class Column(Vertical):
    """Widgets one above the other."""

    BLANK = True
