"""Fixtures for every area: tiny model files, and folders of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-models")


@pytest.fixture(scope="session")
def tiny_target(tiny_folder: Path) -> Path:
    """A transformer of random weights."""
    from tiny_gguf import write_transformer

    return write_transformer(tiny_folder / "target.gguf", seed=1)


@pytest.fixture(scope="session")
def tiny_draft(tiny_folder: Path) -> Path:
    """The same with noise on its weights: it agrees with the target more often than not."""
    from tiny_gguf import write_transformer

    return write_transformer(tiny_folder / "draft.gguf", seed=1, near=0.1)


@pytest.fixture(scope="session")
def tiny_recurrent(tiny_folder: Path) -> Path:
    """A model with a running state, which cannot be cut back."""
    from tiny_gguf import write_recurrent

    return write_recurrent(tiny_folder / "recurrent.gguf", seed=1)


@pytest.fixture
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured on tiny models does not belong into the user's cache; model files stay where they are."""
    from spec_local.paths import models_folder

    monkeypatch.setenv("SPEC_LOCAL_MODELS", str(models_folder()))
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path_factory.getbasetemp() / "home"))
