"""Nothing measured here goes into the user's own folders."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders
