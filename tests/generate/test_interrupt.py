"""One request to stop and two."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spec_local import errors
from spec_local.cli.exit_codes import ExitCode, exit_code
from spec_local.cli.interrupt import Interrupt
from spec_local.cli.main import main
from spec_local.session import engine, loop


def test_signals_that_come_together_are_one_request_and_a_later_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told: list[float] = []
    with Interrupt(lambda: told.append(now)) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
        now = 10.1
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert caught.seen and told == [10.0]
        now = 10.5
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.usefixtures("own_folders")
@pytest.mark.parametrize("command", ["verify", "batch"])
def test_a_load_that_is_interrupted_ends_as_interrupted(
    command: str, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = engine.load

    def interrupted(**words: Any) -> engine.Engine:
        os.kill(os.getpid(), signal.SIGINT)
        return load(**words)

    monkeypatch.setattr(engine, "load", interrupted)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    batch = ["generate", "--input", str(prompts), "--output", str(tmp_path / "out.jsonl"), "--parallel", "1"]
    words = batch if command == "batch" else ["verify", "--quick"]
    assert main([*words, "-m", str(tiny_target), "-d", "none", "--threads", "1", "--n-ctx", "256"]) == 130
    shown = capsys.readouterr()
    assert shown.out == "" and "cancelled" not in shown.err and "Traceback" not in shown.err


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.usefixtures("own_folders")
def test_an_interrupt_before_the_first_token_keeps_the_earlier_answer(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = loop.Loop._pass

    def interrupted(self: loop.Loop, tickets: list[loop.Ticket]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while not tickets[0].cancelled:  # the main thread takes the signal
            time.sleep(0.001)
        make(self, tickets)

    monkeypatch.setattr(loop.Loop, "_pass", interrupted)
    answer = tmp_path / "answer.txt"
    answer.write_text("an earlier answer")
    words = ["generate", "-p", "the abcd", "--raw", "-o", str(answer), "-m", str(tiny_target), "-d", "none"]
    assert main([*words, "--threads", "1", "--n-ctx", "256"]) == 130
    assert answer.read_text() == "an earlier answer"


def test_every_error_has_its_exit_code() -> None:
    kinds: dict[type[errors.SpecLocalError], int] = {errors.UsageError: 2, errors.DownloadError: 3}
    kinds |= {errors.WorkerError: 4, errors.Aborted: 130, errors.SpecLocalError: 4}
    assert {kind: exit_code(kind("No.")) for kind in kinds} == kinds
    assert exit_code(errors.Aborted("Stopped.")) is ExitCode.INTERRUPTED
