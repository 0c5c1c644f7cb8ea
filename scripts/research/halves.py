"""Recorded traces in two halves: one to choose numbers by, one to report with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from spec_local.bench.traces import Trace

Half = Literal["choose", "report"]


def half(traces: Sequence[Trace], which: Half) -> list[Trace]:
    """Every second trace of each kind of text and temperature, by name: the two halves hold the same kinds.

    Which half begins alternates from group to group, so that odd groups do not all favour one of them.
    """
    groups: dict[tuple[str, bool], list[Trace]] = defaultdict(list)
    for trace in sorted(traces, key=lambda t: t.name):
        groups[trace.kind, trace.temperature > 0].append(trace)
    chosen = []
    for i, key in enumerate(sorted(groups)):
        chosen += groups[key][(i + (which == "report")) % 2 :: 2]
    return chosen
