"""llama.cpp's RPC workers, asked from Python: are they there, do they speak our protocol, what can they hold?

llama.cpp itself ends the process where a worker is missing or speaks another version, and waits for ever for one that
is busy. So every worker is asked here first, over the same protocol and with a time limit.

A message is `command: u8, size: u64, payload`, its answer `size: u64, payload`, all little-endian.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from spec_local.errors import UsageError, WorkerError
from spec_local.llama.devices import Device

PROTOCOL = (7, 0, 0)
"""Version of the protocol in the llama.cpp this program is pinned to; a test asks the library itself."""
MOST_WORKERS = 16
"""llama.cpp's `GGML_RPC_MAX_SERVERS`."""
TIMEOUT_S = 8.0
"""A worker that takes longer for one answer is not there, or serves somebody else."""

_HELLO, _DEVICE_COUNT, _DEVICE_MEMORY = 14, 15, 11
_CAPABILITIES = 24
"""Bytes of transport capabilities in a greeting; all zero is plain TCP."""
_START = "Start it there with `spec-local worker`; a tunnel must be open."


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that answered."""

    endpoint: str
    """HOST:PORT, as llama.cpp takes it."""
    devices: tuple[Device, ...]
    """What it computes on, by the names llama.cpp gives them here: RPC0, RPC1, … over all workers."""
    round_trip_s: float
    """Seconds from a small question to its answer."""


def ask_workers(endpoints: Sequence[str], timeout_s: float = TIMEOUT_S) -> tuple[Worker, ...]:
    """Ask every worker for its devices and their memory.

    Args:
        endpoints: HOST:PORT of each, in the order their devices are numbered.
        timeout_s: Seconds each may take for one answer.

    Raises:
        UsageError: An endpoint is not HOST:PORT, or there are too many.
        WorkerError: A worker is not reachable, is busy, or speaks another version of the protocol.
    """
    endpoints = list(dict.fromkeys(endpoints))
    if len(endpoints) > MOST_WORKERS:
        raise UsageError(f"{len(endpoints)} workers are more than the {MOST_WORKERS} llama.cpp can use.")
    workers: list[Worker] = []
    for endpoint in endpoints:
        memory, round_trip_s = _ask(endpoint, timeout_s)
        first = sum(len(worker.devices) for worker in workers)
        devices = tuple(
            Device(f"RPC{first + index}", endpoint, "worker", free, total, 0)
            for index, (free, total) in enumerate(memory)
        )
        workers.append(Worker(endpoint, devices, round_trip_s))
    return tuple(workers)


def missing_workers(endpoints: Sequence[str], timeout_s: float = 2.0) -> list[WorkerError]:
    """Why the workers that do not answer now do not; empty where all do."""
    found = []
    for endpoint in endpoints:
        try:
            _ask(endpoint, timeout_s)
        except WorkerError as error:
            found.append(error)
    return found


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`.

    Raises:
        UsageError: It is something else.
    """
    host, _, port = endpoint.partition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"A worker is HOST:PORT, not {endpoint!r}.", "For example --rpc 127.0.0.1:50052.")
    return host, int(port)


def _ask(endpoint: str, timeout_s: float) -> tuple[list[tuple[int, int]], float]:
    """(free, total) bytes of each device, and the seconds of one question."""
    host, port = split_endpoint(endpoint)
    try:
        address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]  # all llama.cpp looks up
    except OSError as error:
        raise WorkerError(f"There is no worker at {endpoint}: {host} has no IPv4 address.", _START) from error
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(address)
        except TimeoutError as error:
            raise WorkerError(f"The worker {endpoint} cannot be reached within {timeout_s:g} s.", _START) from error
        except OSError as error:
            raise WorkerError(f"No worker listens at {endpoint}: {error.strerror or error}.", _START) from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = _question(connection, _HELLO, bytes(_CAPABILITIES), 4 + _CAPABILITIES)
            if (version := tuple(greeting[:3])) != PROTOCOL:
                theirs, ours = (".".join(map(str, v)) for v in (version, PROTOCOL))
                raise WorkerError(
                    f"The worker {endpoint} speaks version {theirs} of llama.cpp's RPC protocol, this program {ours}.",
                    "Install the same version of spec-local on both machines.",
                )
            started = time.perf_counter()
            (count,) = struct.unpack("<I", _question(connection, _DEVICE_COUNT, b"", 4))
            round_trip_s = time.perf_counter() - started
            numbers = (struct.pack("<I", index) for index in range(min(count, 64)))
            memory = [struct.unpack("<QQ", _question(connection, _DEVICE_MEMORY, n, 16)) for n in numbers]
        except TimeoutError as error:
            connection.close()
            if _is_web_server(host, port, timeout_s):
                raise WorkerError(f"{endpoint} is a web server, not a worker.", _START) from error
            raise WorkerError(
                f"{endpoint} takes connections but does not answer within {timeout_s:g} s: it is a worker that another "
                "program uses or that hangs, or no worker at all.",
                "Look at what listens there; a worker serves one program at a time, so start another on another port.",
            ) from error
        except (OSError, ValueError, struct.error) as error:
            raise WorkerError(
                f"{endpoint} does not answer like a worker: {error}.",
                f"It must be `spec-local worker` of the same version ({'.'.join(map(str, PROTOCOL))} of the protocol); "
                "behind a tunnel, it must be running.",
            ) from error
    if not memory:
        raise WorkerError(f"The worker {endpoint} has no devices.", _START)
    return [(free, total) for free, total in memory], round_trip_s


def _is_web_server(host: str, port: int, timeout_s: float) -> bool:
    """Whether a service that has nothing to say to a worker's question answers a web browser's."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def _question(connection: socket.socket, command: int, payload: bytes, size: int) -> bytes:
    """Send one message and receive its answer of `size` bytes; raises `OSError` or `ValueError`."""
    connection.sendall(struct.pack("<BQ", command, len(payload)) + payload)
    (announced,) = struct.unpack("<Q", _receive(connection, 8))
    if announced != size:
        raise ValueError(f"an answer of {announced} bytes instead of {size}")
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("it closed the connection")
        data += part
    return data
