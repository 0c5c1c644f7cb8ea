"""`spec-local worker`: lend this machine's devices to a spec-local on another one."""

from __future__ import annotations

import argparse
import ipaddress
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.interrupt import Interrupt
from spec_local.errors import BackendError, UsageError, WorkerError
from spec_local.llama.signals import signal_name
from spec_local.words import harmless

if TYPE_CHECKING:
    from spec_local.llama.worker import WorkerOptions

PORT = 50052
_WHY = (
    "The protocol has neither passwords nor encryption: whoever reaches the port can read and change what the worker "
    "holds, and crash it."
)
_READY_S = 60.0
"""Seconds a server may take to begin: drivers of devices are loaded then."""
_SETTLED_S = 0.5
"""What is held is reported once it has not changed for so long."""
_SHORT_LIFE_S, _SHORT_LIVES = 5.0, 3
"""A server that dies so early so often in a row is not started again."""

EPILOG = f"""\
examples:
  spec-local worker                                  (this machine alone; reach it through an SSH tunnel)
  spec-local worker --device CUDA0 --memory 20GB
  spec-local worker --host 192.168.7.2 --allow-network

On the other machine:
  ssh -N -L {PORT}:127.0.0.1:{PORT} that-machine &
  spec-local chat --rpc 127.0.0.1:{PORT}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1)")
    parser.add_argument("--port", default=str(PORT), metavar="N", help=f"0 takes a free one (default: {PORT})")
    parser.add_argument("--allow-network", action="store_true", help="listen on an address others can reach")
    parser.add_argument(
        "--device", metavar="NAMES", help="devices to lend, comma-separated (default: every GPU, or CPU)"
    )
    parser.add_argument("--memory", metavar="SIZE", help="most to hold on each device, as 20GB (default: all)")
    parser.add_argument("--threads", default="0", metavar="N", help="CPU threads (default: physical cores)")
    parser.add_argument("--cache", metavar="DIR", help="keep large tensors here, so that they need not be sent again")


def run(arguments: Any) -> int:
    """Serve until Ctrl-C."""
    host = _address(arguments.host)
    if not ipaddress.ip_address(host).is_loopback:
        if not arguments.allow_network:
            raise UsageError(
                f"{arguments.host} can be reached by others. {_WHY}",
                "Keep 127.0.0.1 and use an SSH tunnel (see --help), or add --allow-network on a private network.",
            )
        _say(f"WARNING  {_WHY} Listen on a private network only; an SSH tunnel needs no open port.")
    port = _free_port(host, _number(arguments.port, "--port", 65535))
    from spec_local.llama.worker import WorkerOptions, served_devices

    names = tuple(name.strip() for name in arguments.device.split(",")) if arguments.device else ()
    options = WorkerOptions(
        endpoint=f"{host}:{port}",
        devices=tuple(device.name for device in served_devices(names)),
        memory=None if arguments.memory is None else parse_bytes(arguments.memory),
        threads=_number(arguments.threads, "--threads", 1024),
        cache_folder=None if arguments.cache is None else _folder(arguments.cache),
    )
    with Interrupt() as interrupt:
        _Watch(options, interrupt, arguments.verbose).run()
    _say("worker stopped")
    return ExitCode.OK


class _Watch:
    """Runs the server in a process of its own, tells what it does, and starts it again when it dies.

    Args:
        options: What to serve.
        interrupt: When to stop.
        verbose: Show the server's own lines too.
    """

    def __init__(self, options: WorkerOptions, interrupt: Interrupt, verbose: bool) -> None:
        self._options = options
        self._verbose = verbose
        self._interrupt = interrupt
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._held: dict[str, int] = {}
        self._most = 0
        self._told = 0
        self._changed = 0.0
        self._last_word = ""

    def run(self) -> None:
        """Until the interrupt; raises `BackendError` where the server cannot be kept alive."""
        short_lives = 0
        while not self._interrupt.seen:
            started = time.monotonic()
            server = self._start()
            was_ready = False
            try:
                was_ready = self._wait_until_ready(server)
                if was_ready:
                    self._tell(server)
            finally:
                _end(server)
            if self._interrupt.seen:
                return
            short_lives = short_lives + 1 if time.monotonic() - started < _SHORT_LIFE_S else 0
            how = f"died with {signal_name(server.returncode)}" if server.returncode < 0 else "ended"
            message = f"The server {how}{f': {self._last_word}' if self._last_word else '.'}"
            if short_lives >= _SHORT_LIVES or not was_ready:
                raise BackendError(message, "`spec-local doctor` shows which devices compute here.")
            _say(f"{message} Started again; programs that used it must load their model anew.")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "spec_local.llama.worker", self._options.to_json()]
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
        self._lines, self._last_word, self._held, self._most = queue.SimpleQueue(), "", {}, 0
        threading.Thread(target=self._read, args=(server, self._lines), daemon=True).start()
        return server

    @staticmethod
    def _read(server: subprocess.Popen[bytes], lines: queue.SimpleQueue[str | None]) -> None:
        assert server.stdout is not None
        for line in server.stdout:
            lines.put(line.decode("utf-8", "replace").strip())
        lines.put(None)

    def _wait_until_ready(self, server: subprocess.Popen[bytes]) -> bool:
        """Ask the server as a client would, until it answers; say so. False where it ended instead."""
        from spec_local.llama.library import build_info
        from spec_local.llama.rpc import PROTOCOL, ask_workers, split_endpoint
        from spec_local.models_manifest import show_bytes

        host, port = split_endpoint(self._options.endpoint)
        deadline = time.monotonic() + _READY_S
        while server.poll() is None and not self._interrupt.seen:
            try:
                (found,) = ask_workers([f"127.0.0.1:{port}" if host == "0.0.0.0" else self._options.endpoint], 2.0)
            except WorkerError as error:
                if time.monotonic() > deadline:
                    raise BackendError(f"The server does not answer: {error.message}") from error
                time.sleep(0.05)
                continue
            devices = "; ".join(
                f"{name}, {show_bytes(device.free_bytes)} of {show_bytes(device.total_bytes)} free"
                for name, device in zip(self._options.devices, found.devices, strict=True)
            )
            version = ".".join(map(str, PROTOCOL))
            _say(f"worker ready at {self._options.endpoint}: {devices}")
            _say(f"  llama.cpp {build_info()['llama_cpp']}, RPC protocol {version}; Ctrl-C stops")
            return True
        while (line := self._lines.get()) is not None:
            self._last_word = line or self._last_word
        server.wait()
        return False

    def _tell(self, server: subprocess.Popen[bytes]) -> None:
        """Say what the server does, until it ends or is to stop."""
        from spec_local.llama.worker import CLOSED, HELD
        from spec_local.models_manifest import show_bytes

        while not self._interrupt.seen:
            try:
                line = self._lines.get(timeout=0.1)
            except queue.Empty:
                self._tell_held()
                continue
            if line is None:
                server.wait()
                return
            if self._verbose:
                _say(f"  {line}")
            if line == CLOSED:
                if self._most:
                    _say(f"the program has gone; at most {show_bytes(self._most)} were held for it")
                self._most = self._told = 0
            elif line.startswith(f"{HELD} "):
                _, name, held = line.split()
                if not self._most and int(held):
                    _say("a program has connected")
                self._held[name] = int(held)
                self._most = max(self._most, sum(self._held.values()))
                self._changed = time.monotonic()
            else:
                self._last_word = line or self._last_word

    def _tell_held(self) -> None:
        """Say what is held, once it has settled."""
        from spec_local.models_manifest import show_bytes

        total = sum(self._held.values())
        if total and total != self._told and time.monotonic() - self._changed > _SETTLED_S:
            self._told = total
            _say("holding " + ", ".join(f"{show_bytes(held)} on {name}" for name, held in self._held.items()))


def parse_bytes(text: str) -> int:
    """Bytes of `20GB`, `512 MB`, `1.5GiB` or a plain number.

    Raises:
        UsageError: It is something else, or nothing.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?\s*", text, re.IGNORECASE)
    size = 0
    if found is not None:
        number, unit, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower()) if unit else 0))
    if size < 1:
        raise UsageError(f"--memory cannot be {text!r}.", "Give a size such as 20GB or 512MB.")
    return size


def _address(host: str) -> str:
    """The IPv4 address in numbers, which is all llama.cpp takes."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UsageError(f"--host cannot be {host!r}: it has no IPv4 address.") from error


def _free_port(host: str, port: int) -> int:
    """The port, found out to be free; one that is, for 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name != "nt":  # there it would let two programs share a port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"{host}:{port} cannot be listened on: {error.strerror or error}.", "Choose another --port or --host."
            ) from error
        found: int = probe.getsockname()[1]
        return found


def _number(text: str, flag: str, most: int) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= most:
        raise UsageError(f"{flag} cannot be {text!r}: it takes a number from 0 to {most}.")
    return number


def _folder(text: str) -> str:
    folder = Path(text).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--cache {text} cannot be used: {error.strerror or error}.") from error
    return str(folder)


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.kill()  # it holds nothing that could be lost
    server.wait()
    assert server.stdin is not None
    server.stdin.close()


def _say(text: str) -> None:
    print(harmless(text), flush=True)
