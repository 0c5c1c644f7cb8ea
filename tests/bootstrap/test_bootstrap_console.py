"""Steps of the set-up on the screen and in the log."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import pytest
from bootstrapping import console
from bootstrapping.console import Console
from bootstrapping.failures import SetupError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_step_is_two_plain_lines_without_a_terminal(tmp_path: Path):
    stream = io.StringIO()
    Console(tmp_path / "log", stream).run(python("print('inside')"), "Working")
    assert stream.getvalue().splitlines() == ["Working …", "Working: done in 0:00"]
    assert "inside" in (tmp_path / "log").read_text()


def test_a_terminal_sees_the_time_and_the_count_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "TICK_S", 0.02)
    stream = Terminal()
    code = "import time; print('[3/40] Building CXX object x.o', flush=True); time.sleep(0.3)"
    Console(tmp_path / "log", stream).run(python(code), "Building")
    assert "Building … 0:00 3/40" in stream.getvalue()
    assert stream.getvalue().endswith("Building: done in 0:00\n")


def test_without_a_terminal_a_long_step_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "TICK_S", 0.02)
    monkeypatch.setattr(console, "QUIET_TICK_S", 0.05)
    stream = io.StringIO()
    Console(tmp_path / "log", stream).run(python("import time; time.sleep(0.3)"), "Building")
    assert len(stream.getvalue().splitlines()) > 2


def test_a_failed_step_carries_its_diagnosis(tmp_path: Path):
    stream = io.StringIO()
    with pytest.raises(SetupError, match="free disk space") as failure:
        Console(tmp_path / "log", stream).run(
            python("print('No space left on device'); raise SystemExit(1)"), "Working"
        )
    assert failure.value.excerpt == "No space left on device"
    assert "failed" in stream.getvalue()


def test_only_the_failed_step_is_diagnosed(tmp_path: Path):
    speaker = Console(tmp_path / "log", io.StringIO())
    speaker.run(python("print('No space left on device')"), "Before")
    with pytest.raises(SetupError, match="After failed"):
        speaker.run(python("raise SystemExit(3)"), "After")


def test_a_command_that_is_not_there(tmp_path: Path):
    with pytest.raises(SetupError, match="cannot be started"):
        Console(tmp_path / "log", io.StringIO()).run([str(tmp_path / "nothing")], "Working")


@pytest.mark.skipif(os.name == "nt", reason="process groups are POSIX")
@pytest.mark.parametrize("deaf", [False, True])
def test_an_interrupted_step_ends_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool):
    monkeypatch.setattr(console, "PATIENCE_S", 0.3)
    marker = tmp_path / "grandchild"
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if deaf else ""
    inner = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    outer = f"{ignore}import subprocess, sys; subprocess.call([sys.executable, '-c', {inner!r}])"

    def interrupted(self, child, title, begin):
        while not (marker.exists() and marker.read_text()):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(Console, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Console(tmp_path / "log", io.StringIO()).run(python(outer), "Working")
    grandchild = int(marker.read_text())
    deadline = time.monotonic() + 5
    while alive(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended but was not waited for counts as ended."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_the_environment_of_a_step_is_the_one_given(tmp_path: Path):
    speaker = Console(tmp_path / "log", io.StringIO())
    speaker.run(python("import os; print(os.environ['CXXFLAGS'])"), "Working", {**os.environ, "CXXFLAGS": "-O9"})
    assert "-O9" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.9, "0:59"), (247, "4:07"), (3600, "60:00")])
def test_clock(seconds: float, text: str):
    assert console.clock(seconds) == text


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("[1/9] a\n[ 2/9] b\n", " 2/9"),
        ("[ 17%] Building\n", " 17%"),
        ("no count\n", ""),
        ("x[3/4] inside a line\n", ""),
    ],
)
def test_the_count_of_ninja_and_make(log: str, text: str):
    assert console.compiled(log) == text
