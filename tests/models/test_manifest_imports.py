"""Importing the package is cheap, and its folders obey the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import spec_local.models_manifest as manifest
from spec_local import paths

HEAVY = ("pydantic", "huggingface_hub", "numpy", "gguf", "filelock", "llama_cpp", "urllib.request")


def test_importing_it_loads_nothing_heavy(tmp_path: Path) -> None:
    code = f"import sys, spec_local.models_manifest; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_promised_is_there() -> None:
    for name in manifest.__all__:
        assert getattr(manifest, name) is not None
    with pytest.raises(AttributeError):
        manifest.nothing_of_the_kind  # noqa: B018


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEC_LOCAL_MODELS", raising=False)
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path / "one"))
    assert paths.cache_folder() == tmp_path / "one" / "cache"
    assert paths.config_folder() == tmp_path / "one" / "config"
    assert paths.data_folder() == tmp_path / "one" / "data"
    assert paths.state_folder() == tmp_path / "one" / "state"
    assert paths.models_folder() == tmp_path / "one" / "cache" / "models"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("SPEC_LOCAL_MODELS", "~/disk")
    assert paths.models_folder() == tmp_path / "disk"
    monkeypatch.delenv("SPEC_LOCAL_HOME")
    assert paths.cache_folder().is_absolute()
    assert "spec-local" in str(paths.cache_folder())
