"""The cache audit: after an answer, do the caches hold exactly its tokens?

Asked three times: by the cache's own account of its length, which must be the text without its last token; and by what
the model says next, which must be what it says from an empty cache that was fed the same ids, once in narrow passes as
the engine's were, and once in a single batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np

from spec_local.drafting.draft import MODEL_SOURCE
from spec_local.drafting.model import ModelDrafter
from spec_local.language_model import Chunk, Logits
from spec_local.llama.model_context import ModelContext
from spec_local.verify.audit import FLOOR, Replay
from spec_local.verify.findings import Kind, Problem
from spec_local.verify.recording import Recorder
from spec_local.verify.rig import ROWS, Rig, feed
from spec_local.words import counted


@dataclass(frozen=True, slots=True)
class LiveCache:
    """A cache just after an answer."""

    model: str
    """target or draft."""
    expected: int
    """Tokens it must hold: the text's without the last one; a draft's cache may lag, and knows by how much."""
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
    """Largest |Δlogit| of the next token between the live cache and a fresh one filled in narrow passes."""
    tolerance: float
    batch_difference: float | None
    """The same against a fresh cache filled in one batch."""
    batch_tolerance: float

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
    start = recorder.sequence.prompt_length - 1
    caches = [_look("target", loaded.target, tokens, len(tokens) - 1, start)]
    drafter = rig.engine.speculator.drafters.get(MODEL_SOURCE)
    if loaded.draft is not None and loaded.vocabulary_map is not None and isinstance(drafter, ModelDrafter):
        # Rejected tokens stay in the draft's cache until it is used next; told the text's length, it drops them now.
        drafter.forget(0, len(tokens) - 1)
        ids = loaded.vocabulary_map.spell(tokens)
        begun = len(loaded.vocabulary_map.spell(tokens[:start]))
        caches.append(_look("draft", loaded.draft, ids, len(ids) - drafter.lag(0, tokens), begun))
    return caches


def _look(model: str, context: ModelContext, tokens: Many[int], expected: int, start: int) -> LiveCache:
    """What a live cache holds, and says after the text.

    What it lacks is read as a fresh one reads it: the prompt (up to `start`) in batches, the answer in narrow passes. A
    draft that was never used lacks everything, and in one wide pass its numbers would be those of other kernels.
    """
    held = context.length(0)
    logits = None
    rest = tokens[min(expected, len(tokens) - 1) :]
    if held + len(rest) <= context.n_ctx:
        prompt = min(max(0, start - held), len(rest) - 1)
        feed(context, rest[:prompt])
        for low in range(prompt, len(rest), ROWS):
            logits = context.decode([Chunk(0, rest[low : low + ROWS], 1)])[0][0].copy()
        context.trim(0, held)
    return LiveCache(model, expected, held, logits)


def cache_audit(runs: Many[tuple[Replay, Many[LiveCache]]]) -> CacheAudit:
    """Judge live caches against the replays' fresh ones.

    Twice the measured ε is allowed: a live cache was filled by passes of other widths than a fresh one, and so is read.
    A draft that starts late catches up in one pass of any width, so for it the ε of batches counts too.
    """
    findings, problems = [], []
    for replay, caches in runs:
        for cache in caches:
            every = [run.target if cache.model == "target" else run.draft for run, _ in runs]
            fresh = replay.target if cache.model == "target" else replay.draft
            assert fresh is not None, "a draft cache was read without a draft model"
            narrow = [one.epsilon for one in every if one is not None]
            batch = [one.batch_epsilon for one in every if one is not None]
            apart = [None if cache.logits is None else float(np.abs(cache.logits - logits).max())
                     for logits in (fresh.logits, fresh.batch_logits)]  # fmt: skip
            finding = CacheFinding(
                run=replay.name,
                model=cache.model,
                expected=cache.expected,
                held=cache.held,
                difference=apart[0],
                tolerance=2 * max(FLOOR, *narrow, *(batch if cache.model == "draft" else ())),
                batch_difference=apart[1],
                batch_tolerance=2 * max(FLOOR, *batch),
            )
            findings.append(finding)
            if (message := _fault(finding)) is not None:
                problems.append(Problem("cache", Kind.CACHE, message))
    return CacheAudit(tuple(findings), tuple(problems))


def _fault(finding: CacheFinding) -> str | None:
    where = f"{finding.run}: the {finding.model}'s cache"
    if finding.held != finding.expected:
        off = finding.held - finding.expected
        wrong = f"{counted(abs(off), 'token')} {'more' if off > 0 else 'fewer'}"
        return f"{where} holds {finding.held} tokens, {wrong} than it must"
    for apart, tolerance, how in (
        (finding.difference, finding.tolerance, "narrow passes"),
        (finding.batch_difference, finding.batch_tolerance, "one batch"),
    ):
        if apart is not None and apart > tolerance:
            return (
                f"{where} has the right length, but its next-token logits are {apart:.3g} away from those of a fresh "
                f"cache filled in {how} (rounding explains {tolerance:.2g}): it holds other tokens than the text"
            )
    return None
