"""The cache audit: after an answer, do the caches hold exactly its tokens?

Asked twice: by the cache's own account of its length, which must be the text without its last token, and by what the
model says next, which must be what it says from an empty cache that was fed the same ids in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spec_local.bench.audit import FLOOR, Replay
from spec_local.bench.findings import Kind, Problem
from spec_local.bench.recording import Recorder
from spec_local.bench.rig import Rig
from spec_local.drafting.model import ModelDrafter
from spec_local.errors import CacheError
from spec_local.language_model import Chunk
from spec_local.llama.context import Context

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LiveCache:
    """A cache just after an answer."""

    model: str
    """target or draft."""
    expected: int
    """Tokens it must hold: the text's without the last one."""
    held: int
    """Tokens it holds: its highest position + 1."""
    logits: Logits | None
    """float32 [n_vocab] after the last token too; None where the cache could not take it."""


@dataclass(frozen=True, slots=True)
class CacheFinding:
    """A live cache against a fresh one."""

    run: str
    model: str
    expected: int
    held: int
    difference: float | None
    """Largest |Δlogit| of the next token between the live and a fresh cache."""
    tolerance: float

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class CacheAudit:
    """All findings."""

    findings: tuple[CacheFinding, ...]
    problems: tuple[Problem, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"caches": [finding.as_dict() for finding in self.findings]}


def look(rig: Rig, recorder: Recorder) -> list[LiveCache]:
    """Read the engine's own caches just after an answer; they are left as they were."""
    loaded, tokens = rig.engine.loaded, recorder.sequence.tokens
    caches = [_look("target", loaded.target, tokens)]
    drafter = rig.engine.speculator.drafters.get("model")
    if loaded.draft is not None and isinstance(drafter, ModelDrafter):
        drafter.prefill(0, tokens[:-1])  # a draft cache may lag, and is cut and filled when it is used next
        caches.append(_look("draft", loaded.draft, tokens))
    return caches


def _look(model: str, context: Context, tokens: Many[int]) -> LiveCache:
    held = context.length(0)
    logits = None
    if held < context.n_ctx:
        logits = context.decode([Chunk(0, tokens[-1:], 1)])[0][0].copy()
        context.trim(0, held)
    return LiveCache(model, len(tokens) - 1, held, logits)


def cache_audit(runs: Many[tuple[Replay, Many[LiveCache]]], epsilon: float) -> CacheAudit:
    """Judge live caches against the replays' fresh ones.

    Args:
        runs: Each run's replay and its live caches.
        epsilon: Measured |Δlogit| of the target over all runs. A live cache was filled by passes of other widths than a
            fresh one, so twice as much is allowed.
    """
    findings, problems = [], []
    draft_epsilon = max((replay.draft_epsilon for replay, _ in runs), default=0.0)
    for replay, caches in runs:
        for cache in caches:
            target = cache.model == "target"
            fresh = replay.logits if target else replay.draft_logits
            tolerance = 2 * max(epsilon if target else draft_epsilon, FLOOR)
            difference = None
            if cache.logits is not None and fresh is not None:
                difference = float(np.abs(cache.logits - fresh).max())
            finding = CacheFinding(replay.name, cache.model, cache.expected, cache.held, difference, tolerance)
            findings.append(finding)
            if (message := _fault(finding)) is not None:
                problems.append(Problem("cache", Kind.CACHE, message))
    return CacheAudit(tuple(findings), tuple(problems))


def _fault(finding: CacheFinding) -> str | None:
    where = f"{finding.run}: the {finding.model}'s cache"
    if finding.held != finding.expected:
        off = finding.held - finding.expected
        many = f"{abs(off)} token{'s' if abs(off) > 1 else ''} {'more' if off > 0 else 'fewer'}"
        return f"{where} holds {finding.held} tokens, {many} than the text without its last one"
    if finding.difference is not None and finding.difference > finding.tolerance:
        return (
            f"{where} has the right length, but its next-token logits are {finding.difference:.3g} away from those of a "
            f"fresh cache (rounding explains {finding.tolerance:.2g}): it holds other tokens than the text"
        )
    return None


def broken(run: str, error: AssertionError | CacheError) -> Problem:
    """The problem of a run that a check inside the program stopped."""
    return Problem("cache", Kind.CACHE, f"{run}: the run broke off with {type(error).__name__}: {error}")
