"""`spec-local worker` as a process of its own, for tests."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil

PATIENCE_S = 120.0
"""Machines that run tests are busy."""


class RunningWorker:
    """A worker on a free port, ready when this is made."""

    def __init__(self, *flags: str, port: int = 0, before: tuple[str, ...] = ()) -> None:
        command = [
            *before,
            sys.executable,
            "-m",
            "spec_local.cli.main",
            "worker",
            "--port",
            str(port),
            "--threads",
            "1",
            *flags,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        """What it has said."""
        threading.Thread(target=self._read, daemon=True).start()
        self.wait_for("worker ready at ")
        self.endpoint = self.said("worker ready at ")[0].split()[3].rstrip(":")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def port(self) -> int:
        return int(self.endpoint.split(":")[1])

    def said(self, beginning: str) -> list[str]:
        return [line for line in self.lines if line.startswith(beginning)]

    def wait_for(self, beginning: str, count: int = 1) -> list[str]:
        wait_until(lambda: len(self.said(beginning)) >= count or self.process.poll() is not None)
        assert len(self.said(beginning)) >= count, self.lines
        return self.said(beginning)

    def kill(self) -> None:
        """As when somebody pulls the plug of the process: no word, no clean-up."""
        for child in psutil.Process(self.process.pid).children():
            child.kill()
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE_S)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
