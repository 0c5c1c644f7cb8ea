"""What a line asks for fails alone: it is never a failing backend, and its neighbours are answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import N_VOCAB

from spec_local.cli.main import main

pytestmark = pytest.mark.usefixtures("own_folders")

_EVERY = dict.fromkeys(map(str, range(N_VOCAB)), -100)
IMPOSSIBLE: list[tuple[bytes | dict[str, Any], str]] = [
    ({"grammar": 'root ::= "q"', "logit_bias": _EVERY}, "no_token"),
    ({"logit_bias": _EVERY}, "no_token"),
    ({"logit_bias": {**_EVERY, "0": -1000}, "temperature": 0}, "no_token"),
    ({"json_schema": {"type": "integer"}, "logit_bias": _EVERY}, "no_token"),
    ({"logit_bias": {str(N_VOCAB + 7): 1}}, "usage"),
    ({"prompt": "word " * 400}, "context_full"),
    ({"json_schema": {"type": "strin"}}, "invalid_grammar"),
    ({"json_schema": False}, "invalid_grammar"),
    ({"json_schema": {"enum": []}}, "invalid_grammar"),
    ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 1}}, "invalid_grammar"),
    ({"grammar": 'root ::= "a'}, "invalid_grammar"),
    ({"grammar": "root ::= nowhere"}, "invalid_grammar"),
    ({"grammar": 'root ::= "a"', "json_schema": {}}, "invalid_grammar"),
    ({"temperature": -1}, "invalid_sampling"),
    ({"max_tokens": -5}, "invalid_sampling"),
    ({"prompt": " "}, "empty_prompt"),
    ({"prompt": 5}, "wrong_type"),
    (b'{"id": "x", "prompt": "\\ud83d"}', "lone_surrogate"),
    (b'{"prompt": "a", "temperature": NaN}', "not_a_number"),
    (b"{half", "invalid_json"),
]


@pytest.mark.parametrize("parallel", ["1", "2", "4", "8", "auto"])
def test_twenty_impossible_lines_among_sixty(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, parallel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forty answers, twenty errors of their own, exit 1: also where many that fail in a pass follow one another."""
    rows: list[bytes] = []
    for i in range(60):
        fields = IMPOSSIBLE[i - 20][0] if 20 <= i < 40 else {}
        plain = {"id": i, "prompt": f"item {i}", "max_tokens": 6, "seed": i}
        rows.append(fields if isinstance(fields, bytes) else json.dumps(plain | fields).encode())
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\n".join(rows))
    words = ["generate", "-m", tiny_target, "-d", tiny_draft, "--input", source, "--output", out, "--threads", 1]
    assert main([*map(str, words), "--n-ctx", "256", "--parallel", parallel]) == 1
    records = {record["line"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert sorted(records) == list(range(1, 61))
    for i, (_, wanted) in enumerate(IMPOSSIBLE, 21):
        assert records[i]["error"]["type"] == wanted, records[i]["error"]
    answered = [record for record in records.values() if "error" not in record]
    assert len(answered) == 40
    assert all(r["finish_reason"] in ("stop", "length") and r["usage"]["completion_tokens"] for r in answered)
    assert all(r["speculation"]["sources"].get("model") or r["speculation"]["state"] == "on" for r in answered)
    assert "40 answered, 20 failed" in capsys.readouterr().err


@pytest.mark.parametrize("grammar", ['root ::= "ab"', "root ::= [0-9]"])
def test_a_finished_grammar_ends_an_answer_that_was_to_be_longer(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, grammar: str
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": f"item {i}", "grammar": grammar, "min_tokens": 30} for i in range(4)]
    source.write_text("\n".join(map(json.dumps, lines)))
    words = ["generate", "-m", tiny_target, "-d", tiny_draft, "--input", source, "--output", out, "--threads", 1]
    assert main([*map(str, words), "--n-ctx", "256"]) == 0
    for record in map(json.loads, out.read_text().splitlines()):
        assert record["finish_reason"] == "stop"
        assert record["text"] in ("ab", *"0123456789")


def test_a_prompt_that_asks_for_the_impossible_is_a_usage_error(
    tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grammar = tmp_path / "q.gbnf"
    grammar.write_text('root ::= "q"')
    words = ["generate", "-m", tiny_target, "-d", "none", "-p", "x", "--threads", 1, "--grammar", grammar]
    bans = [word for token in range(N_VOCAB) for word in ("--logit-bias", f"{token}=-100")]
    assert main([*map(str, words), *bans, "--n-ctx", "256"]) == 2
    assert "grammar, bans and biases leave none" in capsys.readouterr().err
    assert main([*map(str, words), "--min-tokens", "30", "--n-ctx", "256"]) == 0
    assert capsys.readouterr().out == "q\n"
