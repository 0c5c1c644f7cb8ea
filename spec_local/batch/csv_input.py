"""CSV input: rows to items, whatever delimiter the program that wrote it uses in its language."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from spec_local.batch.failures import Failure, ItemError
from spec_local.batch.lines import Line, invalid_utf8
from spec_local.batch.records import BadLine, Item, Layout, not_empty, usable_id
from spec_local.errors import UsageError

_DELIMITERS = ",;\t|"


class _Source:
    """Lines as the texts that `csv` reads, remembering which of them a row came from."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)
        self.first: Line | None = None
        """First line of the row that is being read."""
        self.error: ItemError | None = None
        """What was wrong with one of its lines."""

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.first = self.first or line
            if line.cut:
                self.error = self.error or ItemError(Failure.LINE_TOO_LONG, "A line of the row is too long.")
                yield "\n"
                continue
            try:
                yield line.data.decode("utf-8") + "\n"
            except UnicodeDecodeError as error:
                self.error = self.error or invalid_utf8(line, error.start)
                yield line.data.decode("utf-8", "replace") + "\n"

    def start(self) -> None:
        self.first = self.error = None


def csv_items(lines: Iterable[Line], layout: Layout) -> Iterator[Item | BadLine]:
    """Every row, in order; the first line is the header, or `sep=;` and then the header.

    Raises:
        UsageError: There is no header, or the column that is wanted is not in it.
    """
    lines, delimiter = _delimiter(iter(lines), layout)
    source = _Source(lines)
    csv.field_size_limit(2**31 - 1)  # a row is bounded by the lines it is made of
    reader = csv.reader(source, strict=True, delimiter=delimiter)
    header: list[str] | None = None
    while True:
        source.start()
        row: list[str] = []
        error: ItemError | None = None
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            error = ItemError(Failure.INVALID_CSV, f"The row cannot be read: {problem}.")
        error = source.error or error
        assert source.first is not None
        if error is None and len(row) <= 1 and not "".join(row).strip():  # a blank line
            continue
        if header is None:
            header = _header(row, error, layout)
            continue
        number = source.first.number
        fields: dict[str, Any] | None = None
        try:
            if error is not None:
                raise error
            if len(row) != len(header):
                raise ItemError(Failure.INVALID_CSV, f"The row has {len(row)} cells; the header has {len(header)}.")
            fields = dict(zip(header, row, strict=True))
            yield _csv_item(number, fields, header, layout)
        except ItemError as problem:
            yield BadLine(number, usable_id(fields), problem, fields)


def _delimiter(lines: Iterator[Line], layout: Layout) -> tuple[Iterator[Line], str]:
    """The lines from the header on, and what separates their cells.

    It is the first of , ; tab | at which the header has the columns that are wanted, else the one that makes most
    cells of it: a header that a comma does not cut may be one column, or another program's row.
    """
    held: list[Line] = []
    for line in lines:
        held.append(line)
        if not line.data.strip():
            continue
        text = line.data.decode("utf-8", "replace")
        named = text.strip().strip('"').lower()
        if named.startswith("sep=") and len(text.strip('\r\n "')) <= 5:  # Excel's own way to say it
            return lines, text.strip('\r\n "')[4:5] or "\t"
        cells = {mark: _cells(text, mark) for mark in _DELIMITERS}
        wanted = layout.template.fields if layout.template else [layout.column or "prompt"]
        fitting = [mark for mark in _DELIMITERS if all(name in cells[mark] for name in wanted)]
        return chain(held, lines), (fitting or sorted(_DELIMITERS, key=lambda mark: -len(cells[mark])))[0]
    return chain(held, lines), ","


def _cells(text: str, mark: str) -> list[str]:
    """The cells of a header under a delimiter; the text as it is where it is none."""
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=mark))]
    except csv.Error:
        return [text]


def _header(row: list[str], error: ItemError | None, layout: Layout) -> list[str]:
    if error is not None:
        raise UsageError(f"The header of the CSV input cannot be read. {error.message}")
    header = [name.strip() for name in row]
    if len(set(header)) != len(header):
        raise UsageError(f"The CSV header names a column twice: {', '.join(header)}.", "Give each its own name.")
    wanted = layout.template.fields if layout.template else [_csv_column(header, layout)]
    for name in wanted:
        if name not in header:
            raise UsageError(
                f"The CSV input has no column {name!r}; it has: {', '.join(header)}.",
                "Choose one with --column NAME, or several with --template.",
            )
    return header


def _csv_column(header: list[str], layout: Layout) -> str:
    alone = len(header) == 1 and not any(mark in header[0] for mark in _DELIMITERS)  # else it is a row, not a name
    return layout.column or (header[0] if alone else "prompt")


def _csv_item(number: int, fields: dict[str, Any], header: list[str], layout: Layout) -> Item:
    prompt = layout.template.render(fields) if layout.template else fields[_csv_column(header, layout)]
    prompt = not_empty(prompt, "The prompt")
    return Item(number, fields.get("id") or None, prompt, fields.get("system") or None, fields=fields)
