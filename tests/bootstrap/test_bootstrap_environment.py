"""The virtual environment and its stamp."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from bootstrapping import environment as environments
from bootstrapping.environment import Environment, Stamp
from bootstrapping.failures import SetupError

STAMP = Stamp("d1", ("chat", "dev"), "key")


def made(root: Path) -> Environment:
    """An environment whose Python is there."""
    environment = Environment(root)
    environment.binaries.mkdir(parents=True)
    environment.python.write_text("")
    (root / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    return environment


def checkout(folder: Path) -> Path:
    (folder / "scripts" / "bootstrapping").mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "scripts/bootstrap.py", "scripts/bootstrapping/main.py"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize(
    ("digest", "extras", "serves"),
    [
        ("d1", ("chat",), True),
        ("d1", ("chat", "dev"), True),
        ("d1", (), True),
        ("d1", ("chat", "docs"), False),
        ("d2", ("chat",), False),
    ],
)
def test_what_a_stamp_serves(digest: str, extras: tuple[str, ...], serves: bool):
    assert STAMP.serves(digest, extras) is serves


def test_a_stamp_comes_back_as_it_was_written(tmp_path: Path):
    environment = made(tmp_path / ".venv")
    assert environment.stamp() is None
    environment.write(STAMP)
    assert environment.stamp() == STAMP
    environment.unstamp()
    assert environment.stamp() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", json.dumps({"digest": "d1"}), json.dumps({"digest": 1, "extras": 2})]
)
def test_a_damaged_stamp_is_no_stamp(tmp_path: Path, text: str):
    environment = made(tmp_path / ".venv")
    (environment.root / "bootstrap.json").write_text(text)
    assert environment.stamp() is None


def test_a_stamp_without_its_python_is_no_stamp(tmp_path: Path):
    environment = made(tmp_path / ".venv")
    environment.write(STAMP)
    environment.python.unlink()
    environment.python.symlink_to(tmp_path / "removed")
    assert environment.stamp() is None


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "setup.py", "scripts/bootstrap.py", "scripts/bootstrapping/main.py"]
)
def test_a_changed_source_is_another_digest(tmp_path: Path, name: str):
    folder = checkout(tmp_path)
    before = environments.digest(folder, {"cpu": "a"})
    assert environments.digest(folder, {"cpu": "a"}) == before
    (folder / name).write_text("changed")
    assert environments.digest(folder, {"cpu": "a"}) != before


def test_another_machine_or_place_is_another_digest(tmp_path: Path):
    here, there = checkout(tmp_path / "here"), checkout(tmp_path / "there")
    before = environments.digest(here, {"cpu": "a"})
    assert environments.digest(here, {"cpu": "b"}) != before
    assert environments.digest(there, {"cpu": "a"}) != before


def test_the_python_inside_counts_not_the_one_that_runs(tmp_path: Path):
    assert made(tmp_path / ".venv").tag() == "cp312"


class Recorder:
    """Takes commands down instead of running them; those that contain `fails` fail."""

    def __init__(self, fails: str = "\0") -> None:
        self.fails = fails
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], title: str, environment: Mapping[str, str] | None = None) -> None:
        self.commands.append(list(command))
        if self.fails in " ".join(command):
            raise SetupError("It failed.", "Hint.", "excerpt")


def test_an_environment_is_made_once(tmp_path: Path):
    run = Recorder()
    Environment(tmp_path / ".venv").make(run, lambda *_: (0, "pip 24.0"))
    assert run.commands == [[sys.executable, "-I", "-m", "venv", "--clear", str(tmp_path / ".venv")]]
    made(tmp_path / ".venv").make(run, lambda *_: (0, "pip 24.0"))
    assert len(run.commands) == 1


def test_an_environment_that_was_interrupted_before_it_had_a_pip_is_made_anew(tmp_path: Path):
    run = Recorder()
    made(tmp_path / ".venv").make(run, lambda *_: (1, "No module named pip"))
    assert "--clear" in run.commands[0]


def test_without_ensurepip_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else object())
    run = Recorder()
    with pytest.raises(SetupError, match="virtual environments") as failure:
        Environment(tmp_path / ".venv").make(run)
    assert "python3-venv" in failure.value.hint
    assert run.commands == []


def test_our_wheel_replaces_whatever_was_there(tmp_path: Path):
    run = Recorder()
    environments.install_wheel(made(tmp_path / ".venv"), tmp_path / "x.whl", run)
    assert {"--force-reinstall", "--no-cache-dir", "--no-deps", str(tmp_path / "x.whl")} <= set(run.commands[0])


def test_the_project_is_installed_in_place_with_its_extras(tmp_path: Path):
    run = Recorder()
    environments.install_project(made(tmp_path / ".venv"), tmp_path, ["chat", "dev"], run)
    assert run.commands[0][-2:] == ["--editable", f"{tmp_path}[chat,dev]"]


def test_a_library_that_does_not_load_says_how_to_build_it_anew(tmp_path: Path):
    wheel = tmp_path / "wheels" / "0123" / "x.whl"
    with pytest.raises(SetupError, match="does not load") as failure:
        environments.check_loads(made(tmp_path / ".venv"), wheel, Recorder(fails="llama_backend_init"))
    assert str(wheel.parent) in failure.value.hint
    assert failure.value.excerpt == "excerpt"
