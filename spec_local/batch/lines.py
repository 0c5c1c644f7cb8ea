"""A byte stream as numbered lines, each with its place in the input. Constant memory, whatever the input holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from spec_local.batch.failures import Failure, ItemError
from spec_local.errors import UsageError

LONGEST_LINE = 64 * 2**20
"""Bytes of one line; a longer one is an error of its own, and is skipped without being held in memory."""
_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input, without its end."""

    number: int
    """1 is the first; blank lines count."""
    offset: int
    """Byte of the input at which `data` starts."""
    data: bytes
    """Neither line end nor byte-order mark."""
    cut: bool = False
    """Longer than `LONGEST_LINE`: `data` is only its beginning."""

    def text(self) -> str:
        """The line as text.

        Raises:
            ItemError: It is too long, or not UTF-8 (the message says at which byte).
        """
        if self.cut:
            raise ItemError(Failure.LINE_TOO_LONG, f"The line is longer than {LONGEST_LINE >> 20} MiB.")
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise invalid_utf8(self, error.start) from None


def invalid_utf8(line: Line, at: int) -> ItemError:
    """The failure of a line whose byte `at` is no UTF-8."""
    where = f"at offset {at} of the line, {line.offset + at} of the input"
    return ItemError(Failure.INVALID_UTF8, f"Byte 0x{line.data[at]:02x} {where} is not UTF-8.")


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    r"""The lines of `stream`, blank ones included. Lines end with \n or \r\n; the last one may lack its end.

    Raises:
        UsageError: The input is UTF-16, of which every line would fail.
    """
    number = offset = 0
    while data := stream.readline(LONGEST_LINE):
        number += 1
        if number == 1 and data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise UsageError("The input is UTF-16.", "Save it as UTF-8.")
        size = len(data)
        cut = size == LONGEST_LINE and not data.endswith(b"\n")
        rest = data
        while cut and rest and not rest.endswith(b"\n"):
            rest = stream.readline(2**20)
            size += len(rest)
        mark = len(_MARK) if data.startswith(_MARK) else 0
        yield Line(number, offset + mark, data[mark:].removesuffix(b"\n").removesuffix(b"\r"), cut)
        offset += size
