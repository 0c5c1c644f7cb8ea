"""Input that other programs wrote: tables of another locale, OpenAI's batch lines, other names for our fields."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from batch_engines import ScriptedEngine

from spec_local.batch.failures import failure_type
from spec_local.batch.records import BadLine, Item, Layout, read_items
from spec_local.batch.runner import Outcome
from spec_local.batch.summary import Summary
from spec_local.cli import loading
from spec_local.cli.main import main
from spec_local.errors import UsageError


def read(data: str | bytes, **layout: Any) -> list[Item | BadLine]:
    return list(read_items(io.BytesIO(data if isinstance(data, bytes) else data.encode()), Layout(**layout)))


def one(fields: dict[str, Any]) -> Item:
    (item,) = read(json.dumps(fields))
    assert isinstance(item, Item), item
    return item


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "id,prompt\n1,a; b\n2,c\n",
        "id;prompt\n1;a; b\n2;c\n".replace("a; b", '"a; b"'),
        "id\tprompt\n1\ta; b\n2\tc\n",
        "id|prompt\n1|a; b\n2|c\n",
        'sep=;\nid;prompt\n1;"a; b"\n2;c\n',
        '"sep=;"\r\nid;prompt\r\n1;"a; b"\r\n2;c\r\n',
        "sep=\t\nid\tprompt\n1\ta; b\n2\tc\n",
        '\ufeffid;prompt\n1;"a; b"\n2;c\n',
        '"id";"prompt"\n1;"a; b"\n2;c\n',
    ],
)
def test_the_delimiter_is_found(text: str) -> None:
    items = read(text, format="csv")
    assert [(item.id, item.prompt) for item in items if isinstance(item, Item)] == [("1", "a; b"), ("2", "c")]


def test_a_system_column_is_one_with_any_delimiter() -> None:
    (item,) = read("prompt;system\nask;be brief\n", format="csv")
    assert isinstance(item, Item)
    assert (item.prompt, item.system) == ("ask", "be brief")


def test_columns_that_are_wanted_decide() -> None:
    (item,) = read("a,b;prompt\nx,y;z\n", format="csv", column="b;prompt")
    assert isinstance(item, Item)
    assert item.prompt == "y;z"


@pytest.mark.parametrize("text", ["id;frage\n1;a\n", "frage\tantwort\na\tb\n", "sep=;\nid,prompt\n1,2\n"])
def test_a_table_without_the_column_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no column 'prompt'; it has: "):
        read(text, format="csv")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.tab"])
def test_a_table_is_looked_at_before_a_model_is_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*_: object) -> ScriptedEngine:
        raise AssertionError("nothing may be loaded")

    monkeypatch.setattr(loading, "load_engine", load)
    source = tmp_path / name
    source.write_text("id;frage\n1;was?\n")
    assert main(["generate", "--input", str(source), "--parallel", "1"]) == 2
    assert "no column 'prompt'; it has: id, frage" in capsys.readouterr().err


# --- OpenAI's lines ---------------------------------------------------------------------------------------------------

BODY = {
    "model": "gpt-4o",
    "messages": [{"role": "user", "content": "hello"}],
    "max_completion_tokens": 7,
    "temperature": 0,
    "stop": "x",
    "logprobs": True,
    "top_logprobs": 2,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}},
}


def test_an_openai_batch_line_is_read_as_it_is() -> None:
    line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": BODY}
    item = one(line)
    assert item.id == "r-1"
    assert item.prompt == ({"role": "user", "content": "hello"},)
    assert item.sampling == {"max_tokens": 7, "temperature": 0, "stop": ("x",), "logprobs": 2}
    assert item.json_schema == {"type": "null"}
    assert item.unknown == ("model",)
    error = ValueError("x")
    record = Outcome(item.line, item.id, None, error, item.fields).record()
    assert (record["id"], record["custom_id"]) == ("r-1", "r-1")


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_new_tokens": 5}, {"max_tokens": 5}),
        ({"n_predict": 5}, {"max_tokens": 5}),
        ({"n_predict": -1}, {}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"repetition_penalty": 1.5, "repeat_last_n": 9}, {"repeat_penalty": 1.5, "penalty_last_n": 9}),
        ({"logprobs": False, "top_logprobs": 3}, {}),
    ],
)
def test_other_names_mean_ours(fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    item = one({"prompt": "p", **fields})
    assert item.sampling == sampling
    assert item.unknown == ()


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        ({"type": "text"}, None),
        (None, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": {"type": "null"}}, {"type": "null"}),
        ({"type": "json_schema", "schema": {"type": "null"}}, {"type": "null"}),
    ],
)
def test_response_formats(wanted: Any, schema: Any) -> None:
    assert one({"prompt": "p", "response_format": wanted}).json_schema == schema


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": "json"},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'},
        {"max_tokens": 3, "max_completion_tokens": 4},
    ],
)
def test_what_cannot_be_meant_fails_alone(fields: dict[str, Any]) -> None:
    (item,) = read(json.dumps({"id": 5, "prompt": "p", **fields}))
    assert isinstance(item, BadLine)
    assert failure_type(item.error) in ("invalid_grammar", "invalid_sampling")
    assert item.id == 5


def test_a_field_that_is_not_used_is_named_once_in_a_run() -> None:
    summary = Summary()
    lines = [
        {"prompt": "p", "n": 3, "functions": [{"name": "f"}], "label": "mine"},
        {"prompt": "p", "n": 2, "modalities": ["audio"]},
        {"prompt": "p", "n": 1, "tools": [], "chat_template_kwargs": None, "stream": False},
    ]
    list(summary.watch(read("\n".join(map(json.dumps, lines)))))
    assert len(summary.notes) == 3
    for name in ("'n' (line 1)", "'functions' (line 1)", "'modalities' (line 2)"):
        assert sum(name in note and "is not used here" in note for note in summary.notes) == 1


def test_a_template_may_name_any_field_of_a_line() -> None:
    from spec_local.batch.prompt_template import PromptTemplate

    (item,) = read('{"n": 1, "tools": [], "model": "x"}', template=PromptTemplate("{n} {tools} {model}"))
    assert isinstance(item, Item)
    assert (item.prompt, item.unknown) == ("1 [] x", ())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b'{"id": "a", "prompt": "\\ud800"}', "a"),
        (b'{"id": 7, "prompt": "x", "deep": ["\\udfff"]}', 7),
        (b'{"custom_id": "c", "body": {"messages": [{"role": "user", "content": "\\ud800"}]}}', "c"),
        (b'{"id": "\\ud800", "prompt": "x"}', None),
    ],
)
def test_half_a_character_costs_a_line_its_answer_not_its_id(line: bytes, wanted: Any) -> None:
    (item,) = read(line)
    assert isinstance(item, BadLine)
    assert (failure_type(item.error), item.id) == ("lone_surrogate", wanted)
    json.dumps(Outcome(1, item.id, None, item.error, item.fields).record(echo=True), ensure_ascii=False).encode()
