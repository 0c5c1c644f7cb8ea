"""The kernels, built once for the tests that need them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernel_library() -> Path:
    """The library where the program keeps it; skips where it cannot be built."""
    from spec_local.llama.kernels import build

    if problem := build.architecture_problem():
        pytest.skip(problem)
    path = build.library_path()
    if not path.exists():
        if not build.compiler():
            pytest.skip(build.NO_COMPILER)
        build.build()
    return path
