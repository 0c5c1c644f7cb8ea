"""A file on its way in: `<name>.part`, with `<name>.part.json` saying what it is a part of.

The final name appears only through `place`, after verification; so whatever bears it is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spec_local.errors import DownloadError
from spec_local.models_manifest.sizes import show_bytes

_BLOCK = 1 << 20
_SPARE = 64 << 20
"""Bytes of disk left free beside a download."""

Report = Callable[[int], None]
"""Called with the bytes there so far. It may raise to cancel; what is there is kept."""


class SourceError(DownloadError):
    """One source cannot deliver; another one may."""


class PartFile:
    """The partial download of one file.

    Args:
        final: Where the verified file will lie.
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        self.path = final.with_name(final.name + ".part")
        self._notes = final.with_name(final.name + ".part.json")

    @property
    def size(self) -> int:
        """Bytes of the partial file; 0 where there is none."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def notes(self) -> dict[str, Any]:
        """What was noted about the partial file; empty where nothing was, or the partial file is gone."""
        try:
            notes = json.loads(self._notes.read_bytes()) if self.path.exists() else {}
        except (OSError, ValueError):
            return {}
        return notes if isinstance(notes, dict) else {}

    def note(self, **facts: Any) -> None:
        """Replace the notes."""
        fresh = self._notes.with_name(self._notes.name + ".new")
        fresh.write_text(json.dumps(facts), encoding="utf-8")
        os.replace(fresh, self._notes)

    def discard(self) -> None:
        """Forget the partial file and its notes."""
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def sha256(self, report: Report) -> str:
        """Digest of the partial file, `report` called with the bytes read."""
        digest = hashlib.sha256()
        done = 0
        with self.path.open("rb") as file:
            while block := file.read(8 * _BLOCK):
                digest.update(block)
                done += len(block)
                report(done)
        return digest.hexdigest()

    def place(self) -> None:
        """Give the partial file its final name, at once and for good."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(self.path, self.final)
        self._notes.unlink(missing_ok=True)


def ensure_space(folder: Path, needed: int, what: str) -> None:
    """Check before a download that `needed` bytes and a little more fit into `folder`.

    Raises:
        DownloadError: They do not; says how much is missing.
    """
    free = shutil.disk_usage(folder).free
    if needed + _SPARE > free:
        raise DownloadError(
            f"{what} needs {show_bytes(needed)} more, but {folder} has only {show_bytes(free)} free.",
            "Free some space, or point SPEC_LOCAL_MODELS at a larger disk; what is already there is kept.",
        )


@contextmanager
def disk_errors(what: str, folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DownloadError(
                f"The disk under {folder} is full; {what} could not be finished.",
                "Free some space and run the same command again: it goes on where it stopped.",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise DownloadError(
                f"{folder} cannot be written to: {error.strerror}.", "Point SPEC_LOCAL_MODELS at another folder."
            ) from error
        raise
