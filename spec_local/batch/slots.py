"""How many sequences the memory of this machine has room for."""

from __future__ import annotations

import psutil

from spec_local import models_manifest as manifest
from spec_local.errors import SpecLocalError
from spec_local.llama.devices import list_devices
from spec_local.session.options import EngineOptions

MOST_ON_CPU, MOST_ON_GPU = 8, 32
"""Slots beyond these bring nothing: there the passes are wide enough to be bound by arithmetic."""
_SHARE = 0.5
"""Of the memory that the weights leave; the rest belongs to whatever else runs here."""


def affordable_slots(options: EngineOptions) -> int:
    """Sequences, at least 1, whose caches of `n_ctx` tokens fit into half of what the weights leave free.

    An estimate from the headers of the model files; 1 where they cannot be read, so that loading says why.
    """
    try:
        draft_name = options.draft if options.longest_draft > 0 else "none"
        target, draft, _ = manifest.resolve_pair(options.target, draft_name, options.pair)
        n_ctx = 4096 if options.n_ctx == "auto" else options.n_ctx  # the context is then made to fit the slots
        headers = [manifest.read_header(file.path) for file in (target, draft) if file is not None]
        cache_bytes = sum(
            manifest.kv_bytes(header, tokens, type_k, type_v)
            for header, tokens, type_k, type_v in zip(
                headers,
                (n_ctx, options.draft_n_ctx or n_ctx),
                (options.cache_type_k, options.draft_cache_type_k),
                (options.cache_type_v, options.draft_cache_type_v),
                strict=False,
            )
        )
    except SpecLocalError:
        return 1
    weights = sum(header.tensor_bytes for header in headers)
    free_bytes, most = _room(options)
    return max(1, min(most, int((free_bytes - weights) * _SHARE // max(1, cache_bytes))))


def _room(options: EngineOptions) -> tuple[int, int]:
    """Free bytes where the caches will lie, on the offload devices or the host, and the most slots worth having."""
    if options.gpu_layers != 0 and options.device not in (("none",), ("cpu",)):
        devices = [d for d in list_devices() if d.kind in ("gpu", "integrated gpu")]
        wanted = [d for d in devices if not options.device or d.name in options.device]
        if wanted:
            return sum(d.free_bytes for d in wanted), MOST_ON_GPU
    return int(psutil.virtual_memory().available), MOST_ON_CPU
