"""What was measured once for a machine, build and pair of files, kept for the next start."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from spec_local.llama.library import build_info
from spec_local.llama.rpc import Worker
from spec_local.paths import cache_folder
from spec_local.session.loading import Loaded

Identity = dict[str, str]


def identity(loaded: Loaded) -> Identity:
    """What a measurement depends on; another value of any of these asks for a new one."""
    files = {"target": loaded.target, "draft": loaded.draft}
    found = {
        role: f"{context.model.path.name} {context.model.path.stat().st_size}"
        for role, context in files.items()
        if context is not None
    }
    shape = loaded.options.model_dump(mode="json", include=_SHAPE)
    found.update({name: str(value) for name, value in shape.items()})
    if loaded.workers:
        found["workers"] = "; ".join(map(_worker, loaded.workers))
    if loaded.kernels.on:
        found["kernels"] = f"{loaded.kernels.instructions} {loaded.kernels.taken}"
    found["machine"] = f"{platform.node()} {platform.machine()} {os.cpu_count()}"
    found["build"] = " ".join(build_info().values())
    return found


def _worker(worker: Worker) -> str:
    """A worker as far as passes cost: its devices, and the power of two of its round trip in ms.

    Over another link to the same address (Wi-Fi instead of a cable) everything costs something else.
    """
    trip = max(0, round(math.log2(max(1e-3, worker.round_trip_s) * 1e3)))
    sizes = " ".join(str(device.total_bytes >> 30) for device in worker.devices)
    return f"{worker.endpoint} {sizes} GiB 2^{trip} ms"


def saved_path(kind: str, identity: Identity) -> Path:
    """The file of one measurement."""
    name = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    return cache_folder() / kind / f"{name}.json"


def read_saved(path: Path, identity: Identity) -> dict[str, Any] | None:
    """What `write_saved` wrote for this very identity (its entry "identity"); None where there is nothing usable."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return saved if isinstance(saved, dict) and saved.get("identity") == identity else None


def write_saved(path: Path, values: Mapping[str, Any]) -> None:
    """Write in one step; a full disk or a read-only folder only costs the measurement next time."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(values), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        return


_SHAPE = {
    *("threads", "gpu_layers", "draft_gpu_layers", "device", "draft_device", "split_mode", "main_gpu", "tensor_split"),
    *("flash_attn", "cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v", "pad_width"),
}
