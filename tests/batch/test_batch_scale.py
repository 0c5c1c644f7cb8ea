"""Ten thousand lines: memory stays flat and cost linear."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from batch_engines import ScriptedEngine, recipe

from spec_local.batch.job import BatchOptions, Job
from spec_local.batch.output import OutputFile
from spec_local.batch.source import Source


def write(path: Path, count: int) -> Path:
    with path.open("w") as file:
        for i in range(count):
            file.write(json.dumps({"id": i, "prompt": f"prompt {i}", "max_tokens": 8}) + "\n")
    return path


def run(source: Path, out: Path, resume: bool = False) -> tuple[float, int, Job]:
    """Seconds, and the most bytes allocated at a time beyond those of the start."""
    tracemalloc.start()
    started = time.perf_counter()
    with OutputFile(str(out), resume=resume) as output:
        job = Job(ScriptedEngine(), 8, recipe(), Source(str(source)), output, BatchOptions(resume=resume))
        job.plan()
        for _ in job.run():
            pass
    seconds = time.perf_counter() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, peak, job


@pytest.mark.slow
def test_ten_thousand_lines(tmp_path: Path) -> None:
    run(write(tmp_path / "warm", 50), tmp_path / "warm.out")
    small_s, small_peak, _ = run(write(tmp_path / "a", 1000), tmp_path / "a.out")
    big_s, big_peak, job = run(write(tmp_path / "b", 10_000), tmp_path / "b.out")
    assert job.summary.answered == 10_000
    assert sum(1 for _ in (tmp_path / "b.out").open()) == 10_000
    assert big_s < 10 * small_s * 1.8, f"{small_s:.2f} s for 1000 lines, {big_s:.2f} s for 10 000"
    # What grows are the ids already seen, which must be known to notice that one repeats: 100 bytes each, not answers.
    assert big_peak - small_peak < 9000 * 200, f"{small_peak} bytes for 1000 lines, {big_peak} for 10 000"
    again_s, _, job = run(tmp_path / "b", tmp_path / "b.out", resume=True)
    assert job.summary.kept == 10_000
    assert again_s < big_s
