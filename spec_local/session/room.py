"""The memory that is free on this machine now."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spec_local.llama.devices import Device


@dataclass(frozen=True, slots=True)
class Room:
    """Free bytes."""

    host: int
    """RAM that can be had without swapping; less where a container is limited."""
    swap: int = 0
    address_space: int | None = None
    """What the process may still map (`ulimit -v`); None where that is unlimited."""
    devices: int = 0
    """On the offload devices in use, together."""
    shared: bool = False
    """The devices that are here use the same memory as the processor."""
    remote: int = 0
    """Part of `devices` that lies on other machines."""


def free_room(devices: Iterable[Device] = ()) -> Room:
    """The memory that is free now on the host and on `devices`."""
    import psutil

    host = min([int(psutil.virtual_memory().available), *_container_room()])
    used = [device for device in devices if device.total_bytes]
    remote = sum(device.free_bytes for device in used if device.kind == "worker")
    shared = any(device.kind == "integrated gpu" or device.name.startswith(("Metal", "MTL")) for device in used)
    free = sum(device.free_bytes for device in used)
    return Room(host, int(psutil.swap_memory().free), _address_space(), free, shared, remote)


def _container_room(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What a container's limit leaves, cached file pages counted as free; empty where there is no limit."""
    for limit, used, details in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        with suppress(OSError, ValueError):
            allowed, taken = (int((root / name).read_text(encoding="ascii")) for name in (limit, used))
            lines = (line.split() for line in (root / details).read_text(encoding="ascii").splitlines())
            cached = sum(int(line[1]) for line in lines if line[0] in ("inactive_file", "active_file"))
            if allowed < 1 << 60:
                return [max(0, allowed - taken + cached)]
    return []


def _address_space() -> int | None:
    """What `ulimit -v` leaves of this process's address space; None where it is unlimited."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    import psutil

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else max(0, limit - int(psutil.Process().memory_info().vms))
