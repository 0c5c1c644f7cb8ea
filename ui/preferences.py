"""What a person chose for the screen, kept from one start to the next."""

from __future__ import annotations

import json
from pathlib import Path

from spec_local.paths import state_folder


def _path() -> Path:
    return state_folder() / "chat.json"


def load_theme() -> str:
    """The theme chosen last; empty where none was, or the file cannot be read."""
    try:
        return str(json.loads(_path().read_text(encoding="utf-8"))["theme"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def save_theme(name: str) -> None:
    """Keep a theme; where that cannot be, the next start has the default again."""
    try:
        _path().parent.mkdir(parents=True, exist_ok=True)
        _path().write_text(json.dumps({"theme": name}), encoding="utf-8")
    except OSError:
        return
