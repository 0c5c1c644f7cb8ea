"""Tiny real models and one home for the tests of reported faults; the command line runs in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_gguf import write_transformer

from spec_local.cli.main import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all: whether llama.cpp works here is found out once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(shared_home))
    monkeypatch.setenv("SPEC_LOCAL_MODELS", str(shared_home / "models"))
    monkeypatch.setenv("SPEC_LOCAL_THREADS", "1")
    yield shared_home
    shutil.rmtree(shared_home / "config", ignore_errors=True)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("target") / "target.gguf", layers=3)


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("draft") / "draft.gguf", near=0.2)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """`run("generate", …)` gives exit code, standard output and standard error."""

    def command(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Outcome(int(code), said.out, said.err)

    return command


@pytest.fixture
def answer(run: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """`answer("-m", path, …)`: six greedy tokens after “hello”."""

    def command(*arguments: object) -> Outcome:
        prompt = () if "-p" in arguments or "--input" in arguments else ("-p", "hello")
        return run("generate", *prompt, "--max-tokens", 6, "--temperature", 0, *arguments)

    return command
