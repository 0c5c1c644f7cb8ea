"""Conversations as they come from people and programs, made into the one form that chat templates are given.

A role nobody knows would be dropped by most templates, and the question with it; so it is refused by name. Text parts
are joined, `null` is the content of an assistant that only calls tools, a call's arguments become an object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from spec_local.errors import UsageError

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    """system, developer, user, assistant or tool."""
    content: str
    reasoning_content: NotRequired[str]
    """What an assistant thought before its answer."""
    tool_calls: NotRequired[list[dict[str, Any]]]
    """Calls an assistant made, in OpenAI's form; `arguments` is an object."""
    tool_call_id: NotRequired[str]
    """Which call a tool's message answers."""
    name: NotRequired[str]


class MessageError(UsageError):
    """A conversation that cannot be one; the message names the place."""


def normalise(messages: Sequence[Mapping[str, object]]) -> list[Message]:
    """The conversation in the form templates are given.

    Args:
        messages: Objects with role and content, in OpenAI's form: content is a text, a list of text parts, or null
            beside tool calls.

    Raises:
        MessageError: A message has no role or an unknown one, or its content is no text.
    """
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def text_of(content: object, where: str) -> str:
    """Content as one text.

    Raises:
        MessageError: It is none: an image, a number.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise MessageError(f"{where} is {kind(content)}; it must be a text or a list of text parts.")
    texts = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise MessageError(f"{where}[{i}] is {kind(part)}; it must be a text part.")
        form = part.get("type", "text")
        text = part.get("refusal" if form == "refusal" else "text")
        if form not in _TEXT_PARTS or not isinstance(text, str):
            what = f"of the type {form!r}" if form not in _TEXT_PARTS else "without a text"
            raise MessageError(f"{where}[{i}] is a part {what}; models are given text only here.")
        texts.append(text)
    return "".join(texts)


def _message(message: Mapping[str, object], where: str) -> Message:
    if not isinstance(message, Mapping):
        raise MessageError(f"{where} is {kind(message)}; it must be an object with role and content.")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        said = "is missing" if role is None else f"cannot be {role!r}"
        raise MessageError(f"{where}.role {said}.", f"Roles are {', '.join(ROLES[:-1])} and {ROLES[-1]}.")
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and role == "assistant" and (calls or message.get("reasoning_content")):
        content = ""
    if "content" not in message and content is None:
        raise MessageError(f"{where} has no content.")
    found = Message(role=role, content=text_of(content, f"{where}.content"))
    thought = message.get("reasoning_content", message.get("reasoning"))
    if role == "assistant" and isinstance(thought, str) and thought:
        found["reasoning_content"] = thought
    if calls:
        if role != "assistant":
            raise MessageError(f"{where} has tool calls, and its role is {role!r}; only an assistant calls tools.")
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise MessageError(f"{where}.tool_calls is {kind(calls)}; it must be a list.")
        found["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    for name in ("tool_call_id", "name"):
        if isinstance(value := message.get(name), str):
            found[name] = value
    return found


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise MessageError(f"{where} names no function.")
    assert isinstance(call, Mapping)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):  # OpenAI's form; templates take the object
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise MessageError(f"{where}.function.arguments is no JSON.") from None
    if not isinstance(arguments, Mapping):
        raise MessageError(f"{where}.function.arguments is {kind(arguments)}; it must be an object.")
    identity = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {"type": "function", **identity, "function": {"name": name, "arguments": dict(arguments)}}


def kind(value: object) -> str:
    """A value in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "a text"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else f"a value of the type {type(value).__name__}"
