"""How many threads: cores, affinity, and the time a container may have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spec_local.llama import processor


def group(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "own", "quota"),
    [
        ({}, "", None),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, "0::/a/b\n", 2.0),
        ({"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "50000 100000\n"}, "0::/a/b\n", 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/\n", None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/\n", 3.0),
        (
            {"cpu,cpuacct/d/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/d/cpu.cfs_period_us": "100000\n"},
            "5:memory:/d\n4:cpu,cpuacct:/d\n",
            1.0,
        ),
        ({"cpu.max": "nonsense\n"}, "0::/\n", None),
        ({"cpu.max": "100000 0\n"}, "garbage\n", None),
    ],
)
def test_the_quota_of_a_container_in_both_versions(
    tmp_path: Path, files: dict[str, str], own: str, quota: float | None
) -> None:
    (tmp_path / "self").write_text(own)
    assert processor.cpu_quota(group(tmp_path / "groups", files), tmp_path / "self") == quota


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (100.0, 8), (3.0, 3), (2.9, 2), (0.4, 1)])
def test_no_more_threads_than_the_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, threads: int) -> None:
    import psutil

    monkeypatch.setattr(processor, "cpu_quota", lambda: quota)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    processor.physical_cores.cache_clear()
    try:
        assert processor.physical_cores() == threads
    finally:
        processor.physical_cores.cache_clear()


def test_doctor_names_the_quota(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from spec_local.cli import doctor
    from spec_local.cli.main import main

    monkeypatch.setattr(doctor, "_decodes", lambda *_: [], raising=False)
    monkeypatch.setattr(processor, "cpu_quota", lambda: 1.5)
    main(["doctor"])
    assert "(this container may use 1.5)" in capsys.readouterr().out
