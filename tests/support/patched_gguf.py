"""Copies of real model files with a byte sequence of the header exchanged for one as long."""

from __future__ import annotations

import shutil
from pathlib import Path

_HEADER = 64 << 20


def patched(source: Path, target: Path, old: bytes, new: bytes) -> Path:
    """Copy a file with the first `old` of its header replaced by `new`, of the same length."""
    assert len(old) == len(new)
    shutil.copyfile(source, target)
    with target.open("r+b") as file:
        at = file.read(_HEADER).find(old)
        assert at >= 0, f"{source} does not hold {old!r}"
        file.seek(at)
        file.write(new)
    return target


def retemplated(source: Path, target: Path, template: str) -> Path:
    """Copy a model file with another chat template, padded with a comment to the length of its own."""
    from spec_local.models_manifest import read_header

    old = (read_header(source).chat_template or "").encode()
    new = template.encode()
    room = len(old) - len(new) - len("{##}")
    assert room >= 0, "the new template is too long"
    return patched(source, target, old, b"{#" + b" " * room + b"#}" + new)
