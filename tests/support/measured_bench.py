"""Made records of a bench, for tests of what is derived from them."""

from __future__ import annotations

from typing import Any

from spec_local.bench.arms import make_arms
from spec_local.bench.curves import Curves
from spec_local.bench.player import Played
from spec_local.bench.results import Results, Run, collect
from spec_local.bench.speed_report import About
from spec_local.speculation.round import Round

TOKENS = 12
CURVES = Curves({1: 0.1, 2: 0.12, 4: 0.16, 8: 0.24}, {1: 0.02, 2: 0.025})
FLAT = Curves({1: 0.1, 8: 0.1}, {1: 0.02})
ABOUT = About("toy <target>", "toy & draft", "a machine", 2, "coupled", TOKENS, 2, 1, "0.0", {"target": "toy <target>"})
WORKLOADS = [("edit", "edit code"), ("chat", "chat")]


def played(seconds: float, source: str = "none", drafted: int = 0, accepted: int = 0, **extra: Any) -> Played:
    """An answer of `TOKENS` tokens in `seconds`: rounds of 1 + accepted tokens each, the last ones plain."""
    size = 1 + accepted
    rounds = []
    if drafted:
        count = TOKENS // size
        rounds = [Round(source, 1 + drafted, drafted, drafted, accepted, size, 0.0, seconds / count, 0.0, "")] * count
    else:
        rounds = [Round("none", 1, 0, 0, 0, 1, 0.0, seconds / TOKENS, 0.0, "")] * TOKENS
    tokens = tuple(range(TOKENS))
    values: dict[str, Any] = {"prefill_s": 0.5, "draft_prefill_s": 0.0, "ttft_s": 0.6, "tokens": tokens} | extra
    return Played(rounds=tuple(rounds), **values)


def measured(
    auto: dict[str, list[float]],
    plain: float = 1.2,
    fixed: float = 1.0,
    sources: tuple[str, ...] = ("model",),
    curves: Curves = CURVES,
    complete: bool = True,
) -> Results:
    """Results of plain (always `plain` seconds), fixed-2 (`fixed`) and auto (seconds by workload and repeat)."""
    arms = make_arms(sources, (2,), alone=False)
    runs = []
    for workload, seconds in auto.items():
        for repeat, taken in enumerate(seconds):
            for arm in arms:
                answer = {
                    "plain": played(plain),
                    "fixed-2": played(fixed, sources[0], 2, 1, draft_prefill_s=0.1),
                    "auto": played(taken, sources[0], 3, 2, draft_prefill_s=0.1),
                }[arm.name]
                runs.append(Run(arm.name, workload, "p", 0.0, repeat, answer))
    titles = [entry for entry in WORKLOADS if entry[0] in auto]
    return collect(arms, [0.0], titles, curves, runs, complete)
