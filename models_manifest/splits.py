"""Split GGUFs: one model in files called `name-00001-of-00003.gguf`."""

from __future__ import annotations

import re
from pathlib import Path

from spec_local.errors import ModelError

_PATTERN = re.compile(r"^(.*)-(\d{5})-of-(\d{5})(\.gguf)$", re.IGNORECASE)


def split_number(path: Path) -> int | None:
    """Which file of a split `path` is, from 1; None where its name is not that of a split."""
    match = _PATTERN.match(path.name)
    return int(match[2]) if match else None


def split_files(path: Path) -> list[Path]:
    """All files of the model that `path` belongs to, in order; just `path` where it is not split.

    Raises:
        ModelError: Files of the split are missing; names them.
    """
    match = _PATTERN.match(path.name)
    if match is None:
        return [path]
    stem, count = match[1], int(match[3])
    if not 1 <= int(match[2]) <= count or count > 1000:
        raise ModelError(f"{path} has an impossible place in its name for a split model.")
    files = [path.with_name(f"{stem}-{number:05}-of-{count:05}{match[4]}") for number in range(1, count + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ModelError(
            f"{path} is one of {count} files, and {shown} {'is' if len(missing) == 1 else 'are'} not beside it.",
            "Put all files of the model into one folder.",
        )
    return files
