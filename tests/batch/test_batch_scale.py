"""Ten thousand lines: memory stays flat and cost linear."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest
from batch_engines import ScriptedEngine, recipe

from spec_local.batch.job import BatchOptions, Job
from spec_local.batch.output import OutputFile
from spec_local.batch.source import Source


@pytest.mark.slow
def test_ten_thousand_lines(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for i in range(10_000):
            file.write(json.dumps({"id": i, "prompt": f"prompt {i}", "max_tokens": 8}) + "\n")
    process = psutil.Process()
    cpu_s: list[float] = []  # at every 2000 lines
    memory: list[int] = []
    with OutputFile(str(out)) as output:
        job = Job(ScriptedEngine(), 8, recipe(), Source(str(source)), output, BatchOptions())
        for count, _ in enumerate(job.run()):
            if count % 2000 == 0:
                cpu_s.append(time.process_time())
                memory.append(process.memory_info().rss)
    cpu_s.append(time.process_time())
    memory.append(process.memory_info().rss)
    assert job.summary.answered == 10_000
    assert sum(1 for _ in out.open()) == 10_000
    first, last = cpu_s[1] - cpu_s[0], cpu_s[-1] - cpu_s[-2]
    assert last < 1.5 * first, f"{first:.2f} s for the first 2000 lines, {last:.2f} s for the last"
    # What grows are the ids, which are remembered to notice that one repeats: some hundred bytes each. An answer with
    # its rounds is two orders above that.
    grown = memory[-1] - memory[1]
    assert grown < 8000 * 500, f"{grown} bytes more after 8000 lines"

    started = time.process_time()
    with OutputFile(str(out), resume=True) as output:
        job = Job(ScriptedEngine(), 8, recipe(), Source(str(source)), output, BatchOptions(resume=True))
        job.plan()
        assert list(job.run()) == []
    assert job.summary.kept == 10_000
    assert time.process_time() - started < cpu_s[-1] - cpu_s[0]
