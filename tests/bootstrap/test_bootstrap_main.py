"""The order of the set-up, and what happens with the words."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from bootstrapping import machine, main, wheels
from bootstrapping.console import Console
from bootstrapping.environment import Environment, Stamp, digest
from bootstrapping.failures import SetupError

ENTRY = main.CHECKOUT / "scripts" / "bootstrap.py"
HERE = machine.Machine("Linux", "x86_64", "cpu", "/usr/bin/g++ 12", True, "", ())


class Steps(Console):
    """Takes the steps down and leaves behind what each one would; the step with `fails` in its title fails."""

    def __init__(self, environment: Environment, fails: str = "\0") -> None:
        super().__init__(environment.log)
        self.environment = environment
        self.fails = fails
        self.titles: list[str] = []

    def run(self, command: Sequence[str], title: str, environment: Mapping[str, str] | None = None) -> None:
        self.titles.append(title)
        if self.fails in title:
            raise SetupError("It failed.", "Hint.", "excerpt")
        if "venv" in command:
            self.environment.binaries.mkdir(parents=True)
            self.environment.python.write_text("#!/bin/sh\n")  # whatever it is asked, it answers well
            self.environment.python.chmod(0o755)
            (self.environment.root / "pyvenv.cfg").write_text("version = 3.11.7\n")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A checkout without a virtual environment, on a machine whose wheel is already built."""
    wheel = tmp_path / "kept.whl"
    monkeypatch.setattr(machine, "look", lambda *_: HERE)
    monkeypatch.setattr(wheels, "obtain", lambda *_, **__: wheel)
    return Environment(tmp_path / ".venv")


def set_up(environment: Environment, steps: Steps, digest: str = "d", extras: tuple[str, ...] = ("chat",)) -> None:
    main.set_up(main.CHECKOUT, environment, digest, extras, steps)


KERNELS = "Building the kernels for passes over several tokens (under a minute)"
ALL = [
    *("Making .venv", "Installing llama.cpp", "Installing spec-local and what it needs", "Trying llama.cpp"),
    KERNELS,
]


def test_a_fresh_set_up_does_everything_and_the_next_nothing(environment: Environment):
    first, second = Steps(environment), Steps(environment)
    set_up(environment, first)
    set_up(environment, second)
    assert first.titles == ALL
    assert second.titles == []


def test_kernels_that_cannot_be_built_do_not_stop_the_set_up(
    environment: Environment, capsys: pytest.CaptureFixture[str]
):
    steps = Steps(environment, fails="Building the kernels")
    set_up(environment, steps)
    assert steps.titles == ALL
    assert environment.stamp() is not None
    assert "Going on without spec-local's own kernels: It failed." in capsys.readouterr().err


def test_test_adds_the_developers_tools_to_what_is_there(environment: Environment):
    set_up(environment, Steps(environment))
    more = Steps(environment)
    set_up(environment, more, extras=("chat", "dev"))
    assert more.titles == ALL[2:]
    stamp = environment.stamp()
    assert stamp is not None
    assert stamp.extras == ("chat", "dev")


def test_a_changed_project_keeps_the_extras_it_had(environment: Environment):
    set_up(environment, Steps(environment), extras=("chat", "dev"))
    set_up(environment, Steps(environment), digest="d2", extras=("chat",))
    stamp = environment.stamp()
    assert stamp is not None
    assert stamp.extras == ("chat", "dev")


def test_another_wheel_is_installed_over_the_old_one(environment: Environment):
    set_up(environment, Steps(environment))
    environment.write(Stamp("d", ("chat",), "the key of another build"))
    again = Steps(environment)
    set_up(environment, again, digest="d2")
    assert again.titles == ALL[1:]


def test_rebuild_installs_a_wheel_built_anew(environment: Environment, monkeypatch: pytest.MonkeyPatch):
    set_up(environment, Steps(environment), extras=("chat", "dev"))
    asked: list[bool] = []
    obtain = wheels.obtain

    def watched(*words: Any, anew: bool) -> Path:
        asked.append(anew)
        return obtain(*words)

    monkeypatch.setattr(wheels, "obtain", watched)
    stamp, again = environment.stamp(), Steps(environment)
    main.set_up(main.CHECKOUT, environment, "d", ("chat",), again, True)
    assert again.titles == ALL[1:]
    assert asked == [True]
    assert environment.stamp() == stamp


def test_a_rebuild_that_fails_leaves_what_works(environment: Environment, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, anew: bool) -> None:
        raise SetupError("No compiler.", "Install one.")

    set_up(environment, Steps(environment))
    stamp = environment.stamp()
    monkeypatch.setattr(wheels, "obtain", fail)
    with pytest.raises(SetupError):
        main.set_up(main.CHECKOUT, environment, "d", ("chat",), Steps(environment), True)
    assert environment.stamp() == stamp is not None


def test_rebuild_does_not_stop_at_a_stamp_that_serves(environment: Environment, monkeypatch: pytest.MonkeyPatch):
    calls: list[bool] = []
    monkeypatch.setattr(main, "set_up", lambda *words: calls.append(words[-1]))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    environment.binaries.mkdir(parents=True)
    environment.python.write_text("")
    environment.write(Stamp(digest(main.CHECKOUT, machine.cheap_signs(os.environ)), ("chat",), "key"))
    main.ensure(main.CHECKOUT, environment, ("chat",), Steps(environment))
    assert calls == []
    main.ensure(main.CHECKOUT, environment, ("chat",), Steps(environment), True)
    assert calls == [True]


@pytest.mark.parametrize(
    ("words", "rebuilds", "launched"),
    [
        (["--rebuild"], True, None),
        (["--rebuild", "generate", "-p", "a"], True, ["generate", "-p", "a"]),
        (["--rebuild", "test"], True, ["-m", "pytest"]),
        (["generate", "--rebuild"], False, ["generate", "--rebuild"]),
    ],
)
def test_rebuild_is_the_first_word_and_goes_no_further(
    monkeypatch: pytest.MonkeyPatch, words: list[str], rebuilds: bool, launched: list[str] | None
):
    asked: list[tuple[tuple[str, ...], bool]] = []
    started: list[list[str]] = []

    def launch(start: main.Start) -> int:
        started.append(start.command[1:])
        return 0

    monkeypatch.setattr(main, "ensure", lambda *given: asked.append((given[2], given[4])))
    monkeypatch.setattr(main, "launch", launch)
    assert main.main(words) == 0
    assert asked == [(main.wanted_extras(words[rebuilds:]), rebuilds)]
    assert started == ([] if launched is None else [launched])


@pytest.mark.parametrize("step", ["Installing llama.cpp", "Installing spec-local", "Trying llama.cpp"])
def test_a_set_up_that_failed_is_not_taken_for_done(environment: Environment, step: str):
    set_up(environment, Steps(environment))
    environment.write(Stamp("old", ("chat",), "old"))
    with pytest.raises(SetupError):
        set_up(environment, Steps(environment, fails=step))
    assert environment.stamp() is None
    again = Steps(environment)
    set_up(environment, again)
    assert again.titles == ALL[1:]
    assert environment.stamp() is not None


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["generate", "-p", "Write a haiku about rivers"],
        ["--help"],
        ["generate", "-p", "test", "--", "-x", "", "a b", "ü"],
        ["models", "pull", "test"],
    ],
)
def test_words_go_on_as_they_are(environment: Environment, words: list[str]):
    start = main.start_for(words, environment, main.CHECKOUT)
    assert start.command == [str(environment.program), *words]
    assert start.folder is None
    assert main.wanted_extras(words) == ("chat",)


def test_test_is_pytest_in_the_checkout(environment: Environment):
    start = main.start_for(["test", "-k", "a b", "tests/x"], environment, main.CHECKOUT)
    assert start.command == [str(environment.python), "-m", "pytest", "-k", "a b", "tests/x"]
    assert start.folder == main.CHECKOUT
    assert main.wanted_extras(["test"]) == ("chat", "dev")


def test_the_version_has_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+", main.pinned(main.CHECKOUT))
    parts = [*(main.CHECKOUT / "scripts" / "bootstrapping").glob("*.py"), ENTRY]
    assert not any(f"=={main.pinned(main.CHECKOUT)}" in path.read_text(encoding="utf-8") for path in parts)


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (SetupError("It failed.", "Do this."), 4, "It failed.\nDo this.\n"),
        (PermissionError(13, "Permission denied", "/x"), 4, "/x cannot be used: Permission denied.\n"),
        (KeyboardInterrupt(), 130, "Stopped; the same command goes on from here.\n"),
    ],
)
def test_failures_are_sentences_on_standard_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    sentence: str,
):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(main, "ensure", fail)
    assert main.main(["generate"]) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert sentence in shown.err
    assert "Traceback" not in shown.err


def test_the_entry_can_be_parsed_by_old_pythons():
    ast.parse(ENTRY.read_text(encoding="utf-8"), feature_version=(3, 4))
    assert "from __future__" not in ENTRY.read_text(encoding="utf-8")


def test_an_old_python_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: 1)
    assert runpy.run_path(str(ENTRY))["start"]() == 4
    assert "needs Python 3.11 or newer; this is Python 3.9" in capsys.readouterr().err


def test_an_old_python_hands_over_to_a_newer_one(monkeypatch: pytest.MonkeyPatch):
    calls: list[list[str]] = []

    def call(command: list[str], **_: object) -> int:
        calls.append(command)
        if command[0] == "python3.14":
            raise FileNotFoundError(command[0])
        return {"python3.13": 1}.get(command[0], 0 if "-c" in command else 7)

    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "generate", "-p", "a b"])
    monkeypatch.setattr(subprocess, "call", call)
    assert runpy.run_path(str(ENTRY))["start"]() == 7
    assert calls[-1] == ["python3.12", str(ENTRY), "generate", "-p", "a b"]
