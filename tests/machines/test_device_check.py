"""`scripts/device_check.py` on this machine with a tiny pair: every step runs, and one file holds what they said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import device_check
import pytest

pytestmark = pytest.mark.slow


def test_one_file_holds_the_reports_of_all_steps(
    tiny_target: Path,
    tiny_draft: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "device.json"
    program = f"{sys.executable} -m spec_local.cli.main"
    model = ["-m", str(tiny_target), "-d", str(tiny_draft), "--threads", "1", "--n-ctx", "1024"]
    monkeypatch.setattr(sys, "argv", ["device_check", "-o", str(output), "--program", program, "--", *model])
    assert device_check.main() == 0
    steps = json.loads(output.read_text(encoding="utf-8"))["steps"]
    assert steps["doctor"]["report"]["devices"][0]["kind"] == "cpu"
    assert steps["doctor"]["report"]["devices"][0]["offloads"] is False
    assert steps["verify"]["report"] and steps["verify"]["exit"] == 0
    assert set(steps["bench"]["report"]) >= {"arms", "curves", "verdict"}
    said = capsys.readouterr().out
    assert "none besides the CPU" in said and "passed" in said


def test_a_step_that_fails_is_recorded_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = {"exit": 0, "seconds": 0.1, "report": {"devices": [{"name": "CUDA0", "kind": "gpu", "offloads": True}]}}
    asked: list[str] = []

    def step(command, _timeout_s):
        asked.append(" ".join(command))
        return doctor if "doctor" in command else {"exit": 4, "seconds": 0.1, "stderr": "no"}

    monkeypatch.setattr(device_check, "run_step", step)
    monkeypatch.setattr(sys, "argv", ["device_check", "-o", str(tmp_path / "out.json"), "--program", "spec-local"])
    assert device_check.main() == 1
    assert len(asked) == 5 and asked[-1].endswith("--draft-device none --pull always --json")
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["steps"]["verify"]["exit"] == 4


def test_a_program_that_is_not_there_is_a_recorded_error() -> None:
    step = device_check.run_step(["no-such-program-anywhere"], 5.0)
    assert "no-such-program-anywhere" in step["error"]
    slow = device_check.run_step([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    assert "timed out" in slow["error"]
