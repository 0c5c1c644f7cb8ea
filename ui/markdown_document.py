"""A Markdown text that grows at its end, and the lines it makes.

Textual's own Markdown widget makes a widget of every block and every table cell, and lays them all out again for every
piece that comes; the cost grows with the square of the answer. Here a text is parsed from its last open block on:
blocks that can no longer change are lines already, kept until the width changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from textual.content import Content

from spec_local.ui.lines_view import EMPTY
from spec_local.ui.markdown_render import BlockRenderer

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


@cache
def parser() -> MarkdownIt:
    """CommonMark with tables, strikethrough and bare links. HTML is text.

    Without underlined headings: the "-" that begins a list would make a heading of the line above it until more comes.
    """
    from markdown_it import MarkdownIt

    return MarkdownIt("gfm-like", {"html": False}).disable("lheading")


class _Block:
    """Text that holds whole top-level blocks, with its lines at one width."""

    def __init__(self, source: str, tokens: Sequence[Token], first_fence: int) -> None:
        self.source = source
        self.tokens = tokens
        self._first_fence = first_fence
        self._width = -1
        self._lines: list[Content] = []

    def lines(self, width: int) -> list[Content]:
        """Its lines; kept for the last width asked for."""
        if width != self._width:
            self._lines = BlockRenderer(width, self._first_fence).render(self.tokens)
            self._width = width
        return self._lines


class MarkdownDocument:
    """See the module. The lines are those that the whole text would make in one go (link definitions apart: one that
    comes later is not seen by what is above it)."""

    def __init__(self, text: str = "") -> None:
        self._closed: list[_Block] = []
        self._tail = text
        """What could still change."""
        self._tail_block: _Block | None = None
        """The parsed tail; None where it has grown since."""
        self._fences = 0
        """Code blocks in the closed part; they are numbered for copying."""

    @property
    def source(self) -> str:
        """The whole text."""
        return "".join(block.source for block in self._closed) + self._tail

    def append(self, text: str) -> None:
        """Add text at the end. Costs nothing until lines are asked for."""
        if text:
            self._tail += text
            self._tail_block = None

    def lines(self, width: int) -> list[Content]:
        """All lines at a width in cells, none wider than it."""
        if self._tail_block is None:
            self._tail_block = self._parse_tail()
        found: list[Content] = []
        for block in (*self._closed, self._tail_block):
            lines = block.lines(width)
            if found and lines:
                found.append(EMPTY)
            found += lines
        return found

    def code_blocks(self) -> list[str]:
        """The text of every code block, in order."""
        return [token.content for token in parser().parse(self.source) if token.type in _CODE]

    def _parse_tail(self) -> _Block:
        """Move what lies before the last top-level block out of the tail: nothing that comes can change it."""
        tokens = parser().parse(self._tail)
        starts = [i for i, token in enumerate(tokens) if token.level == 0 and token.map and token.nesting >= 0]
        if len(starts) > 1:
            last = starts[-1]
            line = (tokens[last].map or [0])[0]
            head = "".join(f"{text}\n" for text in self._tail.split("\n")[:line])
            self._closed.append(_Block(head, tokens[:last], self._fences))
            self._fences += sum(token.type in _CODE for token in tokens[:last])
            self._tail = self._tail[len(head) :]
            tokens = tokens[last:]
        return _Block(self._tail, tokens, self._fences)


_CODE = ("fence", "code_block")


def code_blocks(text: str) -> list[str]:
    """The text of every code block of a Markdown text, in order."""
    return MarkdownDocument(text).code_blocks()
