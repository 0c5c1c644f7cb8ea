"""docs/faults.md is what the table says, every test it names exists, and so do those of SECURITY.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import fault_table

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_the_table() -> None:
    assert fault_table.missing() == []
    assert fault_table.PAGE.read_text(encoding="utf-8") == fault_table.page()


def test_what_security_promises_is_tested() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`tests/([\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 8
    for file, name in named:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not name or name in functions, f"{file}::{name}"
