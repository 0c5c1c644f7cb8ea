"""Markdown blocks to lines of styled text.

Styles are names of theme variables, resolved when a line is drawn, so a change of theme costs no layout. All text is
taken literally: nothing here parses Textual's or Rich's markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content, Span
from textual.style import Style

from spec_local.ui.tones import FAINT
from spec_local.ui.visible import visible

if TYPE_CHECKING:
    from markdown_it.token import Token
    from textual.highlight import HighlightTheme

HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold $text-primary", "h3": "bold $text-accent"}
QUOTE_BAR, RULE = "$text-primary 60%", "$foreground 30%"
CODE_INLINE, LINK, CODE = "$text-warning on $foreground 8%", "underline $text-accent", "on $foreground 5%"
_INLINE = {"em": "italic", "strong": "bold", "s": "strike"}
_BULLETS = "•▪‣◦"
_NARROWEST_CELL = 4
_CHUNK = 24
"""Fewest lines of code highlighted together."""


class BlockRenderer:
    """Renders a run of block tokens at one width.

    Args:
        width: Cells; no line is wider.
        first_fence: Number of code blocks before these.
    """

    def __init__(self, width: int, first_fence: int = 0) -> None:
        self._width = max(1, width)
        self._fence = first_fence

    def render(self, tokens: Sequence[Token]) -> list[Content]:
        """The lines of all blocks, with an empty one between blocks."""
        lines = self._blocks(tokens, self._width, 0)
        # Nested blocks may have no room left for one character beside their marks.
        return [line if line.cell_length <= self._width else line.truncate(self._width) for line in lines]

    def _blocks(self, tokens: Sequence[Token], width: int, depth: int, tight: bool = False) -> list[Content]:
        found: list[Content] = []
        at = 0
        while at < len(tokens):
            end = _end_of(tokens, at)
            lines = self._block(tokens[at:end], width, depth)
            if found and lines and not tight:
                found.append(Content())
            found += lines
            at = end
        return found

    def _block(self, tokens: Sequence[Token], width: int, depth: int) -> list[Content]:
        token, inside = tokens[0], tokens[1:-1]
        kind = token.type.removesuffix("_open")
        if kind == "paragraph":
            return _wrap(_inline(inside), width)
        if kind == "heading":
            return _wrap(_inline(inside).stylize_before(HEADINGS.get(token.tag, "bold")), width)
        if kind in ("fence", "code_block"):
            self._fence += 1
            return _code(token, width, self._fence)
        if kind in ("bullet_list", "ordered_list"):
            return self._list(token, inside, width, depth)
        if kind == "blockquote":
            lines = self._blocks(inside, max(1, width - 2), depth)
            return [Content.styled("▌ ", QUOTE_BAR) + line for line in lines]
        if kind == "table":
            return _table(inside, width)
        if kind == "hr":
            return [Content.styled("─" * width, RULE)]
        return _wrap(Content(visible(token.content.rstrip("\n"))), width)

    def _list(self, token: Token, inside: Sequence[Token], width: int, depth: int) -> list[Content]:
        number = int(token.attrGet("start") or 1)
        items = []
        at = 0
        while at < len(inside):
            end = _end_of(inside, at)
            items.append(inside[at + 1 : end - 1])
            at = end
        tight = all(
            t.hidden for item in items for t in item if t.type == "paragraph_open" and t.level == token.level + 2
        )
        found: list[Content] = []
        for i, item in enumerate(items):
            mark = f"{number + i}. " if token.type == "ordered_list_open" else f"{_BULLETS[depth % len(_BULLETS)]} "
            if token.type == "ordered_list_open":
                mark = mark.rjust(len(f"{number + len(items) - 1}. "))
            lines = self._blocks(item, max(1, width - len(mark)), depth + 1, tight) or [Content()]
            if found and not tight:
                found.append(Content())
            found.append(Content.styled(mark, "$text-primary") + lines[0])
            found += [Content(" " * len(mark)) + line for line in lines[1:]]
        return found


def _end_of(tokens: Sequence[Token], at: int) -> int:
    """Index behind the block that starts at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += tokens[i].nesting
        if depth <= 0:
            return i + 1
    return len(tokens)


def _wrap(content: Content, width: int) -> list[Content]:
    return content.wrap(width) if content.plain else []


def _inline(tokens: Sequence[Token]) -> Content:
    """The text of inline tokens. A single line end stays one: what a model breaks is meant to be broken."""
    text: list[str] = []
    spans: list[Span] = []
    open_at: list[tuple[int, Style | str]] = []
    position = 0

    def add(part: str) -> None:
        nonlocal position
        text.append(part)
        position += len(part)

    for token in (child for t in tokens for child in t.children or ()):
        kind, _, end = token.type.rpartition("_")
        if token.type in ("softbreak", "hardbreak"):
            add("\n")
        elif token.type == "code_inline":
            add(visible(token.content))
            spans.append(Span(position - len(token.content), position, CODE_INLINE))
        elif token.type == "image":
            add(f"🖼 {visible(token.content)}")
        elif end == "open":
            style = _link(str(token.attrGet("href") or "")) if kind == "link" else _INLINE.get(kind, "")
            open_at.append((position, style))
        elif end == "close" and open_at:
            start, style = open_at.pop()
            if style and position > start:
                spans.append(Span(start, position, style))
        else:
            add(visible(token.content))
    return Content("".join(text), spans)


def _link(address: str) -> Style | str:
    """A terminal hyperlink for web addresses; others are shown and lead nowhere."""
    if re.fullmatch(r"https?://[!-~]+", address):
        return Style(link=address, underline=True)
    return LINK


def _code(token: Token, width: int, number: int) -> list[Content]:
    """A code block: a line that names language and number, then the code on a ground of its own."""
    words = visible(token.info).split()
    language = words[0] if words else ""
    inner = max(1, width - 2)
    label, copy = language[: max(0, inner - 10)], f"/copy {number}"
    title = label + copy.rjust(inner - cell_len(label)) if inner > len(copy) + cell_len(label) else label
    found = [_ground(Content.styled(title, FAINT), width)]
    for chunk in _chunks(visible(token.content.rstrip("\n")).expandtabs(4)):
        found += _code_lines(chunk, language.lower(), width)
    return found


def _chunks(code: str) -> list[str]:
    """Code cut at empty lines before unindented ones. Highlighting is what costs, so a block on its way is highlighted
    chunk by chunk; a whole one is cut in the same way, and looks the same."""
    chunks: list[list[str]] = [[]]
    for line in code.split("\n"):
        current = chunks[-1]
        if len(current) >= _CHUNK and not current[-1].strip() and line[:1].strip():
            chunks.append([])
        chunks[-1].append(line)
    return ["\n".join(chunk) for chunk in chunks]


@cache
def _code_theme() -> type[HighlightTheme]:
    """Textual's colours for code, without underlines."""
    from textual.highlight import HighlightTheme

    styles = {kind: style.replace(" underline", "") for kind, style in HighlightTheme.STYLES.items()}
    return type("CodeTheme", (HighlightTheme,), {"STYLES": styles})


@lru_cache(maxsize=128)
def _code_lines(code: str, language: str, width: int) -> tuple[Content, ...]:
    inner = max(1, width - 2)
    from textual.highlight import highlight

    styled = highlight(code, language=language or "text", theme=_code_theme())
    found = []
    for line in styled.split("\n", allow_blank=True):
        found += [_ground(part, width) for part in (line.fold(inner) if line.plain else [Content()])]
    return tuple(found)


def _ground(line: Content, width: int) -> Content:
    padded = Content(" ") + line
    return padded.pad_right(max(0, width - padded.cell_length)).stylize_before(CODE)


def _table(tokens: Sequence[Token], width: int) -> list[Content]:
    """A table with a rule below its head. Where it is too wide, the widest columns give way and their cells wrap."""
    rows: list[list[Content]] = []
    heads = 0
    aligns: list[str] = []
    for i, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            cell = _inline(tokens[i + 1 : i + 2])
            rows[-1].append(cell.stylize_before("bold") if token.type == "th_open" else cell)
            if token.type == "th_open":
                heads = len(rows)
                aligns.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
    columns = len(aligns)
    if not columns:
        return []
    for row in rows:
        row += [Content()] * (columns - len(row))
    widths = _column_widths([[row[c].cell_length for row in rows] for c in range(columns)], width)
    found: list[Content] = []
    bar = Content.styled(" │ ", RULE)
    for number, row in enumerate(rows, 1):
        cells = [_wrap(cell, w) or [Content()] for cell, w in zip(row, widths, strict=False)]
        for i in range(max(map(len, cells))):
            parts = [
                _aligned(cell[i] if i < len(cell) else Content(), w, align)
                for cell, w, align in zip(cells, widths, aligns, strict=True)
            ]
            found.append(bar.join(parts).truncate(width))
        if number == heads:
            found.append(Content.styled("─┼─".join("─" * w for w in widths), RULE).truncate(width))
    return found


def _column_widths(lengths: list[list[int]], width: int) -> list[int]:
    widths = [max(1, *column) for column in lengths]
    room = width - 3 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _NARROWEST_CELL:
        widths[widths.index(max(widths))] -= 1
    return widths


def _aligned(cell: Content, width: int, align: str) -> Content:
    space = max(0, width - cell.cell_length)
    left = {"right": space, "center": space // 2}.get(align, 0)
    return cell.pad_left(left).pad_right(space - left)
