"""A tiny pair of real GGUF files, and a home of their own for what is measured on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_gguf import write_transformer


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("tiny") / "target.gguf", seed=1)


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agrees with the target in more than half of its tokens."""
    return write_transformer(tmp_path_factory.mktemp("tiny") / "draft.gguf", seed=1, near=0.15)


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of tiny models do not belong into the user's cache; model files stay where they are."""
    from spec_local.paths import models_folder

    monkeypatch.setenv("SPEC_LOCAL_MODELS", str(models_folder()))
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path_factory.getbasetemp() / "home"))
