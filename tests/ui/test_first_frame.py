"""The picture before the chat: painted where the terminal is known, of the words and sizes the chat itself has."""

from __future__ import annotations

import os
import signal

import pytest

from spec_local.cli.first_frame import LOW, PLACEHOLDER, UNTITLED, first_frame, frame

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no first frame on Windows")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def size(columns: int, rows: int) -> os.terminal_size:
    return os.terminal_size((columns, rows))


def test_the_frame_is_painted_and_taken_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: size(80, 24))
    with first_frame(UNTITLED):
        assert PLACEHOLDER in capsys.readouterr().err
    assert capsys.readouterr().err == "\x1b[?1049l"
    with first_frame(UNTITLED) as take:
        take()
    assert "\x1b[?1049l" not in capsys.readouterr().err, "somebody else has the screen"


def test_where_nobody_knows_the_size_there_is_no_frame(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(*_: int) -> os.terminal_size:
        raise OSError(25, "Inappropriate ioctl for device")

    for answer in (unknown, lambda *_: size(0, 0)):
        monkeypatch.setattr(os, "get_terminal_size", answer)
        with first_frame(UNTITLED) as take:
            take()
        assert capsys.readouterr().err == ""


def test_a_low_terminal_has_no_title_line() -> None:
    assert UNTITLED in frame(UNTITLED, 80, LOW)
    assert UNTITLED not in frame(UNTITLED, 80, LOW - 1)


def test_a_termination_takes_it_away_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: size(80, 24))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, first_frame(UNTITLED):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err.endswith("\x1b[?1049l")
    assert signal.getsignal(signal.SIGTERM) is before
