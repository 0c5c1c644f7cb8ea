"""How many sequences the memory of this machine has room for."""

from __future__ import annotations

from spec_local import models_manifest as manifest
from spec_local.errors import SpecLocalError
from spec_local.session.memory import plan
from spec_local.session.options import EngineOptions
from spec_local.session.room import Room

MOST_ON_CPU, MOST_ON_GPU = 8, 32
"""Slots beyond these bring nothing: there the passes are wide enough to be bound by arithmetic."""
_SHARE = 0.6
"""Part of the free memory to be taken; the rest belongs to whatever else runs here."""
_AUTO_CONTEXT = 4096
"""Tokens a slot should have at least where the size of the context is left open."""


def affordable_slots(options: EngineOptions, room: Room | None = None) -> int:
    """Sequences, at least 1, whose caches fit beside the weights: a power of two.

    Args:
        options: How the engine will be loaded; `parallel` does not matter.
        room: Free memory; None to look.

    Returns:
        1 where the model files cannot be read, so that loading them says why.
    """
    try:
        files = manifest.resolve_pair(options.target, options.wanted_draft, options.pair)[:2]
        target, draft = (None if file is None else manifest.read_header(file.path) for file in files)
    except SpecLocalError:
        return 1
    assert target is not None
    alone = plan(options.model_copy(update={"parallel": 1}), target, draft, room)
    n_ctx = min(alone.n_ctx, _AUTO_CONTEXT) if options.n_ctx == "auto" else alone.n_ctx
    slots = MOST_ON_GPU if alone.on_devices else MOST_ON_CPU
    while slots > 1:
        wanted = options.model_copy(update={"parallel": slots, "n_ctx": n_ctx})
        if plan(wanted, target, draft, alone.room).fits(_SHARE):
            break
        slots //= 2
    return slots
