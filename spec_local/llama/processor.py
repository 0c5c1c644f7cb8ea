"""The processors this process may use: cores, affinity, and a container's quota."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


@cache
def physical_cores() -> int:
    """Physical cores this process may run on: hyper-threads do not help memory-bound passes, and threads beyond a
    container's quota wait for one another."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min(allowed, psutil.cpu_count(logical=False) or allowed)
    quota = cpu_quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


def cpu_quota(groups: Path = _GROUPS, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processors' worth of time that control groups leave this process; None where they do not limit it.

    The smallest limit of its group and of those above it counts, in either version of control groups. A container sees
    its own group as the root.
    """
    limits = [quota for folder in _folders(groups, own) if (quota := _limit(folder)) is not None]
    return min(limits, default=None)


def _folders(groups: Path, own: Path) -> Iterator[Path]:
    """Folders whose limits may hold for this process."""
    yield from (groups, groups / "cpu", groups / "cpu,cpuacct")
    with suppress(OSError, ValueError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            roots = [groups] if not controllers else [groups / controllers, groups / "cpu"]
            if controllers and "cpu" not in controllers.split(","):
                continue
            place = Path(path.lstrip("/"))
            for root in roots:
                yield from (root / part for part in (place, *place.parents))


def _limit(folder: Path) -> float | None:
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()  # version 2
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota_us, period_us = (
            int((folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii")) for name in ("quota", "period")
        )
        return None if quota_us <= 0 else quota_us / period_us
    return None
