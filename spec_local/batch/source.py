"""The input file, opened as often as needed; a pipe that must be read twice is kept in a temporary file."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from spec_local.batch.records import Layout, read_items
from spec_local.errors import UsageError

_CHUNK = 2**20


class _Heard:
    """Standard input that tells when its first line has come."""

    def __init__(self, stream: BinaryIO, came: Callable[[], None]) -> None:
        self._stream, self._came = stream, came

    def readline(self, size: int = -1) -> bytes:
        data = self._stream.readline(size)
        self._came()
        return data

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._came()
        return data

    def __enter__(self) -> _Heard:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


class Source:
    """Where the lines come from.

    Args:
        path: A file, or "-" for standard input.

    Raises:
        UsageError: There is no such file, or it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self.came: Callable[[], None] = lambda: None
        """Called when something of standard input was read."""
        self._path = Path(path).expanduser()
        self._spooled: BinaryIO | None = None
        self._regular = path != "-" and self._path.is_file()
        if path != "-" and self._path.is_dir():
            raise UsageError(f"{path} is a folder.", "Give a file with --input, or - for standard input.")
        if self._regular:
            self.open().close()
        elif path != "-" and not self._path.exists():
            raise UsageError(f"{path} cannot be read: there is no such file.")

    def open(self) -> BinaryIO:
        """The input from its start; of a pipe only once, unless it was kept.

        Raises:
            UsageError: It cannot be read.
        """
        if self._spooled is not None:
            self._spooled.seek(0)
            return self._spooled
        if self.name == "-":
            return cast("BinaryIO", _Heard(sys.stdin.buffer, lambda: self.came()))
        try:
            return open(self._path, "rb")
        except OSError as error:
            raise UsageError(f"{self.name} cannot be read: {error.strerror or error}.") from error

    def check(self, layout: Layout) -> None:
        """Find out now what is wrong with a file as a whole: before a model is loaded for it.

        Raises:
            UsageError: It is UTF-16, or a CSV file without the column that is wanted.
        """
        if self._regular:
            with self.open() as stream:
                next(iter(read_items(stream, layout)), None)

    def keep(self) -> None:
        """Make the input readable more than once: a pipe is read to its end into a temporary file."""
        if self._regular or self._spooled is not None:
            return
        spooled = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115
        with self.open() as stream:
            shutil.copyfileobj(stream, spooled)
        self._spooled = spooled

    def lines(self) -> int | None:
        """Lines in the input, blank ones included; None for a pipe, whose end is not known."""
        if not self._regular and self._spooled is None:
            return None
        stream, count, last = self.open(), 0, b"\n"
        while chunk := stream.read(_CHUNK):
            count += chunk.count(b"\n")
            last = chunk
        if stream is not self._spooled:
            stream.close()
        return count + (not last.endswith(b"\n"))

    def is_file(self, other: str) -> bool:
        """Whether `other` names the same file."""
        return self._regular and other != "-" and Path(other).expanduser().resolve() == self._path.resolve()
