"""What the set-up says while it works: one line per step, on standard error, with the time it takes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from bootstrapping.failures import SetupError, diagnose

TICK_S = 0.2
PATIENCE_S = 5.0
QUIET_TICK_S = 60.0  # without a terminal, a sign of life this often
COUNT = re.compile(r"^\s*\[\s*(\d+/\d+|\d+%)\]", re.MULTILINE)  # of Ninja and Make


class Runner(Protocol):
    """Runs one command of the set-up."""

    def __call__(self, command: Sequence[str], title: str, environment: Mapping[str, str] | None = None) -> None:
        """Run it to its end.

        Raises:
            SetupError: It failed; the sentence comes from what it printed.
        """


def clock(seconds: float) -> str:
    """Minutes and seconds, as 4:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def compiled(log: str) -> str:
    """How far a build is by its own count, as " 120/310"; empty where it does not count."""
    counts = COUNT.findall(log)
    return f" {counts[-1]}" if counts else ""


class Console:
    """Steps and notes for the person who waits.

    Args:
        log: The file that takes the tools' own output.
        stream: Where to write, standard error unless given; on a terminal the line of a step changes as it goes.
    """

    def __init__(self, log: Path, stream: TextIO | None = None) -> None:
        self.log = log
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()

    def say(self, text: str) -> None:
        """Write one whole line."""
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def run(self, command: Sequence[str], title: str, environment: Mapping[str, str] | None = None) -> None:
        """Run a command with its output in the log and its title and time on the screen.

        Raises:
            SetupError: It failed, or could not be started.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            begin = log.tell()
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=os.name == "posix",
                )
            except OSError as error:
                raise SetupError(f"{command[0]} cannot be started: {error.strerror}.") from error
            try:
                status, seconds = self._watch(child, title, begin)
            except BaseException:
                end(child)
                self._erase()
                raise
        if status != 0:
            self._line(f"{title}: failed after {clock(seconds)}")
            raise diagnose(self._written(begin), title)
        self._line(f"{title}: done in {clock(seconds)}")

    def _watch(self, child: subprocess.Popen[bytes], title: str, begin: int) -> tuple[int, float]:
        started = time.monotonic()
        shown = started
        if not self.live:
            self.say(f"{title} …")
        while True:
            try:
                return child.wait(TICK_S), time.monotonic() - started
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                if self.live or now - shown >= QUIET_TICK_S:
                    shown = now
                    self._tick(f"{title} … {clock(now - started)}{compiled(self._written(begin)[-4096:])}")

    def _written(self, begin: int) -> str:
        with self.log.open("rb") as file:
            file.seek(begin)
            return file.read().decode(errors="replace")

    def _tick(self, text: str) -> None:
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r\x1b[2K{text[:width]}")
            self.stream.flush()
        else:
            self.say(text)

    def _line(self, text: str) -> None:
        self._erase()
        self.say(text)

    def _erase(self) -> None:
        if self.live:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()


def end(child: subprocess.Popen[bytes]) -> None:
    """End a child and everything that it started, and wait for it.

    It is asked as Ctrl-C asks, so that pip takes back what it has half installed, and told only if it does not listen.
    """
    if sys.platform == "win32":
        child.terminate()
        child.wait()
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(PATIENCE_S)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            child.wait()
            return


def report(error: SetupError, console: Console) -> None:
    """Tell a failure: the tool's last words and where the rest is, then the sentence and the hint."""
    if error.excerpt:
        for line in error.excerpt.splitlines():
            console.say(f"    {line}")
        console.say(f"(the whole log: {console.log})")
    console.say(error.message)
    if error.hint:
        console.say(error.hint)
