"""Reading from and writing to whatever stands at the other end: a terminal, a pipe or a file."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from spec_local.errors import UsageError
from spec_local.text_files import decode_text, read_text_file
from spec_local.words import harmless

PATIENCE_S = 1.0
"""Seconds to wait for standard input without a word."""


def read_text(path: str) -> str:
    """A text file, or standard input for "-"; raises as `read_text_file`."""
    return read_text_file(path) if path != "-" else _standard_input("Reading standard input until it ends.")


def piped_input() -> str | None:
    """What was piped or redirected into the program, read to its end; None where there is nothing to be had.

    A pipe, a socket and a file are read; a terminal, `/dev/null` and what is closed are not. A file of which something
    was read already belongs to whoever reads it: the list of `while read line; do …; done < list`, for one.
    """
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) and os.lseek(descriptor, 0, os.SEEK_CUR) > 0:
            return None
    except (OSError, ValueError, AttributeError):
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return None
    return _standard_input("Waiting for standard input to end: it is added to the prompt (--no-stdin leaves it alone).")


def _standard_input(waiting: str) -> str:
    """All of standard input; where that takes more than a second, a line says what is waited for."""
    with patience(waiting):
        try:
            data = sys.stdin.buffer.read()
        except OSError as error:
            raise UsageError(f"Standard input cannot be read: {error.strerror or error}.") from error
    return decode_text(data, "Standard input")


@contextmanager
def patience(waiting: str) -> Iterator[Callable[[], None]]:
    """Print `waiting` on standard error after a second, unless what is waited for came, which the callable says."""
    timer = threading.Timer(PATIENCE_S, lambda: print(waiting, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def is_terminal(stream: object) -> bool:
    """Whether a person is looking at this stream."""
    return bool(getattr(stream, "isatty", lambda: False)())


def say(text: object) -> None:
    """Print a line on standard output: as it is for programs, harmless where a person looks at it."""
    print(harmless(str(text)) if is_terminal(sys.stdout) else text)


class TextOutput:
    """The answer's way out: standard output or a file. The same bytes for `-o PATH` and `> PATH`, but that a file keeps
    what it held until there is something to write: a model that is not found costs nobody an earlier answer."""

    def __init__(self, path: str | None) -> None:
        self._last = ""
        self._name = path or "Standard output"
        self._terminal = path is None and is_terminal(sys.stdout)
        self._holds = path is not None and os.path.isfile(path)
        """Whether the file still has what it held before; pipes and devices hold nothing."""
        mode = "a" if self._holds else "w"
        try:
            self._file = sys.stdout if path is None else open(path, mode, encoding="utf-8", newline="\n")  # noqa: SIM115
        except OSError as error:
            raise self._failed(error) from error
        if path is None and not self._terminal:
            # A pipe or a file gets UTF-8 whatever the locale says; only a real console has an encoding of its own.
            sys.stdout.reconfigure(encoding="utf-8", errors="replace", newline="\n")  # type: ignore[union-attr]

    def write(self, text: str) -> None:
        """Write and flush, so that a reader sees every piece at once."""
        if not text:
            return
        try:
            self._empty()
            self._file.write(harmless(text) if self._terminal else text)
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:  # a full disk, most often
            self._last = ""
            with suppress(OSError):  # what was not written would be tried again when the program ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
            raise self._failed(error) from error
        self._last = text[-1]

    def close(self, keep: bool = False) -> None:
        """End the last line. A file to which nothing was written is empty from now on, unless it is to `keep` what it
        held."""
        if self._last not in ("", "\n"):
            self.write("\n")
        if not keep:
            self._empty()
        if self._file is not sys.stdout:
            self._file.close()

    def _empty(self) -> None:
        if self._holds:
            self._holds = False
            try:
                self._file.truncate(0)
            except OSError as error:
                raise self._failed(error) from error

    def _failed(self, error: OSError) -> UsageError:
        return UsageError(f"{self._name} cannot be written: {error.strerror or error}.")
