"""Engines that are closed again. Nothing measured here goes into the user's own folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_engines import Load

from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders


@pytest.fixture
def open_engine(tiny_target: Path, tiny_draft: Path) -> Iterator[Load]:
    """Opens engines over the tiny pair, or other files."""
    opened: list[Engine] = []

    def open_(target: Path | None = None, draft: Path | str | None = None, **options: Any) -> Engine:
        settings = {"n_ctx": 256, "threads": 1, "draft_length": 4, "pad_width": 8, **options}
        opened.append(load(target or tiny_target, draft=draft or tiny_draft, options=EngineOptions(**settings)))
        return opened[-1]

    yield open_
    for engine in opened:
        engine.close()
