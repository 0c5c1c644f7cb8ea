"""`LinesView`: a widget that is a list of styled lines. Cheap to lay out and to scroll, however long.

Textual renders a widget's border, padding and content anew, line by line, whenever its size changes; for an answer that
grows by a line several times a second, and is as high as the screen, that is most of the program's work. Here a line is
rendered once, with the bar at its left, and kept until it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.content import Content
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

EMPTY = Content()


class LinesView(Widget):
    """Subclasses say what the lines are (`build`) and when they changed (`changed`); text can be selected.

    A subclass has neither border nor padding in CSS: `MARGINS` and `bar` stand for them.
    """

    DEFAULT_CSS = "LinesView { height: auto; width: 1fr; }"

    MARGINS = (0, 0)
    """Cells left and right of the lines; the first one on the left is the bar's."""

    WIDEST = 10_000
    """Most cells of a line, however wide the widget is."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Content] = []
        self._width = -1
        """Cells of the lines as built last; −1 where they are to be built."""
        self._strips: dict[int, Strip] = {}
        self._base: Style | None = None
        """The style those strips were drawn on."""

    # -- for subclasses --------------------------------------------------------------------------------------------

    def build(self, width: int) -> Sequence[Content]:
        """All lines for a width in cells, none wider."""
        raise NotImplementedError

    def bar(self) -> tuple[str, str]:
        """A character and its style for the left edge of every line."""
        return " ", ""

    def changed(self) -> None:
        """The lines are others now: measure, and draw those that differ. Costs nothing before there is a size."""
        if not self._is_sized:
            self._width = -1
            self.refresh(layout=True)
            return
        before, width = self._lines, self._inner(self.size.width)
        if width != self._width:
            self._strips.clear()
        self._lines, self._width = list(self.build(width)), width
        changed = _differing(before, self._lines)
        for y in changed:
            self._strips.pop(y, None)
        resized = len(before) != len(self._lines)
        if changed or resized or not self._strips:
            self.refresh(*_regions(changed, self.size.width) if self._strips else (), layout=resized)

    def lines(self, width: int) -> Sequence[Content]:
        """The lines for a width of the whole widget, as built last."""
        inner = self._inner(width)
        if inner != self._width:
            self._lines, self._width = list(self.build(inner)), inner
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

    def render_lines(self, crop: Region) -> list[Strip]:
        size = self.size
        base, background = self.visual_style, self.background_colors[1]
        if base != self._base:
            self._strips.clear()
            self._base = base
        lines = self.lines(size.width)
        filters = self.get_line_filters()
        # A widget on its way out may be painted once more, when it has no screen.
        selection = self.text_selection if self.is_attached else None
        strips = []
        for y in crop.line_range:
            strip = self._strips.get(y) if selection is None else None
            if strip is None:
                strip = self._strip(lines[y] if y < len(lines) else EMPTY, y, size.width, base, selection)
                for line_filter in filters:
                    strip = strip.apply_filter(line_filter, background)
                if selection is None:
                    self._strips[y] = strip
            strips.append(strip)
        if crop.column_span != (0, size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(line.plain for line in self._lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self._strips.clear()
        self.refresh()

    # -- one line --------------------------------------------------------------------------------------------------

    @property
    def _is_sized(self) -> bool:
        return self.is_attached and self.size.width > 0

    def _inner(self, width: int) -> int:
        return max(1, min(self.WIDEST, width - sum(self.MARGINS)))

    def _strip(self, line: Content, y: int, width: int, base: Style, selection: Selection | None) -> Strip:
        if selection is not None and (span := selection.get_span(y)) is not None:
            start, end = span
            selected = self.screen.get_visual_style("screen--selection")
            line = line.stylize(selected, start, len(line.plain) if end == -1 else end)
        segments: list[Segment] = []
        left = self.MARGINS[0]
        if left:
            mark, style = self.bar()
            segments.append(Segment(mark, (base + _style(style)).rich_style))
            segments.append(Segment(" " * (left - 1), base.rich_style))
        x = 0
        for text, part in line.render(base, end="", parse_style=_style):
            segments.append(Segment(text, (base + part).rich_style_with_offset(x, y)))
            x += len(text)
        return Strip(segments).adjust_cell_length(width, base.rich_style)


def _style(name: str | Style) -> Style:
    """A style by name, with the theme's variables."""
    return name if isinstance(name, Style) else Style.parse(name)


def _differing(before: Sequence[Content], after: Sequence[Content]) -> list[int]:
    """Numbers of the lines that look different, or that only one of the two has."""
    both = enumerate(zip(before, after, strict=False))
    differing = [y for y, (old, new) in both if old is not new and (old.plain != new.plain or old.spans != new.spans)]
    return [*differing, *range(*sorted((len(before), len(after))))]


def _regions(lines: Sequence[int], width: int) -> list[Region]:
    """What so many whole lines cover, in ascending order; lines that touch are one region."""
    found: list[Region] = []
    for y in lines:
        if found and found[-1].bottom == y:
            found[-1] = found[-1].grow((0, 0, 1, 0))
        else:
            found.append(Region(0, y, width, 1))
    return found
