"""Nothing of the person's is read or written, and no test sees what another one chose."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path / "home"))
