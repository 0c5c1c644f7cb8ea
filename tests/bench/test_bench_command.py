"""`spec-local bench`: flags, output, Ctrl-C. The engine is a toy."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from timed_engine import TimedEngine

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.main import main


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path / "home"))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "mine.txt"
    path.write_text("abcabcabc\nsomething else\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[TimedEngine]:
    """Engines that were "loaded". Each has no draft model, so nothing asks for a second native context."""
    made: list[TimedEngine] = []

    def load(settings: Any, cancelled: Callable[[], bool]) -> TimedEngine:
        made.append(TimedEngine(("text",)))
        assert settings["draft_length"].value == "auto"
        return made[-1]

    monkeypatch.setattr("spec_local.cli.loading.load_engine", load)
    return made


def test_a_report_for_people(engines: list[TimedEngine], prompts: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "--prompts", prompts, "--max-tokens", "12", "--repeats", "1"]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out.startswith("toy\n")
    assert "mine.txt" in out and "Temperature 0.8" in out and "Verdict" in out
    assert "2 prompts × 5 arms × 2 temperatures × 1 repeat of 12 tokens" in err
    assert engines[0].closed


def test_quick_says_how_many_of_the_prompts_it_uses_and_promises_no_more_repeats_than_it_does(
    engines: list[TimedEngine], prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "report.html"
    assert main(["bench", "--prompts", prompts, "--quick", "--html", str(page)]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert "1 of 2 prompts × 3 arms × 1 temperature × at most 3 repeats of" in err
    assert "\n1 of 2 prompts in 1 workload, " in out
    assert "1 of 2 prompts in 1 workload, " in page.read_text(encoding="utf-8")


def test_prompts_left_out_by_a_flag_are_counted_too(
    engines: list[TimedEngine], prompts: str, capsys: pytest.CaptureFixture[str]
):
    flags = ["--per-workload", "1", "--max-tokens", "4", "--repeats", "1", "--json"]
    assert main(["bench", "--prompts", prompts, *flags]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert "1 of 2 prompts × 5 arms × 2 temperatures × 1 repeat of 4 tokens" in err
    counts = json.loads(out)["settings"]
    assert (counts["prompts"], counts["prompts_given"]) == (1, 2)


def test_json_and_page(engines: list[TimedEngine], prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "report.html"
    flags = ["--max-tokens", "12", "--repeats", "1", "--temperature", "0.5", "--draft-length", "3"]
    assert main(["bench", "--prompts", prompts, "--json", "--html", str(page), *flags]) == ExitCode.OK
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["settings"]["temperatures"] == [0.5]
    assert [arm["name"] for arm in data["arms"]] == ["plain", "fixed-3", "auto"]
    assert data["arms"][0]["temperatures"][0]["statistics"]["emitted"] == 24
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"The report is in {page}." in err


def test_a_draft_length_that_is_no_flag_does_not_choose_what_is_compared(
    engines: list[TimedEngine], prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SPEC_LOCAL_DRAFT_LENGTH", "3")
    flags = ["--max-tokens", "4", "--repeats", "1", "--temperature", "0"]
    assert main(["bench", "--prompts", prompts, "--json", *flags]) == ExitCode.OK
    arms = [arm["name"] for arm in json.loads(capsys.readouterr().out)["arms"]]
    assert "fixed-3" not in arms and {"fixed-2", "fixed-4", "fixed-7"} <= set(arms)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--stop", "x"], "--stop has no place in a measurement"),
        (["--min-tokens", "3"], "--min-tokens has no place"),
        (["--workload", "poems"], "no workload 'poems'"),
        (["--repeats", "0"], "--repeats cannot be '0'"),
        (["--minutes", "soon"], "--minutes cannot be 'soon'"),
        (["--per-workload", "-1"], "--per-workload cannot be '-1'"),
        (["--max-tokens", "1"], "fewer than 2 tokens"),
        (["--draft-length", "-3"], "draft_length cannot be -3"),
        (["--draft-length", "17"], "--draft-length 17 is more than the 16 tokens a draft may have."),
        (["--draft-length", "7", "--draft-max", "5"], "--draft-length 7 is more than the 5 tokens"),
        (["--draft-length", "7", "--pad-width", "4"], "--draft-length 7 is more than the 3 tokens"),
        (["--temperature", "-1"], "temperature cannot be -1"),
        (["--prompts", "/no/such/file"], "/no/such/file cannot be read"),
        (["--html", "/no/such/folder/report.html"], "cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_said_before_a_model_is_loaded(
    flags: list[str], words: str, engines: list[TimedEngine], capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", *flags]) == ExitCode.USAGE
    assert words in capsys.readouterr().err
    assert engines == []


def test_prompts_and_workloads_exclude_each_other(
    engines: list[TimedEngine], prompts: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "--prompts", prompts, "--workload", "chat"]) == ExitCode.USAGE
    assert "exclude each other" in capsys.readouterr().err


class _Interrupted(TimedEngine):
    """Somebody presses Ctrl-C in its 300th round."""

    def __init__(self) -> None:
        super().__init__(("text",))
        self.rounds = 0

    def step(self, sequences: Any) -> None:
        self.rounds += 1
        if self.rounds == 300:
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 60
            while not self.cancelled and time.monotonic() < deadline:  # the main thread takes the signal
                time.sleep(0.001)
        super().step(sequences)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[_Interrupted]:
    made: list[_Interrupted] = []

    def load(settings: Any, cancelled: Callable[[], bool]) -> _Interrupted:
        made.append(_Interrupted())
        return made[-1]

    monkeypatch.setattr("spec_local.cli.loading.load_engine", load)
    return made


def test_ctrl_c_prints_what_was_measured_so_far(
    interrupted: list[_Interrupted], prompts: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", "--prompts", prompts, "--repeats", "1000", "--json"]) == ExitCode.INTERRUPTED
    data = json.loads(capsys.readouterr().out)
    assert data["complete"] is False
    assert data["arms"][0]["temperatures"][0]["tokens_per_s"]["median"] == pytest.approx(10.0)
    assert interrupted[0].closed and interrupted[0].rounds == 300


def test_a_failure_in_the_middle_keeps_what_was_measured(
    engines: list[TimedEngine], prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from spec_local.errors import BackendError

    steps = TimedEngine.step
    count = 0

    def fails_late(self: TimedEngine, sequences: Any) -> None:
        nonlocal count
        count += 1
        steps(self, sequences)
        if count > 300:
            sequences[0].fail(BackendError("The device was lost."))

    monkeypatch.setattr(TimedEngine, "step", fails_late)
    assert main(["bench", "--prompts", prompts, "--repeats", "3"]) == ExitCode.BACKEND
    out, err = capsys.readouterr()
    assert "Stopped before its end" in out and "Verdict" in out
    assert "The device was lost." in err
