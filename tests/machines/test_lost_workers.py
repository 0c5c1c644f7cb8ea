"""Workers that are missing, strange, or die before, while and after a model is loaded: a sentence, and soon."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from running_worker import RunningWorker
from slow_link import SlowLink

import spec_local
from spec_local.cli.main import main
from spec_local.errors import Aborted, ModelError, UsageError, WorkerError
from spec_local.llama import hosted, rpc
from spec_local.llama.hosted import Host
from spec_local.llama.model import Offload
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.rpc import PROTOCOL, ask_workers
from spec_local.sampling.params import Sampling
from spec_local.session.options import EngineOptions

pytestmark = pytest.mark.slow

BOUND_S = 10.0
"""Within this a person is told. Where the machine is given to others, a worker's process does not even get to die."""
TEXT = Sampling(seed=3, temperature=0.8, max_tokens=400, min_tokens=400)


def greeting(*version: int) -> bytes:
    return struct.pack("<Q", 28) + bytes(version) + bytes(25)


@contextlib.contextmanager
def impostor(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Something that listens where a worker should; `answer` is what it does with a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.close()


def newer(version: tuple[int, ...]) -> Callable[[socket.socket], object]:
    def answer(connection: socket.socket) -> None:
        connection.recv(64)
        connection.sendall(greeting(*version))
        connection.recv(64)

    return answer


def silent(connection: socket.socket) -> None:
    connection.recv(64)
    time.sleep(3)


def web_server(connection: socket.socket) -> None:
    if connection.recv(64).startswith(b"GET"):
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    else:
        connection.recv(64)  # the end of it


STRANGE: dict[str, tuple[Callable[[socket.socket], object], str]] = {
    "the next major version": (newer((PROTOCOL[0] + 1, 0, 0)), "speaks version 8.0.0"),
    "another set of operations": (newer((*PROTOCOL[:2], PROTOCOL[2] + 1)), "speaks version 7.0.1"),
    "no worker at all": (lambda c: c.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not answer like a worker"),
    "a tunnel to nowhere": (lambda c: c.recv(1), "does not answer like a worker: "),
    "silence": (silent, "a worker that another program uses or that hangs, or no worker at all"),
    "a web server that waits for more": (web_server, "is a web server, not a worker"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_usable_worker_is_refused_in_time(name: str) -> None:
    answer, said = STRANGE[name]
    with impostor(answer) as endpoint:
        started = time.monotonic()
        with pytest.raises(WorkerError, match=said) as caught:
            ask_workers([endpoint], timeout_s=0.5)
        assert time.monotonic() - started < BOUND_S
        assert endpoint in caught.value.message and caught.value.hint


def test_a_missing_worker_ends_every_command_with_a_sentence(
    target: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"prompt": "a"}\n', encoding="utf-8")
    model = ["-m", str(target), "-d", "none", "--rpc", endpoint]
    for command in (
        ["generate", "-p", "a", *model],
        ["generate", "--input", str(lines), "--output", str(tmp_path / "out.jsonl"), *model],
        ["bench", "--quick", *model],
        ["verify", "--quick", *model],
    ):
        assert main(command) == 4
        said = capsys.readouterr().err
        assert f"No worker listens at {endpoint}" in said and "spec-local worker" in said and "Traceback" not in said


def test_bad_endpoints_are_usage() -> None:
    for bad in ("localhost", "127.0.0.1:", ":50052", "127.0.0.1:0", "127.0.0.1:99999", "[::1]:50052"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            ask_workers([bad])
    with pytest.raises(UsageError, match="17 workers"):
        ask_workers([f"127.0.0.1:{port}" for port in range(1, 18)])
    with pytest.raises(WorkerError, match="no IPv4 address"):
        ask_workers(["no.such.host.invalid:1"])


def test_a_worker_in_use_says_so(mortal: RunningWorker) -> None:
    with socket.create_connection(("127.0.0.1", mortal.port)), pytest.raises(WorkerError, match="one program"):
        ask_workers([mortal.endpoint], timeout_s=0.5)
    assert ask_workers([mortal.endpoint])


def test_death_while_loading(mortal: RunningWorker, target: Path) -> None:
    link = SlowLink(mortal.endpoint)

    def cut_soon() -> None:
        while link.sent < 300_000:
            time.sleep(0.001)
        link.cut()

    threading.Thread(target=cut_soon, daemon=True).start()
    with Host([link.endpoint]) as host:
        with pytest.raises(WorkerError, match="lost while the model was loaded"):
            host.open(target, Offload(devices=("RPC0",)), ContextOptions(n_ctx=64))
        assert host.lost
    assert ask_workers([mortal.endpoint]), "the worker itself is well"


def test_death_during_prefill(mortal: RunningWorker, target: Path) -> None:
    link = SlowLink(mortal.endpoint)
    options = EngineOptions(n_ctx=2048, batch_size=32, threads=1, rpc=(link.endpoint,))
    with spec_local.load(target, draft="none", options=options) as engine:
        stream = engine.stream("the " * 900, on_prefill=lambda done, _total: link.cut() if done > 200 else None)
        started = time.monotonic()
        with pytest.raises(WorkerError, match="A worker was lost in the middle of a pass") as caught:
            list(stream)
        assert time.monotonic() - started < BOUND_S
        assert link.endpoint in caught.value.message and "Load again" in caught.value.hint


def test_death_in_the_middle_of_an_answer(mortal: RunningWorker, target: Path, draft: Path) -> None:
    options = EngineOptions(n_ctx=512, threads=1, rpc=(mortal.endpoint,))
    with spec_local.load(target, draft=draft, options=options) as engine:
        text = ""
        pieces = iter(engine.stream("hello", sampling=TEXT))
        while len(text) <= 20:
            text += next(pieces).text
        mortal.kill()
        died = time.monotonic()
        with pytest.raises(WorkerError, match="in the middle of a pass"):
            text += "".join(piece.text for piece in pieces)
        assert time.monotonic() - died < BOUND_S
        assert text
        with pytest.raises(WorkerError, match="lost") as again:
            engine.generate("hello")
        assert mortal.endpoint in again.value.message
    with spec_local.load(target, draft=draft, options=options.without_workers()) as engine:
        assert engine.generate("hello", sampling=TEXT).text.startswith(text), "the conversation can go on here"
    another = RunningWorker(port=mortal.port)
    try:
        with spec_local.load(target, draft=draft, options=options) as engine:
            assert engine.generate("hello", sampling=TEXT).text.startswith(text), "and there, once it is back"
    finally:
        another.stop()


def test_a_draft_lost_with_its_worker_costs_only_speed(mortal: RunningWorker, target: Path, draft: Path) -> None:
    """The target is here, so the answer goes on without the draft."""
    options = EngineOptions(
        n_ctx=512, threads=1, rpc=(mortal.endpoint,), device=("none",), draft_device=("RPC0",), draft_length=3
    )
    with spec_local.load(target, draft=draft, options=options) as engine:
        stream = engine.stream("hello", sampling=Sampling(seed=3, max_tokens=60, min_tokens=60))
        for count, _ in enumerate(stream):
            if count == 3:
                mortal.kill()
        assert len(stream.result.token_ids) == 60
        assert "A worker was lost" in stream.result.speculation_reason


def test_a_worker_that_hangs_is_left_when_one_asks(
    mortal: RunningWorker, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "PATIENCE_S", 1.0)
    options = EngineOptions(n_ctx=512, threads=1, rpc=(mortal.endpoint,))
    monkeypatch.setattr(rpc, "TIMEOUT_S", 1.0)
    with spec_local.load(target, draft="none", options=options) as engine:
        processes = [psutil.Process(mortal.process.pid), *psutil.Process(mortal.process.pid).children()]

        def hang_and_cancel() -> None:
            for process in processes:
                process.suspend()
            time.sleep(0.3)
            engine.cancel()

        stream = iter(engine.stream("hello", sampling=TEXT))
        next(stream)
        threading.Thread(target=hang_and_cancel, daemon=True).start()
        with pytest.raises(WorkerError, match="did not stop within 1 s: a worker hangs"):
            list(stream)
    for process in processes:
        process.resume()


def test_loading_can_be_cancelled_and_a_bad_file_is_no_lost_worker(
    mortal: RunningWorker, target: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(target.read_bytes()[:-1000])
    there, small = Offload(devices=("RPC0",)), ContextOptions(n_ctx=64)
    with Host([mortal.endpoint]) as host:
        with pytest.raises(Aborted, match="was cancelled"):
            host.open(target, there, small, lambda _fraction: False)
        with pytest.raises(ModelError, match="bad"):
            host.open(bad, there, small)
        host.open(target, there, small).close()
    children = psutil.Process(os.getpid()).children()
    assert not [child for child in children if "spec_local.llama.host" in " ".join(child.cmdline())], "none is left"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="makes a network namespace, which needs root")
def test_a_pulled_cable_is_noticed(target: Path) -> None:
    """The worker's machine says nothing more, not even that a connection is closed."""

    def ip(*words: str) -> int:
        return subprocess.run(["ip", *words], capture_output=True, check=False).returncode

    name = f"slt{os.getpid() % 10000}"
    try:
        if ip("netns", "add", name) or ip("link", "add", f"{name}a", "type", "veth", "peer", f"{name}b", "netns", name):
            pytest.skip("network namespaces are not allowed here")
        ip("addr", "add", "10.213.77.1/24", "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        ip("-n", name, "link", "set", "lo", "up")
        for words in (("addr", "add", "10.213.77.2/24", "dev", f"{name}b"), ("link", "set", f"{name}b", "up")):
            ip("-n", name, *words)
        worker = RunningWorker("--host", "10.213.77.2", "--allow-network", before=("ip", "netns", "exec", name))
        try:
            options = EngineOptions(n_ctx=512, threads=1, rpc=(worker.endpoint,))
            with spec_local.load(target, draft="none", options=options) as engine:
                pieces = iter(engine.stream("hello", sampling=TEXT))
                next(pieces)
                pulled_out = threading.Event()
                engine.loop.call(pulled_out.wait)  # the answer waits, or it would be written before that
                time.sleep(1.5)  # the connections are looked for twice a second
                ip("link", "set", f"{name}a", "down")
                pulled = time.monotonic()
                pulled_out.set()
                with pytest.raises(WorkerError, match="A worker was lost"):
                    list(pieces)
                assert time.monotonic() - pulled < 2 * BOUND_S
        finally:
            worker.kill()
    finally:
        ip("link", "del", f"{name}a")
        ip("netns", "del", name)
