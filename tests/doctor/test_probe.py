"""A crash inside llama.cpp becomes a sentence, found out in a child process."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from spec_local import paths
from spec_local.cli.main import main
from spec_local.errors import BackendError
from spec_local.llama import devices, probe as probing
from spec_local.llama.devices import Device
from spec_local.llama.library import REBUILD
from spec_local.llama.processor import physical_cores


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path))


@pytest.fixture
def child(monkeypatch):
    """Replaces the child process: give it the return code for repacked and plain weights."""
    calls = []

    def install(repacked: int, plain: int, stderr: bytes = b""):
        def run(command, **_):
            calls.append(command)
            code = repacked if command[3] == "1" else plain
            return subprocess.CompletedProcess(command, code, b"", stderr)

        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return install


def test_a_working_machine_is_asked_once(child):
    calls = child(0, 0)
    assert probing.probe() == probing.Probe(True, True, "")
    assert probing.probe() == probing.Probe(True, True, "")
    assert len(calls) == 1
    probing.probe(fresh=True)
    assert len(calls) == 2


def test_a_crash_of_repacked_weights_is_gone_round(child):
    child(-signal.SIGSEGV, 0)
    answer = probing.require_backend()
    assert answer.works
    assert not answer.repack
    assert "SIGSEGV" in answer.problem


def test_a_crash_everywhere_is_a_sentence(child):
    child(-signal.SIGILL, -signal.SIGILL)
    with pytest.raises(BackendError, match="SIGILL"):
        probing.require_backend()


def test_what_the_child_said_is_the_problem(child):
    child(1, 1, b"noise\nThe device is gone.\n")
    assert probing.probe().problem == "The device is gone."


def test_a_child_that_hangs_is_a_sentence(monkeypatch):
    def run(command, **_):
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert "did not end" in probing.probe().problem


def test_devices_have_answers_of_their_own(child):
    calls = child(0, 0)
    probing.probe(("none",))
    probing.probe(())
    assert [command[4:] for command in calls] == [["none"], []]


def test_this_machine_decodes():
    assert probing.probe(("none",)).works


def test_doctor_reports_as_json(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decode"][0]["device"] == "CPU"
    assert report["decode"][0]["works"]
    assert report["memory"]["total_bytes"] > 0
    assert report["folders"]["models"]["path"]
    assert report["problems"] == [] or all(entry["problem"] for entry in report["problems"])


def configure(text: str) -> None:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(text)


@pytest.mark.parametrize("words", [[], ["--json"], ["--rpc", "127.0.0.1:1"]])
def test_a_broken_configuration_is_a_problem_among_others(child, capsys, words):
    child(0, 0)
    configure("temprature = 1\n")
    assert main(["doctor", *words]) == 0
    shown = capsys.readouterr().out
    assert "'temprature', which is no setting" in shown
    if words == ["--json"]:
        report = json.loads(shown)
        assert "error" in report["settings"] and "workers" not in report
        assert len([entry for entry in report["problems"] if "temprature" in entry["problem"]]) == 1
        assert report["decode"][0]["works"] and report["folders"]["models"]["path"]
    else:
        assert "decodes" in shown and "\nsettings" not in shown


def test_a_configured_value_out_of_range_is_a_problem(child, capsys):
    child(0, 0)
    configure("top_p = 3\n")
    assert main(["doctor"]) == 0
    assert "top_p cannot be 3.0" in capsys.readouterr().out


def test_workers_of_the_configuration_are_looked_at(child, capsys):
    child(0, 0)
    configure('rpc = ["127.0.0.1:1"]\n')
    assert main(["doctor", "--json"]) == 0
    assert "error" in json.loads(capsys.readouterr().out)["workers"]


def test_cores_are_those_that_passes_run_on(child, capsys):
    child(0, 0)
    main(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["memory"]["physical_cores"] == physical_cores()


def test_a_device_that_offloads_is_told_from_the_processor(child, monkeypatch, capsys):
    calls = child(-signal.SIGSEGV, -signal.SIGSEGV)
    kinds = {"CUDA0": "gpu", "iGPU": "integrated gpu", "RPC0": "worker", "BLAS": "accelerator", "CPU": "cpu"}
    found = [Device(name, "", kind, 1, 1, 0) for name, kind in kinds.items()]
    assert [device.name for device in found if device.offloads] == ["CUDA0", "iGPU", "RPC0"]
    monkeypatch.setattr(devices, "list_devices", lambda: found)
    assert [device.name for device in devices.offload_devices()] == ["CUDA0", "iGPU", "RPC0"]
    assert main(["doctor", "--json"]) == 4
    report = json.loads(capsys.readouterr().out)
    assert {entry["name"] for entry in report["devices"] if entry["offloads"]} == {"CUDA0", "iGPU", "RPC0"}
    assert {command[4] for command in calls if command[2] == "spec_local.llama.probe"} == {
        "none",
        "CUDA0",
        "iGPU",
        "RPC0",
    }
    broken = [entry for entry in report["problems"] if "kernels" not in entry["problem"]]
    hints = [entry["hint"] for entry in broken if "SIGSEGV" in entry["problem"]]
    assert hints[0] == REBUILD and all(REBUILD in hint and "--device" in hint for hint in hints[1:])


def test_doctor_says_that_nothing_computes(child, capsys):
    child(-signal.SIGSEGV, -signal.SIGSEGV)
    assert main(["doctor"]) == 4
    assert "PROBLEM  On CPU, the first decode dies with SIGSEGV" in capsys.readouterr().out
