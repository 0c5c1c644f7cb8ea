"""Which real models the tests run on, and where they are.

`SPEC_LOCAL_TEST_THREADS` sets llama.cpp's threads (default: physical cores).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_local.errors import SpecLocalError
from spec_local.session.engine import Engine

TARGET, DRAFT, SMALL = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct"
THREADS = int(os.environ.get("SPEC_LOCAL_TEST_THREADS", "0"))

Load = Callable[..., Engine]
"""Of the fixture `engines`: (target, draft, **options) to an engine."""


def model_path(name: str) -> Path:
    """The file of a catalogue name; skips the test where it is not on this machine."""
    from spec_local.models_manifest import resolve_model

    try:
        return resolve_model(name).path
    except SpecLocalError as error:
        pytest.skip(str(error))
