"""`LinesView`: a widget that is a list of styled lines. Cheap to lay out, however long."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.content import Content
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget


class LinesView(Widget):
    """Subclasses say what the lines are (`build`) and when they changed (`changed`); text can be selected."""

    DEFAULT_CSS = "LinesView { height: auto; width: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: Sequence[Content] = ()
        self._lines_width = -1
        self._strips: dict[int, Strip] = {}

    def build(self, width: int) -> Sequence[Content]:
        """All lines for a width in cells, none wider."""
        raise NotImplementedError

    def changed(self) -> None:
        """The lines are others now: measure and draw again."""
        self._lines_width = -1
        self._strips.clear()
        if self.is_attached:
            self.refresh(layout=True)

    def lines(self, width: int) -> Sequence[Content]:
        """The lines as built last for this width."""
        if width != self._lines_width:
            self._lines = self.build(max(1, width))
            self._lines_width = width
            self._strips.clear()
        return self._lines

    # -- Textual ---------------------------------------------------------------------------------------------------

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines(width))

    def notify_style_update(self) -> None:
        self._strips.clear()
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        lines = self.lines(width)
        base = self.visual_style
        if y >= len(lines):
            return Strip.blank(width, base.rich_style)
        selection = self.text_selection
        if selection is None and y in self._strips:
            return self._strips[y]
        line = lines[y]
        if selection is not None and (span := selection.get_span(y)) is not None:
            start, end = span
            line = line.stylize(self._selected, start, len(line.plain) if end == -1 else end)
        strip = self._strip(line, width, base).apply_offsets(0, y)
        if selection is None:
            self._strips[y] = strip
        return strip

    @staticmethod
    def _strip(line: Content, width: int, base: Style) -> Strip:
        segments = [
            Segment(text, (base + style).rich_style) for text, style in line.render(base, end="", parse_style=_style)
        ]
        return Strip(segments).adjust_cell_length(width, base.rich_style)

    @property
    def _selected(self) -> Style:
        """How selected text looks."""
        return self.screen.get_visual_style("screen--selection")

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(line.plain for line in self._lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self._strips.clear()
        self.refresh()


def _style(name: str | Style) -> Style:
    """A style by name, with the theme's variables."""
    return name if isinstance(name, Style) else Style.parse(name)
