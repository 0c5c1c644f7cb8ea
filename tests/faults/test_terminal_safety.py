"""What a model writes, and what a model file says of itself, never drives the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_gguf import TEMPLATE, write_transformer

from spec_local.cli.loading import progress_bar
from spec_local.cli.main import main
from spec_local.llama.library import set_verbose
from spec_local.ui.visible import visible
from spec_local.words import harmless

ATTACK = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\x08\x7f\r"
"""A window title, a cleared screen, a colour in two notations, and characters that hide what stands before."""
FORBIDDEN = [chr(c) for c in (*range(9), *range(11, 32), *range(127, 160))]


class Screen(io.StringIO):
    """Standard output or error of a person at a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def reconfigure(self, **_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A model file of a stranger, under a name of a stranger."""
    template = TEMPLATE + "{% if messages[-1].content == 'refuse' %}{{ raise_exception('" + ATTACK + "') }}{% endif %}"
    path = tmp_path / f"na{ATTACK.replace('/', '')}me.gguf"
    return write_transformer(path, seed=1, template=template + "{# " + ATTACK + " #}")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs a command at a terminal: exit code, what stands on standard output, what on standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        out, err = Screen(), io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(str(end.code))
        monkeypatch.undo()
        return code, out.getvalue(), err.getvalue()

    return run


def _clean(*texts: str) -> None:
    for text in texts:
        assert not [c for c in FORBIDDEN if c in text], repr(text)


FAST = ("--threads", 1, "--n-ctx", 128, "-d", "none", "--max-tokens", 12)


def test_what_a_model_writes(hostile: Path, seen: Callable[..., tuple[int, str, str]]) -> None:
    """The byte ESC is a token like any other, and here the likeliest; then a colour, piece by piece."""
    for byte in (0x1B, 0x07, 0x9B, 0x08, 0x0D, 0x7F):
        code, out, err = seen("generate", "-m", hostile, "-p", "x", *FAST, "--logit-bias", f"{byte}=1e4", "--stats")
        assert code == 0, err
        _clean(out, err)
    code, out, err = seen("generate", "-m", hostile, "-p", "x", *FAST, "--logit-bias", "27=1e4", "--json")
    _clean(out, err)
    assert "\\u001b" in out


@pytest.fixture(autouse=True)
def _quiet_afterwards() -> Iterator[None]:
    yield
    set_verbose(False)


def test_a_pipe_gets_the_very_bytes(hostile: Path, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    out = tmp_path / "answer.txt"
    command = ["generate", "-m", hostile, "-p", "x", *FAST, "--logit-bias", "27=1e4", "-o", out]
    assert main([str(part) for part in command]) == 0
    assert out.read_bytes() == b"\x1b" * 12 + b"\n"


def test_what_a_model_file_says_of_itself(hostile: Path, seen: Callable[..., tuple[int, str, str]]) -> None:
    for command in (
        ("models", "show", hostile),
        ("models", "show", hostile, "--metadata"),
        ("models", "show", hostile, "--template"),
        ("models", "where", hostile),
        ("models", "check", hostile, hostile),
        ("generate", "-m", hostile, "-p", "refuse", *FAST),
        ("generate", "-m", hostile, "-p", "x", *FAST, "--verbose"),
        ("generate", "-m", f"{hostile}x", "-p", "x", *FAST),
        ("generate", "-m", hostile, "-d", hostile, "-p", "x", "--threads", 1, "--n-ctx", 64, "--max-tokens", 2),
    ):
        code, out, err = seen(*command)
        assert out + err, command
        _clean(out, err)
        assert "Traceback" not in err
        assert code in (0, 3), (command, err)


def test_what_a_person_typed_or_configured(
    seen: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ((f"ch{ATTACK}at",), ("generate", f"--no{ATTACK}"), ("models", "show", ATTACK)):
        _clean(*seen(*command)[1:])
    monkeypatch.setenv("SPEC_LOCAL_CHAT_TEMPLATE", ATTACK)
    _clean(*seen("config", "show")[1:])


def test_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar drives the terminal itself; the name in it does not."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_bar("loading") as report:
        report(1, 2, f"a{ATTACK}b[red]c")
    assert "\x1b]0;owned" not in screen.getvalue()
    assert "\x9b" not in screen.getvalue()
    assert "[red]" in screen.getvalue()


def test_the_two_ways_of_showing_controls() -> None:
    """Left out on the command line, shown as pictures in the chat: lines and tabs stay in both."""
    text = ATTACK + "a\tb\nc é 😀"
    for shown in (harmless(text), visible(text)):
        _clean(shown)
        assert shown.endswith("a\tb\nc é 😀")
    assert "␛" in visible(text)
