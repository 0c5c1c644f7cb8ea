"""What a pass costs here: measured once for a machine, build and pair of files, then remembered."""

from __future__ import annotations

import time
from collections.abc import Callable

from spec_local.language_model import Chunk
from spec_local.llama.model_context import ModelContext
from spec_local.session.loading import Loaded, LoadProgress, keep_on
from spec_local.session.saved import identity, read_saved, saved_path, write_saved
from spec_local.speculation.cost import CostProfile, Curve

_CONTEXT = 64
"""Tokens in the cache while measuring."""
_STEP = 16
"""Of them that one pass brings there: between two passes, loading can be stopped."""
TARGET_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
DRAFT_ROWS = (1, 2, 3, 4, 8, 16, 64)


def cost_profile(loaded: Loaded, progress: LoadProgress | None = None) -> CostProfile:
    """The saved profile of these models on this machine, or a fresh measurement (some seconds), which is saved.

    Raises:
        Aborted: `progress` said so.
    """
    options, key = loaded.options, identity(loaded)
    path = saved_path("costs", key)
    if (saved := read_saved(path, key)) is not None:
        try:
            if not (profile := CostProfile.from_dict(saved)).stale:
                return profile
        except ValueError:
            pass
    longest = max(2, options.max_rows)
    go_on = keep_on(progress, "finding out what a pass costs here")
    target = measure(loaded.target, [n for n in TARGET_ROWS if n <= longest], go_on=go_on)
    draft = None
    if loaded.draft is not None:
        draft = measure(loaded.draft, [n for n in DRAFT_ROWS if n <= options.batch_size], go_on=go_on)
    profile = CostProfile(Curve(target), None if draft is None else Curve(draft), key)
    if not profile.stale:  # measured while something else took the processor: the next start tries again
        write_saved(path, profile.as_dict())
    return profile


def forget_stale(profile: CostProfile) -> None:
    """Let the next start measure again, where rounds have shown that the saved profile no longer fits."""
    if profile.stale:
        saved_path("costs", profile.identity).unlink(missing_ok=True)


def measure(
    context: ModelContext,
    rows: list[int],
    repeats: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    go_on: Callable[[float], None] = lambda _: None,
) -> dict[int, float]:
    """Seconds of a pass by rows as they are, the best of `repeats`, with `_CONTEXT` tokens cached. Empties slot 0.

    Args:
        context: Target or draft.
        rows: Widths to be measured.
        repeats: Times each is.
        clock: Seconds, monotonic.
        go_on: Told the share done before each pass; may raise.
    """
    width, context.width = context.width, int
    try:
        return _measure(context, rows, repeats, clock, go_on)
    finally:
        context.width = width


def _measure(
    context: ModelContext, rows: list[int], repeats: int, clock: Callable[[], float], go_on: Callable[[float], None]
) -> dict[int, float]:
    filled = min(_CONTEXT, max(1, context.n_ctx - max(rows)), context.n_batch)
    rows = [n for n in rows if filled + n <= context.n_ctx]
    context.trim(0, 0)
    for start in range(0, filled, _STEP):
        go_on(0.0)
        context.decode([Chunk(0, [0] * min(_STEP, filled - start), 0)])
    context.mark(0)
    best: dict[int, float] = {}
    for turn in range(repeats):
        for i, n in enumerate(rows):
            go_on((turn * len(rows) + i) / (repeats * len(rows)))
            wanted = min(
                n, context.options.max_rows
            )  # a draft context returns few rows; the others only fill its cache
            started = clock()
            context.decode([Chunk(0, [0] * n, wanted)])
            seconds = clock() - started
            context.trim(0, filled)
            best[n] = min(seconds, best.get(n, seconds))
    context.trim(0, 0)
    return best
