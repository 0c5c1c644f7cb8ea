"""Input lines to items: JSON Lines, a prompt per line, or CSV (`csv_input`). Strict, streaming; a fault is one line's.

An item is what a person asked for in one line, checked as far as that is possible without a model. Fields nobody knows
are kept, for templates and for `--echo-input`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from pydantic import ValidationError

from spec_local.batch.failures import Failure, ItemError
from spec_local.batch.foreign import own_fields
from spec_local.batch.lines import Line, read_lines
from spec_local.batch.prompt_template import PromptTemplate
from spec_local.errors import UsageError
from spec_local.sampling.params import Sampling
from spec_local.session.messages import Message, MessageError, normalise
from spec_local.session.options import first_problem
from spec_local.session.reply_options import ReplyOptions

InputFormat = Literal["jsonl", "text", "csv"]
Id = str | int | None
_REPLY = ("chat_template_kwargs", "reasoning_effort", *ReplyOptions.model_fields)
_KNOWN = frozenset({"id", "prompt", "messages", "system", "json_schema", "grammar", *_REPLY, *Sampling.model_fields})


@dataclass(frozen=True, slots=True)
class Item:
    """One line that can be answered."""

    line: int
    """Number in the input, from 1."""
    id: Id
    prompt: str | tuple[Message, ...]
    system: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters the line sets, of the right types and ranges."""
    json_schema: Mapping[str, Any] | bool | None = None
    grammar: str | None = None
    reply: Mapping[str, Any] = field(default_factory=dict)
    """What the line sets of `ReplyOptions`."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The line as it was read, for `--echo-input`."""
    unknown: tuple[str, ...] = ()
    """Fields that mean nothing here and that no template uses."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """One line that cannot be answered."""

    line: int
    id: Id
    error: ItemError
    fields: Mapping[str, Any] | None = None
    """The line as it was read, where it could be read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How to read the input."""

    format: InputFormat = "jsonl"
    column: str | None = None
    """Field or CSV column that holds the prompt; None: "prompt", or a CSV file's only column."""
    template: PromptTemplate | None = None
    """Makes the prompt from the fields instead."""


def read_items(stream: BinaryIO, layout: Layout) -> Iterator[Item | BadLine]:
    """Every non-blank line of `stream`, in order, as it is read.

    Raises:
        UsageError: The input as a whole cannot be read: UTF-16, or a CSV file without the column that is wanted.
    """
    lines = read_lines(stream)
    if layout.format == "csv":
        from spec_local.batch.csv_input import csv_items

        yield from csv_items(lines, layout)
        return
    for line in lines:
        if not line.data.strip(b" \t\r\n\f\v"):
            continue
        fields: dict[str, Any] | None = None
        try:
            if layout.format == "text":
                fields = {"text": line.text()}
                yield _text_item(line.number, fields, layout)
            else:
                fields = _json_object(line)
                _refuse_half_characters(fields)
                yield _item(line, fields, layout)
        except ItemError as error:
            yield BadLine(line.number, usable_id(fields), error, None if fields and _surrogate(fields) else fields)


# --- JSON Lines -----------------------------------------------------------------------------------------------------


def _json_object(line: Line) -> dict[str, Any]:
    """The JSON object of a line, by the letter of RFC 8259: no NaN, no double names, no half characters."""
    text = line.text()
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ItemError(Failure.INVALID_JSON, f"{error.msg} at column {error.colno}.") from None
    except RecursionError:
        raise ItemError(Failure.INVALID_JSON, "The JSON is nested too deeply.") from None
    except ValueError as error:  # whole numbers of more digits than Python reads
        raise ItemError(Failure.INVALID_JSON, f"A number cannot be read: {error}.") from None
    if not isinstance(value, dict):
        raise ItemError(Failure.NOT_AN_OBJECT, f"The line holds {_kind(value)}, not an object.")
    return value


def _refuse_half_characters(fields: Mapping[str, Any]) -> None:
    if where := _surrogate(fields):
        raise ItemError(Failure.LONE_SURROGATE, f"{where} holds half of a surrogate pair, which is no character.")


def _item(line: Line, given: dict[str, Any], layout: Layout) -> Item:
    fields = own_fields(given)
    item_id = fields.get("id")
    if isinstance(item_id, bool) or not isinstance(item_id, str | int | None):
        raise _wrong("id", item_id, "a text or a whole number")
    prompt = _prompt({**given, **fields}, layout)  # a template may name any field of the line
    system = fields.get("system")
    if not isinstance(system, str | None):
        raise _wrong("system", system, "a text")
    schema, grammar = fields.get("json_schema"), fields.get("grammar")
    if not isinstance(schema, dict | bool | None):
        raise _wrong("json_schema", schema, "an object")
    if not isinstance(grammar, str | None):
        raise _wrong("grammar", grammar, "a text")
    if schema is not None and grammar is not None:
        raise ItemError(Failure.INVALID_GRAMMAR, "The line has both json_schema and grammar; one answer follows one.")
    used = {layout.column or "prompt", *(layout.template.fields if layout.template else ())}
    return Item(
        line.number,
        item_id,
        prompt,
        system,
        _sampling({name: fields[name] for name in fields if name in Sampling.model_fields}),
        schema,
        grammar,
        _reply(fields),
        given,
        tuple(name for name in fields if name not in _KNOWN and name not in used),
    )


def _reply(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Thinking, tools and the template's variables, under OpenAI's names and those of servers like this one."""
    found = {name: fields[name] for name in ReplyOptions.model_fields if fields.get(name) is not None}
    arguments = fields.get("chat_template_kwargs")
    if arguments is not None:
        if not isinstance(arguments, dict):
            raise _wrong("chat_template_kwargs", arguments, "an object")
        found["template_args"] = {**found.get("template_args", {}), **arguments}
    if isinstance(effort := fields.get("reasoning_effort"), str):
        found["template_args"] = {"reasoning_effort": effort, **found.get("template_args", {})}
    try:
        ReplyOptions.parse(found)
    except UsageError as error:
        raise ItemError(Failure.INVALID_REPLY, error.message, error.hint) from None
    return found


def _prompt(fields: Mapping[str, Any], layout: Layout) -> str | tuple[Message, ...]:
    name = layout.column or "prompt"
    if layout.template is not None:
        if fields.get("messages") is not None:
            raise ItemError(Failure.TWO_PROMPTS, "The line has messages; a template makes a prompt of its own.")
        return not_empty(layout.template.render(fields), "The prompt made by the template")
    prompt, messages = fields.get(name), fields.get("messages")
    if prompt is not None and messages is not None:
        raise ItemError(Failure.TWO_PROMPTS, f"The line has both {name} and messages.")
    if messages is not None:
        return _messages(messages)
    if prompt is None:
        raise ItemError(Failure.MISSING_PROMPT, f"The line has neither {name} nor messages.")
    if not isinstance(prompt, str):
        raise _wrong(name, prompt, "a text")
    return not_empty(prompt, f"The field {name}")


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise _wrong("messages", value, "a list of objects with role and content")
    try:
        messages = normalise(value)
    except MessageError as error:
        raise ItemError(Failure.WRONG_TYPE, error.message, error.hint) from None
    if not any(message["content"].strip() for message in messages):
        raise ItemError(Failure.EMPTY_PROMPT, "The messages hold no text.")
    return tuple(messages)


def _sampling(fields: dict[str, Any]) -> dict[str, Any]:
    """The sampling fields of a line, checked by JSON's types: true is no temperature, and "40" no top_k."""
    present = {name: value for name, value in fields.items() if value is not None}
    if isinstance(present.get("stop"), str):
        present["stop"] = [present["stop"]]
    try:
        checked = Sampling.model_validate_json(json.dumps(present), strict=True)
    except ValidationError as error:
        raise ItemError(Failure.INVALID_SAMPLING, first_problem(error)) from None
    return {name: getattr(checked, name) for name in present}


# --- plain text ---------------------------------------------------------------------------------------------


def _text_item(number: int, fields: dict[str, Any], layout: Layout) -> Item:
    prompt = layout.template.render({**fields, "prompt": fields["text"]}) if layout.template else fields["text"]
    return Item(number, None, not_empty(prompt, "The prompt"), fields=fields)


# --- small things ---------------------------------------------------------------------------------------------------


def not_empty(prompt: str, what: str) -> str:
    """`prompt`, where there is something in it."""
    if not prompt.strip():
        raise ItemError(Failure.EMPTY_PROMPT, f"{what} is empty.")
    return prompt


def usable_id(fields: Mapping[str, Any] | None) -> Id:
    """The id of a line that failed otherwise, so that its record can be told apart."""
    value = None if fields is None else fields.get("id", fields.get("custom_id"))
    usable = isinstance(value, str | int) and not isinstance(value, bool) and not _surrogate({"id": value})
    return value if usable else None


def _wrong(name: str, value: Any, wanted: str) -> ItemError:
    return ItemError(Failure.WRONG_TYPE, f"The field {name} is {_kind(value)}; it must be {wanted}.")


def _kind(value: Any) -> str:
    """A JSON value in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names[type(value)]


def _no_number(name: str) -> float:
    raise ItemError(Failure.NOT_A_NUMBER, f"{name} is no JSON number.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ItemError(Failure.NOT_A_NUMBER, f"{text} is beyond the largest number.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ItemError(Failure.INVALID_JSON, f"The name {json.dumps(twice)} occurs twice in one object.")
    return found


def _surrogate(fields: Mapping[str, Any]) -> str:
    """The field in which a lone surrogate stands; empty where there is none."""
    for name, value in fields.items():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            return f"The field {name!a}"
    return ""
