"""Workers on loopback are the offload devices of these tests: two workers stand for two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_worker import RunningWorker


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders


@pytest.fixture(scope="session")
def target(tiny_folder: Path) -> Path:
    """Four layers of 328 kB each."""
    from tiny_gguf import write_transformer

    return write_transformer(tiny_folder / "remote-target.gguf", seed=1, layers=4, width=128)


@pytest.fixture(scope="session")
def draft(tiny_folder: Path) -> Path:
    from tiny_gguf import write_transformer

    return write_transformer(tiny_folder / "remote-draft.gguf", seed=1, layers=4, width=128, near=0.1)


@pytest.fixture(scope="module")
def workers() -> Iterator[list[RunningWorker]]:
    """Two, for tests that leave them alive."""
    running = [RunningWorker("--memory", "1GB"), RunningWorker("--memory", "1GB")]
    yield running
    for worker in running:
        worker.stop()


@pytest.fixture
def mortal() -> Iterator[RunningWorker]:
    """One that the test may kill."""
    worker = RunningWorker()
    yield worker
    worker.stop()
