"""Finds out, before the first round, how a context's caches can be cut back, by cutting them back.

A cache that says it was cut and was not is the worst there is: the text goes wrong and nobody notices. So the account
of a running state or a window is not believed: a few tokens are rejected as a round would, and what the model says next
must be what it says of the kept tokens alone, and not what it says with the rejected ones still in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from spec_local.errors import BackendError, CacheError
from spec_local.language_model import Chunk, LanguageModel, Logits, Memory, MemoryKind
from spec_local.llama.model import Model

_KEPT, _REJECTED, _NEXT = (0, 1, 2), (3, 4), 5
"""Token ids of the trial: kept, drafted and rejected, and the one whose row is looked at."""
_TRIALS = 2
"""The quicker one counts: the first may be that of a machine busy with something else."""
_NEAR = 0.5
"""Part of what the rejected tokens change about that row by which it may differ from the right one."""


class Untried(LanguageModel, Protocol):
    """A context in this process, which can be told how to cut its caches back."""

    memory: Memory
    """What it claims; setting it makes the context go back that way."""

    @property
    def model(self) -> Model:
        """What it computes with."""


def classify(context: Untried) -> Memory:
    """Try the memory `context` claims to have, then saved states; what works becomes `context.memory`. Empties slot 0.

    One pass over two tokens where every layer keeps a cell per token; eight to fourteen short ones otherwise.
    """
    claimed = context.memory
    rejected = _REJECTED[: claimed.depth or None]
    if claimed.kind is MemoryKind.ANYWHERE and not context.model.n_swa:
        works = claimed if _cuts(context) else _nowhere(context, claimed)
    elif context.n_ctx <= len(_KEPT) + len(rejected) + 1:
        works = _nowhere(context, claimed)  # no room to try, and none to draft
    else:
        right, wrong = (_row(context, tokens) for tokens in ([*_KEPT, _NEXT], [*_KEPT, *rejected, _NEXT]))
        works = _nowhere(context, claimed)
        for kind in dict.fromkeys((claimed.kind, MemoryKind.CHECKPOINTS)):
            context.memory = claimed if kind is claimed.kind else replace(claimed, kind=kind, depth=0)
            trials = [_rejects(context, rejected, right, wrong) for _ in range(_TRIALS)]
            seconds = min((s for s in trials if s is not None), default=None)
            if seconds is not None and None not in trials:
                works = replace(context.memory, seconds=0.0 if context.memory.free else seconds)
                break
    context.memory = works
    context.trim(0, 0)
    return works


def _nowhere(context: Untried, claimed: Memory) -> Memory:
    reason = claimed.reason or f"the cache of {context.model.path.name} cannot be cut back"
    return Memory(MemoryKind.NOWHERE, reason=reason)


def _cuts(context: Untried) -> bool:
    """Whether two tokens can be cut to one, by the cache's own account."""
    try:
        context.trim(0, 0)
        context.decode([Chunk(0, list(_KEPT[:2]), 0)])
        context.trim(0, 1)
    except CacheError:
        return False
    return context.length(0) == 1


def _row(context: Untried, tokens: Sequence[int]) -> Logits:
    context.trim(0, 0)
    row: Logits = context.decode([Chunk(0, tokens, 1)])[0][0].copy()
    return row


def _rejects(context: Untried, rejected: Sequence[int], right: Logits, wrong: Logits) -> float | None:
    """Reject a draft and look at the row after it; seconds of mark and cut, or None where this memory does not work."""
    kept = list(_KEPT)
    try:
        context.trim(0, 0)
        context.decode([Chunk(0, kept[:2], 0)])
        started = time.perf_counter()
        context.mark(0, len(rejected))
        marking = time.perf_counter() - started
        context.decode([Chunk(0, [*kept[2:], *rejected], 1)])
        started = time.perf_counter()
        held = context.foothold(0, len(kept))
        context.trim(0, held)
        cutting = time.perf_counter() - started
        if context.length(0) != held or held < len(kept) - 1:
            return None
        row = context.decode([Chunk(0, [*kept[held:], _NEXT], 1)])[0][0]
    except BackendError:
        return None
    # Passes of different width round differently; rejected tokens that are still there do far more than that.
    if float(np.abs(row - right).sum()) > _NEAR * float(np.abs(wrong - right).sum()):
        return None
    return marking + cutting
