"""Batches on the real engine and llama.cpp, with tiny models of random weights."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from scipy import stats

from spec_local.batch.failures import failure_type
from spec_local.batch.records import BadLine, Item
from spec_local.batch.requests import Recipe
from spec_local.batch.runner import Runner
from spec_local.cli.main import main
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions

pytestmark = pytest.mark.usefixtures("own_folders")
Load = Callable[..., Engine]
SCHEMAS: list[dict[str, Any]] = [
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 1, "maxItems": 4},
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["red", "green", "blue"]}},
        "required": ["ok", "kind"],
        "additionalProperties": False,
    },
    {"type": "string", "minLength": 1, "maxLength": 5},
]


@pytest.fixture
def load_tiny(tiny_target: Path, tiny_draft: Path) -> Iterator[Load]:
    engines: list[Engine] = []

    def make(draft: str = "model", **options: Any) -> Engine:
        options = {"n_ctx": 300, "threads": 1, "draft_length": 4, **options}
        chosen = str(tiny_draft) if draft == "model" else draft
        engines.append(load(tiny_target, draft=chosen, options=EngineOptions(**options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def make_items(count: int = 16) -> list[Item]:
    chance = random.Random(1)
    shared = "The same long beginning of every prompt, again and again. "
    return [
        Item(
            i,
            f"n{i}",
            (shared if i % 4 else "") + "".join(chance.choices("abc def", k=chance.randint(1, 40))) + str(i),
            None,
            {"temperature": chance.choice([0.0, 0.8]), "seed": i, "max_tokens": chance.randint(2, 40)},
        )
        for i in range(1, count + 1)
    ]


def answers(engine: Engine, slots: int, items: list[Item]) -> dict[Any, tuple[int, ...]]:
    source: Iterator[Item | BadLine] = iter(items)
    found = {}
    for outcome in Runner(engine, slots, Recipe(Sampling(min_p=0.0)).request).run(source):
        assert outcome.result is not None, outcome.error
        found[outcome.id] = outcome.result.token_ids
    return found


@pytest.mark.parametrize(("slots", "draft"), [(4, "model"), (4, "none"), (8, "text")])
def test_answers_are_those_of_one_at_a_time(load_tiny: Load, slots: int, draft: str) -> None:
    items = make_items()
    alone = answers(load_tiny("none", pad_width=40), 1, items)
    random.Random(2).shuffle(items)
    engine = load_tiny(draft, parallel=slots, pad_width=40)
    assert answers(engine, slots, items) == alone


def test_a_batch_under_one_seed_is_a_sample(load_tiny: Load) -> None:
    """200 prompts of one length, one digit each: as spread as under a seed for each line; every line alone the same."""
    how = {"temperature": 3.0, "max_tokens": 1, "top_k": 0, "top_p": 1.0}
    prompts = [f"{i:03d}: pick a digit." for i in range(200)]

    def lines(seed: Callable[[int], int]) -> list[Item]:
        return [
            Item(i + 1, i, text, None, {**how, "seed": seed(i)}, None, "root ::= [0-9]")
            for i, text in enumerate(prompts)
        ]

    engine, alone = load_tiny("text", parallel=4, pad_width=8), load_tiny("none", pad_width=8)
    one, many = (answers(engine, 4, lines(seed)) for seed in (lambda _: 7, lambda i: 1000 + i))
    digits = [[found[i][0] for i in range(200)] for found in (one, many)]
    table = np.array([[row.count(token) for token in sorted({*digits[0], *digits[1]})] for row in digits])
    assert table.shape[1] == 10
    assert max(table[0]) < 100, "not one digit for all"
    assert stats.chi2_contingency(table).pvalue > 1e-4
    backwards = lines(lambda _: 7)[::-1]
    assert answers(alone, 1, backwards) == one


def test_a_shared_beginning_is_computed_once(load_tiny: Load) -> None:
    engine = load_tiny("model", parallel=4)
    items = [item for item in make_items() if item.line % 4]
    source: Iterator[Item | BadLine] = iter(items)
    outcomes = list(Runner(engine, 4, Recipe().request).run(source))
    cached = [o.result.cached_tokens for o in outcomes if o.result is not None]
    assert len(cached) == len(items)
    assert sum(tokens > 40 for tokens in cached) == len(items) - 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_structured_answers_are_valid_and_those_of_plain_decoding(load_tiny: Load, temperature: float) -> None:
    items = [
        Item(i, i, f"prompt {i}", None, {"temperature": temperature, "seed": i, "max_tokens": 120}, SCHEMAS[i % 3])
        for i in range(1, 13)
    ]
    plain = answers(load_tiny("none", pad_width=40), 1, items)
    for draft in ("model", "text", "none"):
        engine = load_tiny(draft, parallel=4, pad_width=40, draft_length=8)
        found = answers(engine, 4, items)
        assert found == plain
        for item in items:
            ids = found[item.id]
            assert ids[-1] in engine.vocabulary.end_ids
            jsonschema.validate(json.loads(engine.vocabulary.text(ids)), SCHEMAS[item.line % 3])


def test_a_line_with_a_schema_that_cannot_be_followed_fails_alone(load_tiny: Load) -> None:
    items = [
        Item(1, 1, "a", None, {"max_tokens": 3}, {"type": "strin"}),
        Item(2, 2, "a", None, {"max_tokens": 3}),
        Item(3, 3, "a", None, {"max_tokens": 3}, None, "nonsense"),
    ]
    engine = load_tiny("none", parallel=2)
    source: Iterator[Item | BadLine] = iter(items)
    outcomes = {o.line: o for o in Runner(engine, 2, Recipe().request).run(source)}
    assert outcomes[2].result is not None
    for line in (1, 3):
        error = outcomes[line].error
        assert error is not None
        assert failure_type(error) == "invalid_grammar"


def test_from_the_command_line(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out, schema = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "schema.json"
    source.write_text("".join(json.dumps({"id": i, "prompt": f"item {i}"}) + "\n" for i in range(6)))
    schema.write_text(json.dumps(SCHEMAS[1]))
    words = ["generate", "-m", tiny_target, "-d", tiny_draft, "--input", source, "--output", out, "--threads", 1]
    words += ["--json-schema", schema, "--n-ctx", 256, "--seed", 5, "--summary", tmp_path / "summary.json"]
    assert main([*map(str, words)]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(r["id"] for r in records) == list(range(6))
    for r in records:
        jsonschema.validate(json.loads(r["text"]), SCHEMAS[1])
        assert r["seed"] == 5
        assert r["speculation"]["state"] == "on"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["answered"] == 6
    assert summary["speculation"]["sources"]["grammar"]["acceptance_rate"] > 0.9
    before = out.read_bytes()
    assert main([*map(str, words), "--resume"]) == 0
    assert out.read_bytes() == before
    schema.write_text(json.dumps(SCHEMAS[0]))
    assert main([*map(str, words), "--resume"]) == 0
    assert out.read_bytes() != before, "another schema is another request"
    capsys.readouterr()
    schema.write_text('{"type": "strin"}')
    assert main([*map(str, words), "--resume"]) == 2
    assert "schema.json cannot be compiled" in capsys.readouterr().err


def test_auto_takes_as_many_slots_as_memory_has_room_for(tiny_target: Path, tiny_draft: Path) -> None:
    from spec_local.batch.slots import MOST_ON_CPU, affordable_slots
    from spec_local.models_manifest import read_header
    from spec_local.session.memory import plan
    from spec_local.session.room import Room

    options = EngineOptions(target=str(tiny_target), draft=str(tiny_draft), n_ctx=4096, device=("none",))
    headers = read_header(tiny_target), read_header(tiny_draft)
    sizes = {n: plan(options.model_copy(update={"parallel": n}), *headers).needed_host for n in (1, 2, 4, 8)}
    assert affordable_slots(options, Room(2**40)) == MOST_ON_CPU
    for slots in (1, 2, 4):
        assert affordable_slots(options, Room(int(sizes[slots] / 0.6) + 2)) == slots
        assert affordable_slots(options, Room(int(sizes[slots] / 0.6) - 2)) == max(1, slots // 2)
    assert affordable_slots(options, Room(1000)) == 1
    assert affordable_slots(options.model_copy(update={"n_ctx": "auto"}), Room(2**40)) == MOST_ON_CPU
    assert affordable_slots(options.model_copy(update={"target": "/no/such/file"})) == 1


def test_a_cut_structure_is_said_and_done_again(
    tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An array without end and few tokens: half a JSON. It stays `length`; nobody takes it for a whole one."""
    source, out, summary = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "summary.json"
    grammar = 'root ::= "[" [0-9]{20} "]"'
    lines = [{"id": 1, "prompt": "a", "grammar": grammar}, {"id": 2, "prompt": "a", "grammar": 'root ::= "x"'}]
    source.write_text("\n".join(map(json.dumps, lines)))
    words = ["generate", "-m", tiny_target, "-d", "none", "--input", source, "--output", out, "--threads", 1]
    words += ["--n-ctx", 128, "--max-tokens", 9, "--summary", summary]
    assert main([*map(str, words)]) == 0
    said = capsys.readouterr().err
    assert "1 of them cut before the schema or grammar was complete" in said
    assert "--retry-cut" in said
    assert json.loads(summary.read_text())["cut_structures"] == 1
    records = {record["id"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert [(records[i]["finish_reason"], records[i]["structure"]) for i in (1, 2)] == [
        ("length", "cut"),
        ("stop", "complete"),
    ]
    assert main([*map(str, words), "--resume"]) == 0
    assert "2 kept" in capsys.readouterr().err
    assert main([*map(str, words), "--resume", "--retry-cut"]) == 0
    assert "1 answered, 1 of them cut before the schema or grammar was complete, 1 kept" in capsys.readouterr().err
    assert main([*map(str, words), "--retry-cut"]) == 2
    alone = ["generate", "-m", tiny_target, "-d", "none", "-p", "a", "--grammar", tmp_path / "g", "--n-ctx", 128]
    (tmp_path / "g").write_text(grammar)
    capsys.readouterr()
    assert main([*map(str, alone), "--max-tokens", "5"]) == 0
    assert "ended (max_tokens) before its schema or grammar was complete" in capsys.readouterr().err
    assert main([*map(str, alone), "--max-tokens", "60"]) == 0
    assert "complete" not in capsys.readouterr().err
