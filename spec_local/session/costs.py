"""What a pass costs here: measured once for a machine, build and pair of files, then remembered."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from hashlib import sha256

from spec_local.language_model import Chunk
from spec_local.llama.context import Context
from spec_local.llama.library import build_info
from spec_local.paths import cache_folder
from spec_local.session.loading import Loaded
from spec_local.session.options import EngineOptions
from spec_local.speculation.cost import CostProfile, Curve

_CONTEXT = 64
"""Tokens in the cache while measuring."""
_TARGET_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_DRAFT_ROWS = (1, 2, 4)


def cost_profile(loaded: Loaded, options: EngineOptions) -> CostProfile:
    """The saved profile of these models on this machine, or a fresh measurement (a second or two), which is saved."""
    identity = _identity(loaded, options)
    name = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_folder() / "costs" / f"{name}.json"
    try:
        profile = CostProfile.from_dict(json.loads(path.read_text(encoding="utf-8")))
        if profile.identity == identity:
            return profile
    except (OSError, ValueError):
        pass
    longest = max(2, options.max_rows)
    target = measure(loaded.target, [n for n in _TARGET_ROWS if n <= longest])
    draft = None if loaded.draft is None else measure(loaded.draft, [n for n in _DRAFT_ROWS if n <= options.batch_size])
    profile = CostProfile(Curve(target), None if draft is None else Curve(draft), identity)
    save(profile, path)
    return profile


def save(profile: CostProfile, path: os.PathLike[str]) -> None:
    """Write a profile in one step; a full disk or a read-only folder only costs the measurement next time."""
    temporary = f"{os.fspath(path)}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(temporary), exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(profile.as_dict(), file)
        os.replace(temporary, path)
    except OSError:
        return


def measure(
    context: Context, rows: list[int], repeats: int = 2, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Seconds of a pass by rows, the best of `repeats`, with `_CONTEXT` tokens cached. Leaves slot 0 empty."""
    filled = min(_CONTEXT, max(1, context.n_ctx - max(rows)), context.n_batch)
    rows = [n for n in rows if filled + n <= context.n_ctx]
    context.trim(0, 0)
    context.decode([Chunk(0, [0] * filled, 0)])
    best: dict[int, float] = {}
    for _ in range(repeats):
        for n in rows:
            wanted = min(n, context.options.max_rows)  # a draft context returns few rows; the others only fill its cache
            started = clock()
            context.decode([Chunk(0, [0] * n, wanted)])
            seconds = clock() - started
            context.trim(0, filled)
            best[n] = min(seconds, best.get(n, seconds))
    context.trim(0, 0)
    return best


def _identity(loaded: Loaded, options: EngineOptions) -> dict[str, str]:
    """What a measurement depends on; another value of any of these asks for a new one."""
    files = {"target": loaded.target, "draft": loaded.draft}
    identity = {
        role: f"{context.model.path.name} {context.model.path.stat().st_size}"
        for role, context in files.items()
        if context is not None
    }
    shape = options.model_dump(mode="json", include=_SHAPE)
    identity.update({name: str(value) for name, value in shape.items()})
    identity["machine"] = f"{platform.node()} {platform.machine()} {os.cpu_count()}"
    identity["build"] = " ".join(build_info().values())
    return identity


_SHAPE = {
    *("threads", "gpu_layers", "draft_gpu_layers", "device", "draft_device", "split_mode", "main_gpu", "tensor_split"),
    *("flash_attn", "cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v", "pad_width"),
}
