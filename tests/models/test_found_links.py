"""Model folders that are links: to another disk, to one another, to themselves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_local.models_manifest.found import find_files

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


def test_linked_folders_are_followed_and_loops_end(
    home: Path, tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    models = home / ".lmstudio/models"
    models.mkdir(parents=True)
    disk = tmp_path / "disk"
    write_model(disk / "me/repo/linked.gguf")
    (models / "publisher").symlink_to(disk / "me")
    (disk / "me/repo/loop").symlink_to(disk)
    (models / "self").symlink_to(models)
    (models / "nowhere").symlink_to(tmp_path / "missing")
    found = [file for file in find_files() if file.path.name == "linked.gguf"]
    assert [file.name for file in found] == ["publisher/repo/linked.gguf"]


def test_a_folder_that_is_a_link_itself_is_followed(
    home: Path, tmp_path: Path, write_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "disk/a.gguf")
    (home / "linked").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("LLAMA_CACHE", str(home / "linked"))
    assert "a.gguf" in {file.name for file in find_files()}


def test_a_link_to_everything_takes_no_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "cache").mkdir()
    (home / "cache/all").symlink_to("/")
    monkeypatch.setenv("LLAMA_CACHE", str(home / "cache"))
    monkeypatch.setattr("spec_local.models_manifest.found._MOST_FOLDERS", 500)
    started = time.monotonic()
    find_files()
    assert time.monotonic() - started < 10
