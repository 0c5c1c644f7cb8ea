"""`spec-local worker`: it says that it is well, stops cleanly, survives bad clients, and keeps to its limits."""

from __future__ import annotations

import ctypes
import re
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from running_worker import PATIENCE_S, RunningWorker

from spec_local.cli.main import main
from spec_local.cli.worker import parse_bytes
from spec_local.errors import BackendError, ModelError, UsageError
from spec_local.llama import metered
from spec_local.llama.devices import list_devices
from spec_local.llama.hosted import Host
from spec_local.llama.metered import Meter
from spec_local.llama.model import Offload
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.rpc import PROTOCOL, ask_workers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_stops_cleanly(number: signal.Signals) -> None:
    worker = RunningWorker("--memory", "2GB")
    assert "CPU, 2 GB of 2 GB free" in worker.said("worker ready at 127.0.0.1:")[0]
    (server,) = psutil.Process(worker.process.pid).children()
    worker.process.send_signal(number)
    assert worker.process.wait(PATIENCE_S) == 0
    assert worker.said("worker stopped")
    server.wait(PATIENCE_S)


def test_the_protocol_version_is_the_librarys_own(workers: list[RunningWorker]) -> None:
    """The constant, with which versions are compared before llama.cpp would end the process over them."""
    command = [sys.executable, "-m", "spec_local.llama.worker"]
    options = f'{{"endpoint": "{workers[0].endpoint}", "devices": ["CPU"]}}'  # its address is taken: it ends at once
    with subprocess.Popen([*command, options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert re.findall(r"Starting RPC server v([\d.]+)", server.stdout.read()) == [".".join(map(str, PROTOCOL))]


def test_devices_and_memory_are_those_it_was_told_to_lend(workers: list[RunningWorker]) -> None:
    found = ask_workers([worker.endpoint for worker in workers])
    assert [device.name for worker in found for device in worker.devices] == ["RPC0", "RPC1"]
    assert [device.total_bytes for worker in found for device in worker.devices] == [10**9, 10**9]
    assert all(worker.devices[0].description == worker.endpoint for worker in found)
    assert 0 < found[0].round_trip_s < 5


def test_more_than_the_limit_is_refused_in_a_sentence(target) -> None:
    worker = RunningWorker("--memory", "1MB")
    try:
        with Host([worker.endpoint]) as host, pytest.raises(ModelError, match=r"llama.cpp says: .*alloc"):
            host.open(target, Offload(devices=("RPC0",)), ContextOptions(n_ctx=64))
        assert ask_workers([worker.endpoint])[0].devices[0].free_bytes == 10**6, "what was held is free again"
        assert not worker.said("The server"), "the worker is well"
    finally:
        worker.stop()


def test_junk_and_crashes_do_not_end_it() -> None:
    worker = RunningWorker()
    try:
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x0e" + b"\xff" * 100, b""):
            with socket.create_connection(("127.0.0.1", worker.port)) as connection:
                connection.sendall(junk)
        assert ask_workers([worker.endpoint])
        (server,) = psutil.Process(worker.process.pid).children()
        server.kill()
        assert "SIGKILL" in worker.wait_for("The server died")[0]
        worker.wait_for("worker ready", 2)
        assert ask_workers([worker.endpoint])
    finally:
        worker.stop()


def test_the_server_ends_with_the_command() -> None:
    worker = RunningWorker()
    (server,) = psutil.Process(worker.process.pid).children()
    worker.process.kill()
    worker.process.wait()
    psutil.wait_procs([server], PATIENCE_S)
    assert not server.is_running()


def test_others_are_let_in_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--host", "0.0.0.0", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "neither passwords nor encryption" in said and "SSH tunnel" in said and "--allow-network" in said
    worker = RunningWorker("--host", "0.0.0.0", "--allow-network")
    assert "neither passwords nor encryption" in worker.said("WARNING")[0]
    assert worker.endpoint.startswith("0.0.0.0:")
    assert ask_workers([f"127.0.0.1:{worker.port}"])
    worker.stop()


def test_bad_flags_are_sentences(capsys: pytest.CaptureFixture[str], workers: list[RunningWorker]) -> None:
    for flags, said in (
        (["--port", str(workers[0].port)], "cannot be listened on"),
        (["--port", "70000"], "--port cannot be '70000'"),
        (["--device", "CUDA7"], "no device called 'CUDA7'"),
        (["--memory", "much"], "--memory cannot be 'much'"),
        (["--host", "no.such.host.invalid"], "no IPv4 address"),
        (["--threads", "-1"], "--threads cannot be"),
    ):
        assert main(["worker", "--port", "0", *flags]) == 2
        assert said in capsys.readouterr().err


def test_sizes_are_read_as_people_write_them() -> None:
    sizes = {"20GB": 20 * 10**9, "512 MB": 512 * 10**6, "1.5GiB": 3 << 29, "4k": 4000, "77": 77, "8 B": 8}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    for text in ("", "GB", "-1", "0", "1XB"):
        with pytest.raises(UsageError):
            parse_bytes(text)


def test_a_library_with_other_tables_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meter writes into llama.cpp's tables; where they are not what it thinks, it must not go on."""
    (cpu,) = [device for device in list_devices() if device.kind == "cpu"]
    monkeypatch.setattr(metered, "_slot", lambda _table, _index: ctypes.c_void_p(1))  # not where llama.cpp looks
    with pytest.raises(BackendError, match="cannot be counted"):
        Meter(cpu, None, lambda _held: None)
