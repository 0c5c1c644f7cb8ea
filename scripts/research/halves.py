"""Recorded traces in two halves: one that numbers were chosen by, one to report with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from spec_local.bench.traces import Trace

Half = Literal["choose", "report", "all"]
CHOSEN_BY = Path(__file__).with_name("choose.txt")
"""Names of the traces that the policy's numbers were chosen by: every second one of each kind and temperature."""


def half(traces: Sequence[Trace], which: Half) -> list[Trace]:
    """The traces of one half, in their order."""
    names = set(CHOSEN_BY.read_text(encoding="utf-8").split())
    return [trace for trace in traces if which == "all" or (trace.name in names) == (which == "choose")]
