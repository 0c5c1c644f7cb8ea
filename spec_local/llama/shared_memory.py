"""Memory that a `hosted.Host` and its child process both map: rows go through it, and the flag that stops a pass."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from uuid import uuid4

FLAGS = 64
"""Bytes before the rows of logits: at 0 the abort flag, at 8 the one that cancels loading."""
CANCEL_LOAD = 8


def share(size: int) -> tuple[mmap.mmap, Callable[[], None], str]:
    """Memory both processes can map, what to call once the child has done so, and how the child finds it."""
    if sys.platform == "win32":
        name = f"spec-local-{uuid4().hex}"
        return mmap.mmap(-1, size, tagname=name), lambda: None, name
    if hasattr(os, "memfd_create"):  # no file system, no limit of its own
        file, path = os.memfd_create("spec-local"), ""
        place = f"/proc/{os.getpid()}/fd/{file}"
    else:
        file, path = tempfile.mkstemp(prefix="spec-local-")
        place = path

    def release() -> None:
        os.close(file)
        if path:
            os.unlink(path)

    os.ftruncate(file, size)
    return mmap.mmap(file, size), release, place


def map_shared(place: str, size: int) -> mmap.mmap:
    """The child's view of memory from `share`."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size, tagname=place)
    file = os.open(place, os.O_RDWR)
    try:
        return mmap.mmap(file, size)
    finally:
        os.close(file)
