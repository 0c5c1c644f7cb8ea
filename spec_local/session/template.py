"""Chat templates: messages to the prompt text a model was trained on.

A template is a Jinja program from inside a model file, a stranger's, so it runs in a sandbox (`session/sandbox.py`): it
reaches nothing but the conversation, and ends in bounded time and space.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, TypedDict

from spec_local.errors import TemplateError


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    """system, user or assistant."""
    content: str


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What is used, with a notice, for a model that brings no template."""


_MOST_SOURCE = 2_000_000
"""Characters; the longest templates of known models have fifty thousand."""
_MOST_INDENT = 64
_ANOTHER = "Supply another one with --chat-template FILE, or use --raw."


class _Refused(Exception):
    """The template called `raise_exception`."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source, or None where the model has none (ChatML is used, and `notice` says so).
        bos: Text of the begin-of-text token, empty where there is none.
        eos: Text of the end-of-text token.
        origin: Where the source came from, for messages.

    Raises:
        TemplateError: The source is not valid Jinja.
    """

    def __init__(self, source: str | None, bos: str = "", eos: str = "", origin: str = "the model file") -> None:
        from jinja2 import TemplateSyntaxError

        from spec_local.session.sandbox import Sandbox

        self.notice = ""
        """A warning for the person, empty where all is well."""
        if not source:
            source = CHATML
            self.notice = "This model brings no chat template; ChatML is used (--chat-template FILE supplies another)."
        self._names = {"bos_token": bos, "eos_token": eos}
        self._origin = origin
        if len(source) > _MOST_SOURCE:
            raise TemplateError(f"The chat template of {origin} is {len(source)} characters long.", _ANOTHER)
        environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.globals |= {"raise_exception": _refuse, "strftime_now": strftime_now}
        environment.add_filter("tojson", _tojson)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"The chat template of {origin} has a syntax error in line {error.lineno}: {error.message}.", _ANOTHER
            ) from error
        except (RecursionError, MemoryError, ValueError, OverflowError) as error:  # nested too deeply, numbers too long
            raise TemplateError(f"The chat template of {origin} cannot be compiled: {error}.", _ANOTHER) from error

    def render(self, messages: Sequence[Message]) -> tuple[str, str]:
        """The prompt text, up to where the assistant speaks.

        Args:
            messages: The conversation. A template that refuses a system message gets it in front of the first user's.

        Returns:
            The text, and a notice for the person (empty where all is well).

        Raises:
            TemplateError: The template refuses this conversation, or fails.
        """
        notice = ""
        try:
            text = self._render(messages)
        except _Refused as refusal:
            merged = merge_system(messages)
            if merged == list(messages):
                raise self._error(refusal) from refusal
            try:
                text = self._render(merged)
            except _Refused as second:
                raise self._error(second) from second
            notice = "This model takes no system message; it was put in front of the first user message."
        return text, notice

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError as JinjaError

        from spec_local.session.sandbox import render_bounded

        try:
            names = {
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": True,
                "tools": None,
                **self._names,
            }
            return render_bounded(self._template, names)
        except _Refused:
            raise
        except (
            JinjaError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RecursionError,
            MemoryError,
        ) as error:
            raise TemplateError(
                f"The chat template of {self._origin} fails: {str(error) or type(error).__name__}.", _ANOTHER
            ) from error

    def _error(self, refusal: _Refused) -> TemplateError:
        return TemplateError(
            f"The chat template of {self._origin} refuses this conversation: {refusal}.",
            "Check the order of roles, supply another template with --chat-template FILE, or use --raw.",
        )


def merge_system(messages: Sequence[Message]) -> list[Message]:
    """The same conversation without system messages: their text leads the first user message."""
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    rest = [message for message in messages if message["role"] != "system"]
    first = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if not system or first is None:
        return list(messages)
    user = rest[first]
    rest[first] = Message(role="user", content=f"{system}\n\n{user['content']}")
    return rest


def _refuse(message: str) -> None:
    raise _Refused(message)


def strftime_now(form: str) -> str:
    """The present time, for templates that tell the model what day it is."""
    return datetime.datetime.now().strftime(form)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    import json

    if isinstance(indent, str) and len(indent) > _MOST_INDENT:
        raise ValueError(f"an indent of {len(indent)} characters")
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
