"""What a report says about where its figures come from."""

from __future__ import annotations

import platform
from pathlib import Path

from spec_local import __version__
from spec_local.bench.bench import Bench
from spec_local.bench.speed_report import About
from spec_local.bench.workloads import count_prompts
from spec_local.drafting.draft import MODEL_SOURCE
from spec_local.llama.processor import physical_cores


def about(bench: Bench) -> About:
    """Models, machine and settings of a measurement."""
    engine, settings = bench.engine, bench.settings
    described = engine.describe()
    draft = described["draft"] if MODEL_SOURCE in bench.sources else None
    return About(
        target=str(described["target"]),
        draft=None if draft is None else str(draft),
        machine=machine(),
        threads=engine.options.threads or physical_cores(),
        rule=engine.options.acceptance,
        tokens=settings.tokens,
        prompts=count_prompts(bench.workloads),
        prompts_given=bench.given,
        seed=settings.seed,
        version=__version__,
        model=described,
    )


def machine() -> str:
    """Processor and system, as far as the system tells."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name}, {platform.system()}"
