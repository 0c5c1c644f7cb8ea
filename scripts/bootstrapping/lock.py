"""One set-up at a time per folder, between processes. The system releases the lock when its holder ends, however."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt

    def _try(file: IO[str]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def held(path: Path, waiting: Callable[[], None], poll_s: float = 0.2) -> Iterator[None]:
    """Hold the lock file while the block runs.

    Args:
        path: The lock file; it stays behind, empty, so that nobody locks a file another one has just deleted.
        waiting: Called once if somebody else holds the lock.
        poll_s: Seconds between tries.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        told = False
        while True:
            try:
                _try(file)
                break
            except (BlockingIOError, PermissionError):
                if not told:
                    waiting()
                    told = True
                time.sleep(poll_s)
            except OSError:
                break  # a file system without locks: rather two careful writers than no set-up at all
        yield
