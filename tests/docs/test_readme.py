"""The README's Python example runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.models
def test_python_example(capsys):
    from spec_local.errors import ModelError
    from spec_local.models_manifest import resolve_pair

    try:
        resolve_pair()
    except ModelError as error:
        pytest.skip(error.message)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    text, figure = capsys.readouterr().out.strip().rsplit("\n", 1)
    assert len(text) > 20
    assert float(figure.split()[0]) >= 1
