"""Engines over real model files, each loaded once for a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from real_models import SMALL, THREADS, Load, model_path

from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders


@pytest.fixture(scope="session")
def engines() -> Iterator[Load]:
    """Engines by what they were loaded with: asked for twice, loaded once. At most two are kept."""
    kept: dict[tuple[Any, ...], Engine] = {}

    def get(target: str, draft: str, **options: Any) -> Engine:
        key = (target, draft, *sorted(options.items()))
        if key not in kept:
            while len(kept) > 1:
                kept.pop(next(iter(kept))).close()
            file = draft if draft in ("none", "text") else model_path(draft)
            settings = EngineOptions(**{"n_ctx": 512, "threads": THREADS, **options})
            kept[key] = load(model_path(target), draft=file, options=settings)
        kept[key] = kept.pop(key)
        return kept[key]

    yield get
    for engine in kept.values():
        engine.close()


@pytest.fixture
def small(engines: Load) -> Engine:
    """SmolLM2 drafting for itself, every pass 9 rows wide: drafts of 8 tokens, all of them right."""
    engine = engines(SMALL, SMALL, draft_length=8, pad_width=9)
    engine.speculator.release(0)
    return engine
