"""A TCP proxy that stands for a slow link: everything arrives later than it was sent, in order and whole.

`tc netem` does the same in the kernel, where it is built in and one may use it; this needs neither.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time

_CHUNK = 1 << 16


class SlowLink:
    """Listens on a free port of 127.0.0.1 and forwards to `target`.

    Args:
        target: HOST:PORT.
        delay_s: Seconds added to every round trip, half of them in each direction.
    """

    def __init__(self, target: str, delay_s: float = 0.0) -> None:
        host, port = target.split(":")
        self.delay_s = delay_s
        self.sent = self.received = 0
        """Bytes that went to the target, and that came from it."""
        self._target = (host, int(port))
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections; new ones are refused."""
        self.close()

    def close(self) -> None:
        """End the proxy and all its connections."""
        for connection in (self._server, *self._open):
            with contextlib.suppress(OSError):
                # Without lingering: a reset, as from a process that was killed.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            for connection in (near, far):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.append(connection)
            for source, sink, outwards in ((near, far, True), (far, near, False)):
                line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                threading.Thread(target=self._take, args=(source, line, outwards), daemon=True).start()
                threading.Thread(target=self._give, args=(sink, line), daemon=True).start()

    def _take(self, source: socket.socket, line: queue.SimpleQueue[tuple[float, bytes]], outwards: bool) -> None:
        data = b"."
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            if outwards:
                self.sent += len(data)
            else:
                self.received += len(data)
            line.put((time.monotonic() + self.delay_s / 2, data))

    @staticmethod
    def _give(sink: socket.socket, line: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, data = line.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return
