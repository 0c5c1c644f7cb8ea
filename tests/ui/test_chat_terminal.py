"""Case 48: the program in a real terminal, under a real engine of random weights: what keys and signals do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_local.session.store import Store

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal"),
    pytest.mark.slow,
]

PATIENCE_S = 60.0
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b.")


class Terminal:
    """A process with a pseudo-terminal of its own, and all that it wrote there."""

    def __init__(self, command: list[str], environment: dict[str, str], size: tuple[int, int] = (100, 30)) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.modes_before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.set_blocking(self.master, False)
        self.output = ""

    def read(self) -> None:
        try:
            while data := os.read(self.master, 65536):
                self.output += data.decode("utf-8", "replace")
        except BlockingIOError:
            pass

    @property
    def text(self) -> str:
        """What was written, without the sequences that move and colour."""
        return _SEQUENCE.sub("", self.output)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            self.read()
            if condition():
                return
            assert self.process.poll() is None, f"it ended while waiting for {what}:\n{self.text[-2000:]}"
            assert time.monotonic() < end, f"waited for {what} in vain:\n{self.text[-2000:]}"
            time.sleep(0.02)

    def sees(self, text: str) -> None:
        """Wait until something is written, from now on."""
        begin = len(self.text)
        self.wait_for(lambda: text in self.text[max(0, begin - 200) :], repr(text))

    def keys(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def ended(self) -> int:
        """Wait for the end; the terminal must be as it was."""
        import termios

        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < end, "it does not end"
            time.sleep(0.02)
        self.read()
        assert termios.tcgetattr(self.slave) == self.modes_before
        if "\x1b[?1049h" in self.output:
            assert "\x1b[?1049l" in self.output, "the alternate screen was left"
            assert self.output.rindex("\x1b[?25h") > self.output.rindex("\x1b[?25l"), "the cursor is back"
        return int(self.process.returncode)


@pytest.fixture
def start(tmp_path: Path, tiny_target: Path, tiny_draft: Path):
    """Starts the chat, and says where its conversations are."""
    started: list[Terminal] = []
    environment = {**os.environ, "SPEC_LOCAL_HOME": str(tmp_path), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    environment.pop("NO_COLOR", None)

    def begin(*more: str, size: tuple[int, int] = (100, 30)) -> Terminal:
        command = [sys.executable, "-m", "spec_local.cli.main", "chat", "-m", str(tiny_target), "-d", str(tiny_draft)]
        started.append(Terminal([*command, "--threads", "1", "--min-tokens", "3900", *more], environment, size))
        return started[-1]

    yield begin
    for terminal in started:
        if terminal.process.poll() is None:
            terminal.process.kill()


def conversation(home: Path) -> list[tuple[str, str]]:
    store = Store(home / "data" / "conversations.sqlite3")
    return [(m.role, m.state) for m in store.messages(store.latest() or 0)]


def test_ctrl_c_stops_the_answer_and_then_leaves(start, tmp_path):
    terminal = start()
    terminal.sees("target.gguf + draft.gguf")
    terminal.keys("abcd hello\r")
    terminal.sees("Esc stops")
    terminal.wait_for(lambda: "tok/s" in terminal.text, "the first figures")
    terminal.keys("\x03")
    begin = time.monotonic()
    terminal.sees("stopped here")
    assert time.monotonic() - begin < 5
    terminal.keys("\x03")
    terminal.sees("Ctrl+C again leaves")
    terminal.keys("\x03")
    assert terminal.ended() == 0
    assert conversation(tmp_path) == [("user", "done"), ("assistant", "stopped")]


def test_it_shows_at_once_that_it_starts_and_then_the_screen(start):
    terminal = start()
    terminal.sees("target.gguf + draft.gguf")
    frame, sign, screen = (terminal.output.index(text) for text in ("\x1b[?1049h", "is starting", "\x1b[?1004h"))
    assert frame < sign < screen
    terminal.keys("\x11")
    assert terminal.ended() == 0


def test_what_is_typed_before_the_screen_is_there_is_not_lost(start):
    terminal = start()
    terminal.wait_for(lambda: "is starting" in terminal.output, "the first frame")
    terminal.keys("early words")
    terminal.sees("target.gguf + draft.gguf")
    terminal.keys("\r")
    terminal.sees("Esc stops")
    terminal.keys("\x03")
    terminal.sees("stopped here")
    terminal.keys("\x11")
    assert terminal.ended() == 0
    assert "early words" in terminal.text


def test_a_termination_while_answering_keeps_the_answer_and_restores_the_terminal(start, tmp_path):
    terminal = start()
    terminal.sees("target.gguf + draft.gguf")
    terminal.keys("abcd hello\r")
    terminal.wait_for(lambda: "tok/s" in terminal.text, "the first figures")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ended() == 128 + signal.SIGTERM
    assert conversation(tmp_path) == [("user", "done"), ("assistant", "stopped")]


def test_leaving_at_once_while_it_loads(start):
    terminal = start()
    terminal.wait_for(lambda: "Enter sends" in terminal.text, "the first picture")
    terminal.keys("\x11")  # Ctrl+Q
    assert terminal.ended() == 0


def test_a_killed_program_resumes_with_what_it_had(start, tmp_path):
    terminal = start()
    terminal.sees("target.gguf + draft.gguf")
    terminal.keys("abcd hello\r")
    terminal.wait_for(lambda: "tok/s" in terminal.text, "the first figures")
    terminal.process.kill()
    terminal.process.wait()
    assert conversation(tmp_path) == [("user", "done"), ("assistant", "writing")]
    again = start("--continue")
    again.sees("abcd hello")
    again.sees("cut off here")
    again.keys("\x11")
    assert again.ended() == 0


def test_a_terminal_that_is_too_small_is_a_sentence(start):
    terminal = start(size=(20, 4))
    assert terminal.ended() == 2
    assert "20 columns and 4 rows" in terminal.text


def test_no_terminal_is_a_sentence():
    done = subprocess.run(
        [sys.executable, "-m", "spec_local.cli.main", "chat"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
    assert "Traceback" not in done.stderr
