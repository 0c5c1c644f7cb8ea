"""Which products the kernels take here: for each format and width the faster of ours and ggml's, from one measurement.

It is made on one thread, a fraction of a second for each format of the model files, and kept with this machine's other
measurements. On several threads both sides share the same memory, so what is faster stays faster.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from spec_local.errors import BackendError
from spec_local.llama.kernels.build import library_path
from spec_local.llama.kernels.library import FORMATS, WIDTHS, Taken, register
from spec_local.llama.kernels.trial import Trial, computer, processor
from spec_local.paths import cache_folder

MEASURED = (1, 2, 3, 4, 6, 8, 12, 16, 64)
"""Columns of the products that are timed; those between go with the next narrower one, 64 stands for all from 32."""
_ROWS, _VALUES = 1024, 2048
_REPEATS = 5
_MARGIN = 1.03
"""ggml must be faster by so much: where both take the same time, ours give the same bits at every width."""
_DECIDING = (1, 2, 4, 8, 64)
"""Columns by which a choice between these kernels and repacked weights is made: plain decoding, rounds, a prompt."""

Seconds = Mapping[int, float]
"""By columns."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long products of one format take on one thread."""

    ggml: Seconds
    ours: Seconds
    repacked: Seconds
    """By ggml, with weights repacked; empty where it does not repack the format."""

    def widths(self) -> int:
        """The widths at which the kernels are taken, a bit for each from 1."""
        chosen = 0
        for width in range(1, WIDTHS + 1):
            near = max(n for n in MEASURED if n <= width) if width < WIDTHS else MEASURED[-1]
            if self.ours[near] <= self.ggml[near] * _MARGIN:
                chosen |= 1 << (width - 1)
        return chosen

    def gain(self) -> float:
        """How much faster the better of ours and ggml's is than what there would be without ours: a mean of ratios."""
        there = self.repacked or self.ggml
        ratios = [there[n] / min(self.ours[n], self.ggml[n]) for n in _DECIDING]
        return math.exp(sum(map(math.log, ratios)) / len(ratios))


def choose(shares: Mapping[str, float], repack: bool = True) -> tuple[Taken, float]:
    """What the kernels take of models with these formats, and how much faster that makes them; call after `register`.

    Args:
        shares: Part of the weights by format; formats without kernels do not count.
        repack: Whether ggml can repack weights here; what it takes with them is measured then.

    Raises:
        BackendError: A measurement fails.
    """
    known = {kind: share for kind, share in shares.items() if kind in FORMATS}
    timings = _timings(sorted(known), repack)
    taken = tuple((FORMATS[kind], widths) for kind in sorted(known) if (widths := timings[kind].widths()))
    whole = sum(known.values())
    gain = (
        math.exp(sum(share / whole * math.log(timings[kind].gain()) for kind, share in known.items())) if whole else 1.0
    )
    return taken, gain


def _timings(kinds: Sequence[str], repack: bool) -> dict[str, Timing]:
    """Saved measurements of these formats, fresh ones where there is none."""
    path = _path(repack)
    saved = _read(path)
    missing = [kind for kind in kinds if kind not in saved]
    if missing:
        saved |= {kind: measure(kind, repack) for kind in missing}
        _write(path, saved)
    return saved


def measure(kind: str, repack: bool = True) -> Timing:
    """The best of some times of each width, on one thread, taken in turns.

    Raises:
        BackendError: A product fails.
    """
    with ExitStack() as stack:
        ggml, ours = (stack.enter_context(computer(where, 1)) for where in (processor(), register().device))
        plain = stack.enter_context(Trial(kind, _VALUES, _ROWS, MEASURED))
        sides = {"ggml": (plain, ggml), "ours": (plain, ours)}
        if repack:
            with suppress(BackendError):  # ggml does not repack every format
                sides["repacked"] = stack.enter_context(Trial(kind, _VALUES, _ROWS, MEASURED, repacked=True)), ggml
        return Timing(**{"repacked": {}, **_best(sides)})


def _best(sides: Mapping[str, tuple[Trial, object]]) -> dict[str, dict[int, float]]:
    best: dict[str, dict[int, float]] = {side: {} for side in sides}
    for n in MEASURED:
        for _ in range(_REPEATS):
            for side, (trial, computer_) in sides.items():
                best[side][n] = min(best[side].get(n, math.inf), trial.seconds(computer_, n, time.thread_time))
    return best


def _path(repack: bool) -> Path:
    """The file of this machine's measurements: they hold for this library, this ggml and this processor."""
    from spec_local.llama.probe import cpu_flags

    parts = (str(library_path()), platform.node(), str(os.cpu_count()), cpu_flags(), str(MEASURED), str(repack))
    return cache_folder() / "kernels" / f"{sha256(chr(10).join(parts).encode()).hexdigest()[:24]}.json"


def _read(path: Path) -> dict[str, Timing]:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        sides = ("ggml", "ours", "repacked")
        return {
            kind: Timing(**{side: {int(n): float(s) for n, s in timing[side].items()} for side in sides})
            for kind, timing in saved.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write(path: Path, timings: Mapping[str, Timing]) -> None:
    values = {kind: {"ggml": t.ggml, "ours": t.ours, "repacked": t.repacked} for kind, t in timings.items()}
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(values), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        return  # then the next start measures again
