"""Grammars of calls: what a reply must look like where a tool must be called, or where its arguments are strict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spec_local.errors import UsageError
from spec_local.session.calls import Tools
from spec_local.session.families import Calls
from spec_local.session.structured import WHITESPACE, Structure, lark

_FORMS = ("json", "llama", "mistral", "qwen-xml", "glm")


def can_constrain(calls: Calls | None) -> bool:
    """Whether calls of this family can be made to follow a grammar."""
    return calls is not None and calls.form in _FORMS


def call_grammar(
    calls: Calls, tools: Tools, tokens: Mapping[str, int], source: str, *, opened: bool = False
) -> Structure:
    """A grammar of exactly one call of one of `tools`.

    Args:
        calls: The family.
        tools: What may be called.
        tokens: Special tokens of the vocabulary: a tag that is one of them is written as such.
        source: Of the chat template, which says which version of a form it is.
        opened: The opening tag was written already.

    Raises:
        UsageError: A schema cannot be compiled, or no grammar of this form is known.
    """
    if not can_constrain(calls):
        raise UsageError("A call cannot be demanded of this model: no grammar of the form of its calls is known.")

    def tag(text: str) -> str:
        return _tag(text, tokens) if text else ""

    rules: list[str] = []
    choices = []
    for i, tool in enumerate(tools):
        function = tool["function"]
        choices.append(
            _FORM[calls.form](
                i, function["name"], function.get("parameters") or {}, rules, tokens if "[ARGS]" in source else None
            )
        )
    inner = " | ".join(choices)
    before, after = "", ""
    if calls.form == "json":
        space = '"\\n"' if calls.family == "hermes" else ""
        before, after = ('"["', '"]"') if calls.family == "phi-4" and "|>[" in source else (space, space)
    elif calls.form == "mistral" and "[ARGS]" not in source:
        before, after = '"["', '"]"'
    elif calls.form == "qwen-xml":
        before, after = '"\\n"', ""
    opening = "" if opened else tag(calls.open)
    grammar = f"start: {opening} {before} call {after} {tag(calls.close)}\ncall: {inner}\n" + "\n".join(rules)
    return lark(grammar, "The parameters of a tool")


def _tag(text: str, tokens: Mapping[str, int]) -> str:
    return f"<[{tokens[text]}]>" if text in tokens else json.dumps(text)


def _arguments(i: int, schema: Mapping[str, Any], rules: list[str]) -> str:
    """A rule of the arguments as JSON."""
    schema = {"type": "object", **schema} if schema else {"type": "object"}
    rules.append(f"args{i}: %json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': WHITESPACE}})}")
    return f"args{i}"


def _json(key: str) -> Any:
    def form(i: int, name: str, schema: Mapping[str, Any], rules: list[str], args: Mapping[str, int] | None) -> str:
        head = json.dumps(f'{{"name": {json.dumps(name)}, "{key}": ', ensure_ascii=False)
        return f'{head} {_arguments(i, schema, rules)} "}}"'

    return form


def _mistral(i: int, name: str, schema: Mapping[str, Any], rules: list[str], args: Mapping[str, int] | None) -> str:
    if args is None:
        return str(_json("arguments")(i, name, schema, rules, args))
    return f"{json.dumps(name)} {_tag('[ARGS]', args)} {_arguments(i, schema, rules)}"


def _qwen_xml(i: int, name: str, schema: Mapping[str, Any], rules: list[str], args: Mapping[str, int] | None) -> str:
    values = _values(i, schema, rules, '"\\n</parameter>\\n"', "\\n</parameter>\\n")
    written = [
        (
            f'{json.dumps(f"<parameter={key}>")} "\\n" {rule}'
            if needed
            else f'({json.dumps(f"<parameter={key}>")} "\\n" {rule})?'
        )
        for key, rule, needed in values
    ]
    return " ".join([json.dumps(f"<function={name}>\n"), *written, '"</function>\\n"'])


def _glm(i: int, name: str, schema: Mapping[str, Any], rules: list[str], args: Mapping[str, int] | None) -> str:
    values = _values(i, schema, rules, '"</arg_value>\\n"', "</arg_value>\\n")
    written = []
    for key, rule, needed in values:
        text = f'{json.dumps(f"<arg_key>{key}</arg_key>")} "\\n<arg_value>" {rule}'
        written.append(text if needed else f"({text})?")
    return " ".join([json.dumps(f"{name}\n"), *written])


def _values(
    i: int, schema: Mapping[str, Any], rules: list[str], end: str, suffix: str
) -> Sequence[tuple[str, str, bool]]:
    """A rule for each argument, its closing tag included: (name, rule, whether it must be there)."""
    found = []
    required = schema.get("required") or ()
    for j, (key, value) in enumerate((schema.get("properties") or {}).items()):
        rule = f"value{i}_{j}"
        if isinstance(value, Mapping) and value.get("type") == "string":
            if choices := value.get("enum"):
                rules.append(
                    f"{rule}: ({' | '.join(json.dumps(str(choice), ensure_ascii=False) for choice in choices)}) {end}"
                )
            else:
                rules.append(f'{rule}[suffix="{suffix}"]: /(?s:.*)/')
        else:
            wanted = {**value} if isinstance(value, Mapping) else {}
            wanted["x-guidance"] = {"whitespace_pattern": WHITESPACE}
            rules.append(f"{rule}: json{i}_{j} {end}\njson{i}_{j}: %json {json.dumps(wanted)}")
        found.append((key, rule, key in required))
    return found


_FORM: Mapping[str, Any] = {
    "json": _json("arguments"),
    "llama": _json("parameters"),
    "mistral": _mistral,
    "qwen-xml": _qwen_xml,
    "glm": _glm,
}
