"""The figures of one answer on the screen: in the panel, or in the last line where the panel has no room."""

from __future__ import annotations

import time

from textual.timer import Timer

from spec_local.ui.figures import TurnFigures
from spec_local.ui.speculation_panel import SpeculationPanel
from spec_local.ui.status import StatusLine

PANEL_WIDTH_FROM = 100
"""Columns from which the panel is shown unless a person hides it."""
_NARROWEST = 60
"""Columns below which there is no panel, whatever was asked for."""
_PAUSE_S = 0.2
_SHARE = 25
"""Working out the figures is followed by a pause of this many times what it took: decoding must not pay for them."""
_COMPANY_S = 0.15
"""How much longer than that figures wait for more of the answer: what is drawn together is painted once."""
_MEMORY_STEP = 5e6
"""Bytes of a change that is worth drawing."""


class Gauges:
    """Draws figures at a pace that the machine can afford.

    Args:
        panel: At the right.
        line: At the bottom.
    """

    def __init__(self, panel: SpeculationPanel, line: StatusLine) -> None:
        self.panel = panel
        self._line = line
        self._figures: TurnFigures | None = None
        self._wanted: bool | None = None
        """What the person chose about the panel; None: as the width suggests."""
        self._timer: Timer | None = None
        self._due = 0.0

    @property
    def pending(self) -> bool:
        """There is something newer than what is drawn."""
        return self._timer is not None

    def arrange(self, width: int) -> None:
        """Show what has room in so many columns."""
        wanted = width >= PANEL_WIDTH_FROM if self._wanted is None else self._wanted
        self.panel.display = wanted and width >= _NARROWEST
        self.draw()

    def toggle(self, width: int) -> None:
        """Show the panel where it is hidden, and the other way round."""
        self._wanted = not self.panel.display
        self.arrange(width)

    def show(self, figures: TurnFigures | None) -> None:
        """Show these figures: now, or while more of them comes a little later."""
        self._figures = figures
        growing = figures is not None and figures.rounds and not figures.state
        wait = max(0.0, self._due - time.monotonic())
        if not growing or not wait:
            self.draw()
        elif self._timer is None:
            self._timer = self.panel.set_timer(wait + _COMPANY_S, self.draw)

    def draw(self) -> None:
        """Draw now."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        begin = time.monotonic()
        if self.panel.display:
            self.panel.show(self._figures)
        self._line.show_figures(None if self.panel.display else self._figures)
        took = time.monotonic() - begin
        self._due = time.monotonic() + max(_PAUSE_S, _SHARE * took)

    def measure_memory(self, idle: bool) -> None:
        """See how much memory this process holds; draw it where nothing else draws."""
        if self.panel.display:
            import psutil

            before, self.panel.memory = self.panel.memory, psutil.Process().memory_info().rss
            if idle and abs(self.panel.memory - (before or 0)) > _MEMORY_STEP:
                self.panel.changed()
