"""A crash inside llama.cpp becomes a sentence, found out in a child process."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from spec_local.cli.main import main
from spec_local.errors import BackendError
from spec_local.llama import probe as probing


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


def test_doctor_says_that_nothing_computes(child, capsys):
    child(-signal.SIGSEGV, -signal.SIGSEGV)
    assert main(["doctor"]) == 4
    assert "PROBLEM  On CPU, the first decode dies with SIGSEGV" in capsys.readouterr().out
