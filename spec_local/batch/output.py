"""The output file: one JSON record per line, written whole, locked, and resumed without losing a finished answer.

A record goes to the operating system in one write as soon as its item ends, so a process that is killed loses the items
in flight and nothing else; at most the last record in the file is cut. A power failure may also cost the last second.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from spec_local.batch.records import Id
from spec_local.errors import ModelError, UsageError

_SYNC_S = 1.0
"""Seconds between two requests to bring what was written to the disk itself."""


class OutputError(ModelError):
    """The output file cannot be read or written."""


@dataclass(frozen=True, slots=True)
class OldRecord:
    """A whole record found in an output file."""

    offset: int
    """Its first byte."""
    size: int
    """Bytes, line end included."""
    line: int
    """Number of the input line it answers."""
    id: Id
    finished: bool
    """An answer, not a failure."""
    cut: bool
    """An answer that ended before its schema or grammar was complete."""
    fingerprint: str


class OutputFile:
    """An output file held by this process alone; a context manager.

    Args:
        path: Where; "-" is standard output, which is neither locked nor resumed.
        resume: Keep what is there, for `records` and `keep`; else the file must be new or empty.

    Raises:
        UsageError: Another run writes to the file; it holds something and `resume` is off; it cannot be resumed.
        OutputError: It cannot be opened.
    """

    def __init__(self, path: str, *, resume: bool = False) -> None:
        self.name = path
        self._standard = path == "-"
        self._path = Path(os.path.realpath(Path(path).expanduser()))
        self._lock: FileLock | None = None
        self._file: BinaryIO | None = None
        self._synced = time.monotonic()
        if not self._standard and not self._path.parent.is_dir():
            raise OutputError(f"{path} cannot be written: there is no folder {self._path.parent}.")
        special = self._standard or (self._path.exists() and not self._path.is_file())
        if resume and special:
            raise UsageError(f"{path} cannot be resumed: it is no file.", "Give a file with --output.")
        if not special:
            self._acquire()
        try:
            if not special and not resume and self._path.exists() and self._path.stat().st_size > 0:
                raise UsageError(
                    f"{path} exists and is not empty.", "Add --resume to go on with it, or choose another --output."
                )
            if not resume:
                self._open()
        except BaseException:
            self._unlock()
            raise

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record and hand it to the operating system.

        Raises:
            OutputError: It cannot be written (a full disk).
            BrokenPipeError: The reader of a pipe has gone.
        """
        if self._file is None:
            self._open()
        assert self._file is not None
        start = None if self._standard else os.fstat(self._file.fileno()).st_size
        data = memoryview((json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8"))
        try:
            while data:
                data = data[self._file.write(data) :]
            if self._standard:
                self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if start is not None:
                with suppress(OSError):  # a disk that is full may take half a record: what stays is whole lines
                    os.ftruncate(self._file.fileno(), start)
            raise self._failed("written", error) from error
        if time.monotonic() - self._synced > _SYNC_S:
            self._sync()

    def _open(self) -> None:
        if self._standard:
            self._file = sys.stdout.buffer
            return
        try:
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._failed("written", error) from error

    def _sync(self) -> None:
        self._synced = time.monotonic()
        if self._file is not None and not self._standard:
            with suppress(OSError):  # pipes and devices have no disk
                os.fsync(self._file.fileno())

    # -- resuming --------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[OldRecord]:
        """The whole records the file holds, in order; a cut last one is left out.

        Raises:
            UsageError: A line that is not the last one is no record: the file is not the output of a batch.
            OutputError: The file cannot be read.
        """
        try:
            with open(self._path, "rb") as file:
                offset = 0
                for number, data in enumerate(file, 1):
                    record = _old_record(offset, data)
                    offset += len(data)
                    if record is not None:
                        yield record
                    elif data.endswith(b"\n") and data.strip():
                        raise UsageError(
                            f"Line {number} of {self.name} is no record of a batch run; nothing was changed.",
                            "Choose another --output, or remove the line.",
                        )
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed("read", error) from error

    def keep(self, kept: list[OldRecord]) -> None:
        """Make the file hold exactly these of its `records`, in order and byte for byte. Killed at any moment, it holds
        either everything it held or this.

        Raises:
            OutputError: The file cannot be written.
        """
        new = self._path.with_name(f".{self._path.name}.resumed")
        try:
            size = self._path.stat().st_size if self._path.exists() else 0
            if size == sum(record.size for record in kept) and self._ends_whole(size):
                return
            with open(self._path, "rb") as old, open(new, "wb") as file:
                for record in kept:
                    old.seek(record.offset)
                    file.write(old.read(record.size).removesuffix(b"\n") + b"\n")
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(self._path, new)
            os.replace(new, self._path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise self._failed("rewritten", error) from error

    def _ends_whole(self, size: int) -> bool:
        """Whether the file ends with a line end: a kill may have come just before it."""
        if size == 0:
            return True
        with open(self._path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    # -- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Bring everything to the disk and let others write to the file; harmless when done twice."""
        if self._file is not None:
            self._sync()
            if not self._standard:
                self._file.close()
            self._file = None
        self._unlock()

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _acquire(self) -> None:
        lock = FileLock(str(self._path.with_name(f".{self._path.name}.lock")), blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise UsageError(
                f"Another run is writing to {self.name}.", "Wait for it, or choose another --output."
            ) from None
        except OSError as error:
            raise self._failed("locked", error) from error
        self._lock = lock

    def _unlock(self) -> None:
        if self._lock is not None:
            # The file goes first, while it is still ours: whoever waits would lock a name that no longer exists.
            if os.name != "nt":
                with suppress(OSError):
                    os.unlink(self._lock.lock_file)
            self._lock.release()
            self._lock = None

    def _failed(self, what: str, error: OSError) -> OutputError:
        hint = "Finished records are safe; make room and add --resume." if what == "written" else ""
        return OutputError(f"{self.name} cannot be {what}: {error.strerror or error}.", hint)


def _old_record(offset: int, data: bytes) -> OldRecord | None:
    """A line of an output file, or None where it is no whole record. A whole one may still lack its line end."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("line"), int):
        return None
    failed = isinstance(record.get("error"), dict)
    if not failed and not isinstance(record.get("text"), str):
        return None
    item_id = record.get("id")
    return OldRecord(
        offset,
        len(data),
        record["line"],
        item_id if isinstance(item_id, str | int) else None,
        not failed and record.get("finish_reason") in ("stop", "length"),
        record.get("structure") == "cut",
        str(record.get("fingerprint", "")),
    )
