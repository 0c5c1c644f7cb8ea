"""llama.cpp's server in processes of its own: their virtual environment, and one process for each setting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparing.sweep import Setting

VERSION = "2026.10.11549"
"""Of xllamacpp: llama.cpp's server as a Python package."""
_CHILD = Path(__file__).with_name("llama_server.py")


class ServerError(Exception):
    """The other side could not be set up, or failed."""


def environment(folder: Path) -> Path:
    """The virtual environment's Python; made, and xllamacpp installed, where it is not there yet.

    Raises:
        ServerError: It could not be made.
    """
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    check = "import xllamacpp; assert xllamacpp.__version__ == '" + VERSION + "', xllamacpp.__version__"
    if python.exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0:
        return python
    print(f"making {folder} with xllamacpp {VERSION}", file=sys.stderr)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", f"xllamacpp=={VERSION}"],
    ):
        done = subprocess.run(command, stdout=sys.stderr)
        if done.returncode:
            raise ServerError(f"`{' '.join(command)}` failed with status {done.returncode}.")
    return python


@dataclass(frozen=True)
class Files:
    """What both sides run."""

    target: Path
    draft: Path | None
    threads: int
    n_ctx: int
    """Tokens of one slot."""
    slots: int = 1


@dataclass(frozen=True)
class Answer:
    """One answer of the server."""

    text: str
    tokens: int
    decode_s: float
    """From the first token to the last: `tokens` − 1 of them."""
    drafted: int
    accepted: int

    @property
    def tokens_per_s(self) -> float:
        """Decode speed."""
        return (self.tokens - 1) / self.decode_s


class Server:
    """One process. Loading is over when the constructor returns.

    Raises:
        ServerError: It does not start with this setting.
    """

    def __init__(self, python: Path, files: Files, setting: Setting) -> None:
        wanted = {
            "target": str(files.target),
            "draft": None if files.draft is None else str(files.draft),
            "threads": files.threads,
            "n_ctx": files.n_ctx,
            "slots": files.slots,
            **setting.as_dict(),
        }
        self.setting = setting
        self._process = subprocess.Popen(
            [str(python), str(_CHILD), json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the script, which closes its servers
        )
        self._read()

    def ask(self, request: dict[str, Any]) -> Answer:
        """One completion."""
        return _answer(self._send(request))

    def ask_all(self, requests: list[dict[str, Any]]) -> tuple[list[Answer], float]:
        """Many completions, in all slots at once, and the seconds they took together."""
        reply = self._send(requests)
        return [_answer(each) for each in reply["answers"]], float(reply["wall_s"])

    def _send(self, request: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ServerError(f"llama.cpp's server ({self.setting.name}) is gone: {error}.") from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerError(f"llama.cpp's server ({self.setting.name}) ended with status {self._process.wait()}.")
        reply = json.loads(line)
        if "error" in reply:
            self.close()
            raise ServerError(f"llama.cpp's server ({self.setting.name}) says: {reply['error']}")
        assert isinstance(reply, dict)
        return reply

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def _answer(reply: dict[str, Any]) -> Answer:
    timings = reply["timings"]
    return Answer(
        reply["text"],
        int(timings["predicted_n"]),
        timings["predicted_ms"] / 1e3,
        int(timings.get("draft_n", 0)),
        int(timings.get("draft_n_accepted", 0)),
    )


class Pool:
    """At most `room` servers in memory, the least recently used one ended first.

    Args:
        python: The virtual environment's.
        files: Models and threads.
        room: Servers at a time, at least one.
        warm_up: Asked of every server after it has loaded, and not counted.
    """

    def __init__(self, python: Path, files: Files, room: int, warm_up: dict[str, Any]) -> None:
        self._python = python
        self._files = files
        self._room = room
        self._warm_up = warm_up
        self._servers: OrderedDict[str, Server] = OrderedDict()

    def get(self, setting: Setting) -> Server:
        """The server with this setting, started where it does not run."""
        if setting.name in self._servers:
            self._servers.move_to_end(setting.name)
            return self._servers[setting.name]
        while len(self._servers) >= self._room:
            self._servers.popitem(last=False)[1].close()
        server = Server(self._python, self._files, setting)
        self._servers[setting.name] = server
        server.ask(self._warm_up)
        return server

    def close(self) -> None:
        """End all of them."""
        while self._servers:
            self._servers.popitem()[1].close()
