"""What wheel and sdist hold, and that the wheel works from a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
MAPPING: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
DATA = (".py", ".json", ".tcss", "py.typed")


def sources() -> dict[str, Path]:
    """Every file that must be in the wheel, by its path there."""
    found = {}
    for name, folder in MAPPING.items():
        for path in (CHECKOUT / folder).rglob("*"):
            if path.is_file() and path.name.endswith(DATA):
                found[f"{name.replace('.', '/')}/{path.relative_to(CHECKOUT / folder).as_posix()}"] = path
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this checkout, so that building leaves nothing in it."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", *MAPPING.values()):
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        inside = next(path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))
        return archive.read(inside).decode()


def test_nothing_but_spec_local_is_installed_at_the_top(names: set[str]):
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"spec_local"}


def test_the_mapped_folders_lie_inside(names: set[str]):
    assert {"spec_local/ui/__init__.py", "spec_local/models_manifest/__init__.py"} <= names


def test_every_module_and_data_file_is_there(names: set[str]):
    assert sources().keys() - names == set()
    assert "spec_local/py.typed" in names
    assert "spec_local/models_manifest/catalogue.json" in names


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in sources().values() if path.suffix == ".py"}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_version_licence_and_program(wheel: Path):
    import spec_local

    about = Parser().parsestr(metadata(wheel, "METADATA"))
    assert about["Version"] == spec_local.__version__
    assert about["License-Expression"] == "MIT"
    assert "spec-local = spec_local.cli.main:main" in metadata(wheel, "entry_points.txt")
    assert any(line.startswith("llama-cpp-python==") for line in about.get_all("Requires-Dist", []))


def test_the_sdist_is_the_whole_repository(tmp_path: Path):
    if shutil.which("git") is None or not (CHECKOUT / ".git").exists():
        pytest.skip("not a git checkout: nothing says what belongs to the repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True)
    tracked = [name for name in listed.stdout.decode().split("\0") if name and (CHECKOUT / name).exists()]
    for name in tracked:
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CHECKOUT / name, tmp_path / "checkout" / name)
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "checkout", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert set(tracked) - held == set()
    assert {name for name in held if "__pycache__" in name} == set()


def run(code: str, folder: Path, path: Path | None = None) -> list[str]:
    """The lines that some code prints, run elsewhere, with a folder before everything installed if one is given."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


WHERE = """
import importlib, spec_local
for name in ("spec_local", "spec_local.ui", "spec_local.models_manifest", "spec_local.cli.main"):
    print(importlib.import_module(name).__file__)
"""


def test_an_unpacked_wheel_works_from_any_folder(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    files = run(WHERE, elsewhere, tmp_path / "site")
    site = tmp_path / "site" / "spec_local"
    assert [Path(file).relative_to(site).as_posix() for file in files] == [
        "__init__.py",
        "ui/__init__.py",
        "models_manifest/__init__.py",
        "cli/main.py",
    ]


def test_the_editable_install_works_from_any_folder(tmp_path: Path):
    files = run(WHERE, tmp_path)
    assert [Path(file).relative_to(CHECKOUT).as_posix() for file in files] == [
        "spec_local/__init__.py",
        "ui/__init__.py",
        "models_manifest/__init__.py",
        "spec_local/cli/main.py",
    ]


@pytest.mark.parametrize("name", ["ui", "models_manifest"])
def test_no_such_name_at_the_top(name: str, tmp_path: Path):
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    assert run(code, tmp_path) == ["None"]
