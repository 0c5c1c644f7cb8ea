"""Whatever a file holds, reading it is a value or a sentence: never a traceback, a hang or a crash.

GGUF headers have their fuzzer in tests/models, templates in tests/session; here are the others.
"""

# ruff: noqa: PT017 -- reading may succeed or be refused; only what a refusal says is judged
from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from spec_local.batch.records import BadLine, Item, Layout, read_items
from spec_local.cli.options import OPTIONS, resolve
from spec_local.errors import ModelError, SpecLocalError, UsageError
from spec_local.models_manifest.catalogue import Catalogue, builtin_catalogue, user_catalogue
from spec_local.session.structured import GrammarError, gbnf, json_schema

SOON = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.just("\ud800")
    | st.just(1 << 80)
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=8), v, max_size=4))
NAMES = (
    "id",
    "prompt",
    "messages",
    "system",
    "temperature",
    "seed",
    "stop",
    "json_schema",
    "grammar",
    "role",
    "content",
)


def _lines(data: bytes, **layout: Any) -> list[Item | BadLine]:
    try:
        return list(read_items(io.BytesIO(data), Layout(**layout)))
    except UsageError as error:
        assert error.message
        return []


@SOON
@given(st.lists(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), VALUES, max_size=5) | VALUES, max_size=4))
def test_json_lines_of_anything(records: list[Any]) -> None:
    text = "\n".join(json.dumps(record) for record in records)
    found = _lines(text.encode("utf-8", "surrogatepass"))
    assert len(found) == len(records)
    for item in found:
        if isinstance(item, BadLine):
            assert item.error.message.endswith(".")
        else:
            assert item.prompt
            assert math.isfinite(item.sampling.get("temperature", 0.0) or 0.0)


@SOON
@given(st.binary(max_size=200), st.sampled_from(["jsonl", "csv", "text"]))
def test_bytes_as_lines(data: bytes, form: Any) -> None:
    for item in _lines(data, format=form):
        assert isinstance(item, Item | BadLine)


@pytest.mark.parametrize("line", [
    b"[" * 100_000, b'{"a":' * 50_000, b'{"prompt": ' + b"9" * 10_000 + b"}", b'{"prompt": 1e999}', b"\xff" * 99,
    b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", b'{"prompt": "x", "logit_bias": {"1": 1e999}}',
    b'{"prompt": "x", "stop": [' + b'"a",' * 5000 + b'"b"]}',
])  # fmt: skip
def test_lines_made_to_hurt(line: bytes) -> None:
    (found,) = _lines(line + b"\n")
    assert isinstance(found, BadLine) or found.sampling["stop"]


@SOON
@given(st.text(max_size=120) | st.dictionaries(st.sampled_from([o.name for o in OPTIONS]), VALUES, max_size=4))
def test_configurations_of_anything(tmp_path: Path, content: str | dict[str, Any]) -> None:
    path = tmp_path / "config.toml"
    if isinstance(content, dict):
        content = "\n".join(f"{name} = {_toml(value)}" for name, value in content.items())
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    try:
        found = resolve({}, {}, path)
    except UsageError as error:
        assert str(path) in error.message or " in " in error.message
    else:
        assert set(found) <= {option.name for option in OPTIONS}


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return {None: "''", True: "true", False: "false"}.get(value, repr(value))


@pytest.mark.parametrize(
    "content", ["n_ctx = " + "[" * 5000, "n_ctx = " + "9" * 10_000, "[" * 10_000, "\x00", "a" * 10**6]
)
def test_configurations_made_to_hurt(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.toml").write_text(content)
    with pytest.raises(UsageError):
        resolve({}, {}, tmp_path / "config.toml")


@SOON
@given(data=st.data())
def test_catalogues_of_anything(data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real catalogue with one value exchanged for another: a sentence that says where, or a usable catalogue."""
    value: Any = json.loads(builtin_catalogue().model_dump_json(exclude_defaults=True))
    value["models"] = value["models"][:2]
    value.pop("pairs", None)
    at: Any = value
    while isinstance(at, dict | list) and at and data.draw(st.integers(0, 9)) > 1:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], dict | list) or data.draw(st.booleans()):
            at[key] = data.draw(VALUES | st.sampled_from(["../x", "..", "/etc/passwd", "a/b", "C:\\x", "x\x1b[2J", ""]))
            break
        at = at[key]
    path = tmp_path / "catalogue.json"
    path.write_bytes(json.dumps(value).encode("utf-8", "surrogatepass"))
    monkeypatch.setattr("spec_local.models_manifest.catalogue.user_catalogue_path", lambda: path)
    try:
        _stays_inside(user_catalogue(), tmp_path, monkeypatch)
    except ModelError as error:
        assert str(path) in error.message


def _stays_inside(catalogue: Catalogue, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spec_local.models_manifest.store import stored_paths

    monkeypatch.setenv("SPEC_LOCAL_MODELS", str(folder / "models"))
    for entry in catalogue.models:
        for variant in entry.variants:
            for path in stored_paths(entry, variant):
                assert path.resolve().parent.parent == (folder / "models").resolve()
                assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in str(path))


@pytest.mark.parametrize("name", ["..", ".", "../x.gguf", "/etc/passwd", "a/b.gguf", "a\\b.gguf", "x\x1b[2J.gguf", "",
                                  "C:x.gguf", "x\n.gguf", "\x00", ". .", "x\x9b31m.gguf", "a" * 300])  # fmt: skip
def test_no_file_name_leaves_its_folder(name: str) -> None:
    value: Any = json.loads(builtin_catalogue().model_dump_json(exclude_defaults=True))
    value = {"models": value["models"][:1]}
    value["models"][0]["variants"][0]["files"][0]["name"] = name
    with pytest.raises(ValueError, match="name"):
        Catalogue.model_validate(value)
    for folder in ("../x", "..", "a/../b", "/a"):
        with pytest.raises(ValueError):
            Catalogue.model_validate({"models": [{**value["models"][0], "variants": [{
                **value["models"][0]["variants"][0], "files": [{"name": "a.gguf"}],
                "sources": [{"kind": "hub", "repository": "a/b", "folder": folder}]}]}]})  # fmt: skip


@SOON
@given(VALUES | st.text(max_size=60))
def test_schemas_of_anything(value: Any) -> None:
    for schema in (value, json.dumps(value)):
        try:
            json_schema(schema)
        except GrammarError as error:
            assert error.message.startswith("The JSON schema")


GBNF = st.lists(
    st.sampled_from(
        ["root", " ::= ", '"a"', "[a-z]", "(", ")", "*", "+", "?", "|", "{2,3}", "\n", "x", "#", "\\", "^", '"']
    )
    | st.text(max_size=4),
    max_size=14,
).map("".join)


@SOON
@given(GBNF)
def test_grammars_of_anything(text: str) -> None:
    try:
        gbnf(text)
    except GrammarError as error:
        assert error.message.startswith("The grammar")


@pytest.mark.parametrize("make", [
    lambda: json_schema("[" * 100_000), lambda: json_schema('{"allOf":[' * 5000), lambda: json_schema({"$ref": "#"}),
    lambda: json_schema({"type": "string", "pattern": "(" * 3000}), lambda: json_schema({"maxLength": 10**18}),
    lambda: json_schema({"type": "array", "minItems": 10**9}), lambda: gbnf("root ::= " + "(" * 20_000),
    lambda: gbnf("root ::= root"), lambda: gbnf('root ::= "a"{1000000000}'),
    lambda: gbnf("root ::= " + '"a" ' * 20_000),
    lambda: json_schema({"type": "string", "pattern": "(a{999}){999}"}),
])  # fmt: skip
def test_structures_made_to_hurt(make: Any) -> None:
    import time

    started = time.thread_time()
    try:
        make()
    except SpecLocalError as error:
        assert error.message
    assert time.thread_time() - started < 20
