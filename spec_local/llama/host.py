"""The child process of a `hosted.Host`: llama.cpp with its workers, asked through a pipe.

    python -m spec_local.llama.host quiet 127.0.0.1:50052 …

It answers one request after the other and ends at the end of its input, when its parent is gone, or when llama.cpp ends
it because a worker is.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from spec_local.errors import BackendError, SpecLocalError
from spec_local.language_model import Chunk, Logits, States
from spec_local.llama.hosted import FACTS, Found
from spec_local.llama.memory_probe import classify
from spec_local.llama.model import Model, Offload
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.padded import open_context
from spec_local.llama.rpc import split_endpoint
from spec_local.llama.shared_memory import CANCEL_LOAD, FLAGS, map_shared

_DEAD_S = 8
"""Seconds without a sign of life after which a connection counts as lost (a cable, a machine without power)."""
_SENT_AGAIN = 3
_LOOK_S = 0.5


class _Hosted:
    """One context, and the memory its rows go to."""

    def __init__(self, model: Model, options: ContextOptions, place: tuple[str, int]) -> None:
        self.model = model
        self.memory = map_shared(*place)
        self.rows: Logits = np.frombuffer(self.memory, np.float32, offset=FLAGS).reshape(-1, model.vocabulary.size)
        flag = (ctypes.c_char * 2).from_buffer(self.memory)  # the flag itself, and the zero behind it
        self.context = open_context(model, options, abort_flag=flag)
        self.states: States | None = None

    def decode(self, chunks: list[tuple[int, list[int], int, bool]], width: int) -> None:
        self.context.width = lambda _rows: width
        _fill(self.rows, self.context.decode([Chunk(*chunk) for chunk in chunks]))
        if self.states is not None:
            _fill(self.states, [states for states in self.context.states() if states is not None])

    def share_states(self, place: tuple[str, int]) -> None:
        """Where hidden states go."""
        self.states = np.frombuffer(map_shared(*place), np.float32).reshape(-1, self.context.state_width)

    def found(self) -> Found:
        """What the other side must know of it."""
        memory = classify(self.context)
        return Found(
            facts={fact: getattr(self.model, fact) for fact in FACTS},
            memory=memory,
            n_batch=self.context.n_batch,
            state_width=self.context.state_width,
            no_states=self.context.no_states,
        )

    def lengths(self) -> list[int]:
        return [self.context.length(seq) for seq in range(self.context.options.n_seq)]


def _fill(shared: Logits, parts: list[Logits]) -> None:
    """Copy rows into shared memory, one part behind the other."""
    start = 0
    for part in parts:
        shared[start : start + len(part)] = part
        start += len(part)


class _Server:
    """Carries out requests; the methods are named like them."""

    def __init__(self, answers: BinaryIO) -> None:
        self._answers = answers
        self._contexts: dict[str, _Hosted] = {}
        self._closed: list[_Hosted] = []

    def answer(self, kind: str, value: Any) -> None:
        pickle.dump((kind, value), self._answers, pickle.HIGHEST_PROTOCOL)
        self._answers.flush()

    def handle(self, what: str, name: str, *arguments: Any) -> Any:
        if what in ("open", "sibling", "close"):
            return getattr(self, what)(name, *arguments)
        hosted = self._contexts[name]
        value: Any = None
        try:
            if what in ("decode", "share_states"):
                getattr(hosted, what)(*arguments)
            else:
                value = getattr(hosted.context, what)(*arguments)
        except SpecLocalError as error:
            value = error
        return value, hosted.lengths()

    def open(self, name: str, place: tuple[str, int], options: ContextOptions, path: Path, offload: Offload) -> Found:
        memory, told = map_shared(*place), 0.0

        def progress(fraction: float) -> bool:
            nonlocal told
            if fraction >= 1.0 or time.monotonic() - told > 0.05:
                told = time.monotonic()
                self.answer("progress", fraction)
            return not memory[CANCEL_LOAD]

        model = Model(path, offload, progress)
        try:
            self._contexts[name] = hosted = _Hosted(model, options, place)
        except BaseException:
            model.close()
            raise
        return hosted.found()

    def sibling(self, name: str, place: tuple[str, int], options: ContextOptions, of: str) -> Found:
        self._contexts[name] = hosted = _Hosted(self._contexts[of].model, options, place)
        return hosted.found()

    def close(self, name: str) -> None:
        """Free a context as soon as none is in use any more.

        Whenever a buffer is freed, llama.cpp's server forgets the graphs it was to repeat. Its client does not know,
        asks for one again in the next pass of another context, and the server hangs up.
        """
        self._closed.append(self._contexts.pop(name))
        if not self._contexts:
            for hosted in self._closed:
                hosted.context.close()
            for hosted in self._closed:
                hosted.model.close()
            self._closed.clear()


def main(endpoints: list[str]) -> None:
    """Serve the parent until it closes the pipe."""
    # What C writes to standard output must not get among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C is for the parent, which closes the pipe
        signal.signal(number, signal.SIG_IGN)
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # dying is part of the plan
    from spec_local.llama.devices import add_workers

    threading.Thread(target=_watch, args=(os.getppid(), endpoints), daemon=True).start()
    server = _Server(answers)
    connected = False
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            if not connected:  # here, so that a lost worker is lost during a request
                add_workers(endpoints)
                connected = True
            server.answer("done", server.handle(*request))
        except SpecLocalError as error:
            server.answer("error", error)
        except Exception as error:
            server.answer("error", BackendError(f"Something unexpected happened: {type(error).__name__}: {error}."))
    for name in list(server._contexts):
        server.close(name)


def _watch(parent: int, endpoints: list[str]) -> None:
    """End with the parent, and break connections to workers whose machine is gone without a word."""
    ports = {split_endpoint(endpoint)[1] for endpoint in endpoints}
    while os.getppid() == parent:
        for connection in _connections(ports):
            with connection, suppress(OSError):
                _keep_alive(connection)
                if _is_dead(connection):
                    connection.shutdown(socket.SHUT_RDWR)  # llama.cpp, which waits on it, sees its end
        time.sleep(_LOOK_S)
    os._exit(1)


def _connections(ports: set[int]) -> Iterator[socket.socket]:
    """This process's connections to workers, as duplicates to be closed. llama.cpp does not hand them out."""
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir("/dev/fd")
    for fd in map(int, filter(str.isdecimal, names)):
        connection: socket.socket | None = None
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                connection = socket.socket(fileno=os.dup(fd))
                if connection.family == socket.AF_INET and connection.getpeername()[1] in ports:
                    yield connection
                    continue
        if connection is not None:
            connection.close()


def _keep_alive(connection: socket.socket) -> None:
    """Have the system ask after a connection on which nothing is said."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _DEAD_S // 2),  # Linux
        ("TCP_KEEPALIVE", _DEAD_S // 2),  # macOS
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", _DEAD_S // 2),
        ("TCP_RXT_CONNDROPTIME", _DEAD_S),  # macOS: give up sending again after so long
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_dead(connection: socket.socket) -> bool:
    """Whether what was sent is being sent again and again and nobody has acknowledged anything for a while.

    Not TCP_USER_TIMEOUT, which would also break a connection to a worker that computes for long and does not read
    meanwhile. Linux only: `tcpi_retransmits` and `tcpi_last_ack_recv` of `struct tcp_info`.
    """
    if sys.platform != "linux":
        return False
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    (last_ack_ms,) = struct.unpack_from("=I", info, 56)
    return info[2] >= _SENT_AGAIN and last_ack_ms > 1000 * _DEAD_S


if __name__ == "__main__":
    if sys.argv[1] == "verbose":
        from spec_local.llama.library import set_verbose

        set_verbose(True)
    main(sys.argv[2:])
