"""What a soak did and found, as one JSON object."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

INVARIANTS = {
    1: "the target's cache holds tokens[:-1] (a running state: a beginning of it), the draft's a beginning",
    2: "one target pass a round, for all sequences together (padded: one each)",
    3: "what a cache holds is what it says it holds",
    4: "nothing lies behind an end, and the counts add up",
    5: "logits are read in place, for the rows asked for",
    6: "the text is plain decoding's for the same seed, whatever was drafted, cancelled or failed",
    7: "after a cancel or a fault the caches are right: the next row is that of an empty cache fed the same tokens",
    8: "text is whole characters, the stream adds up to it, and no stop string is in it",
}


@dataclass
class Ledger:
    """Counts of one soak."""

    started: float = field(default_factory=time.monotonic)
    steps: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    checks: Counter[int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    memory: list[int] = field(default_factory=list)
    """Bytes resident, once a round of conversations."""
    handles: list[int] = field(default_factory=list)

    def check(self, number: int, holds: bool, what: str) -> None:
        """Count one check of an invariant."""
        self.checks[number] += 1
        if not holds:
            self.violations.append(f"{number} ({INVARIANTS[number]}): {what}")

    def look(self) -> None:
        """Note memory and open handles."""
        process = psutil.Process()
        self.memory.append(process.memory_info().rss)
        count = getattr(process, "num_handles" if sys.platform == "win32" else "num_fds")
        self.handles.append(int(count()))

    def growth(self) -> tuple[int, int]:
        """Bytes and handles of the last quarter above those of the first, warm-up left out; 0 where too short."""
        if len(self.memory) < 8:
            return 0, 0
        quarter = len(self.memory) // 4
        early, late = slice(quarter, 2 * quarter), slice(-quarter, None)

        def grown(values: list[int]) -> int:
            return sorted(values[late])[quarter // 2] - sorted(values[early])[quarter // 2]

        return grown(self.memory), grown(self.handles)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        memory, handles = self.growth()
        return {
            "seconds": round(time.monotonic() - self.started, 1),
            "steps": sum(self.steps.values()),
            "steps_by_kind": dict(self.steps),
            "faults_injected": sum(self.faults.values()),
            "faults_by_kind": dict(self.faults),
            "answers_by_end": dict(self.ends),
            "tokens": self.tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "invariant_checks": sum(self.checks.values()),
            "checks_by_invariant": {str(number): self.checks[number] for number in INVARIANTS},
            "violations": self.violations,
            "memory_growth_bytes": memory,
            "handle_growth": handles,
            "resident_bytes": self.memory[-1] if self.memory else 0,
            "pid": os.getpid(),
        }
