"""The command from end to end on tiny model files: real caches, a real draft, a real second context for the traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.main import main


@pytest.mark.usefixtures("own_folders")
def test_a_pair_is_measured(tiny_target: Path, tiny_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "the abcd on an inn", "workload": "one"},
        {"prompt": "an inn in the red den", "workload": "two"},
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    flags = ["-m", str(tiny_target), "-d", str(tiny_draft), "--threads", "1", "--n-ctx", "256"]
    flags += ["--prompts", str(prompts), "--max-tokens", "24", "--repeats", "2", "--top-k", "0", "--min-p", "0"]
    assert main(["bench", *flags, "--json", "--html", str(tmp_path / "page.html")]) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    arms = {arm["name"]: arm for arm in data["arms"]}
    assert list(arms) == ["plain", "fixed-2", "fixed-4", "fixed-7", "model", "text", "auto"]
    for arm in arms.values():
        for at in arm["temperatures"]:
            assert at["statistics"]["emitted"] == 2 * 2 * 24
            assert at["same_text"] == {"same": 4, "compared": 4}, (
                "these files have the same bits in passes of any width"
            )
            assert at["prefill_s"] > 0 and at["ttft_s"] > at["prefill_s"]
    for at in arms["fixed-4"]["temperatures"]:
        assert at["draft_prefill_s"] > 0
        assert at["statistics"]["sources"].keys() == {"model"}
    rates = {t["temperature"]: t["statistics"]["per_position"][0] for t in arms["fixed-2"]["temperatures"]}
    for found in data["oracle"]["workloads"]:
        assert 0 < found["agreement"] <= 1 and found["tokens"] == 24
    for temperature, rate in rates.items():  # what the traces say and what drafting met are the same thing
        agreement = [w["agreement"] for w in data["oracle"]["workloads"] if w["temperature"] == temperature]
        assert rate == pytest.approx(sum(agreement) / len(agreement), abs=0.2)
    assert data["curves"]["draft_step"] > 0
    assert (tmp_path / "page.html").stat().st_size > 10_000
