"""What other programs call things: OpenAI's batch lines, and fields with another name for something of ours.

A line written for another program is either read as it is meant, or it is said that a field of it is not used: nothing
that would change the answer is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_local.batch.failures import Failure, ItemError

ALIASES = {
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
}
"""Another name → ours."""

_ONE = "one line gets one answer"
_TOOLS = "tools and tool_choice say it"
UNUSED = {
    "n": _ONE,
    "best_of": _ONE,
    "parallel_tool_calls": "the model decides how many calls it writes",
    "functions": _TOOLS,
    "function_call": _TOOLS,
    "model": "the model that was loaded answers",
    "modalities": "answers are text",
    "audio": "answers are text",
    "prediction": "drafts come from the text and the draft model",
    "suffix": "text is continued at its end only",
    "echo": "the record has the answer alone",
    "top_logprobs": "it needs logprobs: true",
    "url": "the prompt goes through the chat template; --raw continues the text itself",
}
"""Fields that would change the answer elsewhere, and why they do not here."""


def own_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A line's fields under our names: an OpenAI batch line unwrapped, aliases renamed, what changes nothing left out.

    Raises:
        ItemError: Two fields say the same thing differently, or a format is asked for that there is none of.
    """
    own = _unwrapped(fields)
    for alias, name in ALIASES.items():
        if alias not in own:
            continue
        value = own.pop(alias)
        if alias == "n_predict" and value in (-1, -2):  # llama.cpp's "no limit", "to the end of the context"
            value = None
        if own.get(name) is not None and value is not None and own[name] != value:
            raise ItemError(Failure.INVALID_SAMPLING, f"The line has both {alias} and {name}, with two values.")
        if value is not None:
            own[name] = value
    if isinstance(own.get("logprobs"), bool):  # OpenAI's: whether at all, and beside it how many
        wanted, most = own.pop("logprobs"), own.pop("top_logprobs", None)
        if wanted:
            own["logprobs"] = most or 0
    if "response_format" in own:
        _add_format(own, own.pop("response_format"))
    if "id" not in own and "custom_id" in own:
        own["id"] = own["custom_id"]
    own.pop("custom_id", None)
    return {name: value for name, value in own.items() if name not in UNUSED or not _says_nothing(name, value)}


def _unwrapped(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The request inside an OpenAI batch line: `{"custom_id", "method", "url", "body": {...}}`."""
    body = fields.get("body")
    if not isinstance(body, dict) or "prompt" in fields or "messages" in fields:
        return dict(fields)
    outer = {name: fields[name] for name in ("id", "custom_id") if name in fields}
    url = str(fields.get("url", ""))
    if url.endswith("/completions") and not url.endswith("/chat/completions"):
        outer["url"] = url
    return {**body, **outer}


def _add_format(own: dict[str, Any], wanted: Any) -> None:
    """`response_format` as a schema of ours."""
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "text":
        return
    schema: Any = None
    if kind == "json_object":  # with "schema" in it as llama.cpp's server has it
        schema = wanted.get("schema", {"type": "object"})
    elif kind == "json_schema":
        holder = wanted.get("json_schema")
        schema = holder.get("schema") if isinstance(holder, dict) else wanted.get("schema")
    if not isinstance(schema, dict | bool):
        raise ItemError(
            Failure.INVALID_GRAMMAR,
            "The field response_format is none of text, json_object, and json_schema with a schema.",
        )
    if own.get("json_schema") is not None or own.get("grammar") is not None:
        raise ItemError(Failure.INVALID_GRAMMAR, "The line has response_format and a schema or grammar besides.")
    own["json_schema"] = schema


def _says_nothing(name: str, value: Any) -> bool:
    """Whether a field that is not used asks for what is done anyway."""
    return value in (None, False, [], {}, "") or (name in ("n", "best_of") and value == 1)
