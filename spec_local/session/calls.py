"""Calls of tools: read from the forms in which families write them.

A form that cannot be read is no call; its text stays in the answer.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Tools = Sequence[Mapping[str, Any]]
"""What may be called, in OpenAI's form, as `tools.checked` leaves it."""
Call = tuple[str, dict[str, Any]]
"""The name of a function and its arguments."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model made."""

    id: str
    """Nine letters and digits: some templates insist on this length."""
    name: str
    arguments: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's form, in which arguments are JSON text."""
        arguments = json.dumps(dict(self.arguments), ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


def read(form: str, body: str, tools: Tools = ()) -> list[Call] | None:
    """The calls in `body`, what stands between the opening and the closing tag of a family.

    Args:
        form: A name of `families.Calls.form`.
        body: The text.
        tools: Schemas: forms without quotes say by them what is a number and what is a text.

    Returns:
        None where it is no call.
    """
    try:
        return _READERS[form](body, tools) or None
    except (ValueError, TypeError, KeyError, IndexError, SyntaxError, RecursionError):
        return None


def parameters_of(tools: Tools, name: str) -> Mapping[str, Any]:
    """The schema of a function's arguments; empty for an unknown function."""
    for tool in tools:
        if tool["function"]["name"] == name:
            found: Mapping[str, Any] = tool["function"].get("parameters") or {}
            return found
    return {}


def _json(body: str, tools: Tools) -> list[Call]:
    value = json.loads(body)
    return [_json_call(item) for item in (value if isinstance(value, list) else [value])]


def _json_call(value: Any) -> Call:
    value = value.get("function", value) if isinstance(value.get("function"), dict) else value
    name = value["name"]
    arguments = value["arguments"] if "arguments" in value else value["parameters"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError(name)
    return name, arguments


def _llama(body: str, tools: Tools) -> list[Call]:
    """JSON, several with semicolons between them, or `name.call(x=1)`."""
    body = body.strip()
    if (called := re.fullmatch(r"([\w.-]+)\.call\((.*)\)", body, re.DOTALL)) is not None:
        tree = ast.parse(f"f({called[2]})", mode="eval").body
        assert isinstance(tree, ast.Call)
        if tree.args:
            raise ValueError("arguments without names")
        return [(called[1], {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords})]
    found, at, decoder = [], 0, json.JSONDecoder()
    while at < len(body):
        value, at = decoder.raw_decode(body, at)
        found.append(_json_call(value))
        rest = body[at:].lstrip()
        if rest and rest[0] != ";":
            raise ValueError("text behind a call")
        at = len(body) - len(rest[1:].lstrip()) if rest else len(body)
    return found


def _mistral(body: str, tools: Tools) -> list[Call]:
    """A JSON list, or `name[ARGS]{...}`, in later versions with an id and several with the tag before each."""
    if body.lstrip().startswith(("[{", "[ {", "{")):
        return _json(body, tools)
    found = []
    for part in body.split("[TOOL_CALLS]"):
        name, marked, arguments = part.partition("[ARGS]")
        if not marked:
            name, _, arguments = part.partition("{")
            arguments = "{" + arguments
        found.append(_json_call({"name": name.split("[CALL_ID]")[0].strip(), "arguments": json.loads(arguments)}))
    return found


def _deepseek(body: str, tools: Tools) -> list[Call]:
    """Each call is `function<sep>name, a fence of JSON`, in later versions `name<sep>JSON`."""
    found = []
    for part in body.split("<｜tool▁call▁begin｜>")[1:]:
        first, _, rest = part.partition("<｜tool▁call▁end｜>")[0].partition("<｜tool▁sep｜>")
        if "```json" in rest:
            first, _, rest = rest.partition("```json")
            rest = rest.rpartition("```")[0]
        found.append(_json_call({"name": first.strip(), "arguments": json.loads(rest)}))
    return found


def _qwen_xml(body: str, tools: Tools) -> list[Call]:
    found = []
    for name, inner in re.findall(r"<function=([^>\n]+)>(.*?)</function>", body, re.DOTALL):
        pairs = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", inner, re.DOTALL)
        found.append((name.strip(), _typed(pairs, parameters_of(tools, name.strip()))))
    return found


def _glm(body: str, tools: Tools) -> list[Call]:
    name = body.partition("<arg_key>")[0].strip()
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(name)
    pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", body, re.DOTALL)
    return [(name, _typed(pairs, parameters_of(tools, name)))]


def _typed(pairs: Sequence[tuple[str, str]], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Values without quotes: a text where the schema says so, else JSON where it is JSON."""
    properties = schema.get("properties") or {}
    arguments: dict[str, Any] = {}
    for name, text in pairs:
        wanted = properties.get(name.strip(), {}).get("type")
        arguments[name.strip()] = text
        if wanted != "string":
            try:
                arguments[name.strip()] = json.loads(text)
            except ValueError:
                arguments[name.strip()] = {"True": True, "False": False, "None": None}.get(text.strip(), text)
    return arguments


_GEMMA_TEXT = '<|"|>'


def _gemma(body: str, tools: Tools) -> list[Call]:
    """`call:name{key:value,…}`: keys bare, texts between `<|"|>`."""
    called = re.fullmatch(r"\s*call:([\w.-]+)(\{.*\})\s*", body, re.DOTALL)
    if called is None:
        raise ValueError(body)
    value, end = _gemma_value(called[2], 0)
    if end != len(called[2]) or not isinstance(value, dict):
        raise ValueError(body)
    return [(called[1], value)]


def _gemma_value(text: str, at: int) -> tuple[Any, int]:
    if text.startswith(_GEMMA_TEXT, at):
        end = text.index(_GEMMA_TEXT, at + len(_GEMMA_TEXT))
        return text[at + len(_GEMMA_TEXT) : end], end + len(_GEMMA_TEXT)
    if text[at] in "{[":
        close = "}" if text[at] == "{" else "]"
        table: dict[str, Any] = {}
        row: list[Any] = []
        at += 1
        while text[at] != close:
            if close == "}":
                if text.startswith(_GEMMA_TEXT, at):
                    key, at = _gemma_value(text, at)
                else:
                    key, at = text[at : text.index(":", at)], text.index(":", at)
                if text[at] != ":":
                    raise ValueError(text)
                table[key.strip()], at = _gemma_value(text, at + 1)
            else:
                value, at = _gemma_value(text, at)
                row.append(value)
            if text[at] == ",":
                at += 1
        return (table if close == "}" else row), at + 1
    bare = re.compile(r"[^,}\]]+").match(text, at)
    if bare is None:
        raise ValueError(text)
    return json.loads(bare[0]), bare.end()


_READERS: dict[str, Callable[[str, Tools], list[Call]]] = {
    "json": _json,
    "llama": _llama,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "qwen-xml": _qwen_xml,
    "glm": _glm,
    "gemma": _gemma,
}
