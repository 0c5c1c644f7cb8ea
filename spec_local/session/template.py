"""Chat templates: messages to the prompt text a model was trained on.

A template is a Jinja program from inside a model file, a stranger's, so it runs in a sandbox (`session/sandbox.py`): it
reaches nothing but the conversation, and ends in bounded time and space. Its names and functions are those of the
reference implementation (transformers). Content stays text, whatever it spells (`session/shield.py`).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spec_local.errors import TemplateError
from spec_local.session.messages import Message
from spec_local.session.shield import Markers, Shield, Stretch

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What is used, with a notice, for a model that brings no template."""


_MOST_SOURCE = 2_000_000
"""Characters; the longest templates of known models have fifty thousand."""
_MOST_INDENT = 64
_ANOTHER = "Supply another one with --chat-template FILE, or use --raw."
_PROBE = "c0ntent"


class _Refused(Exception):
    """The template called `raise_exception`."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as text."""

    text: str
    stretches: tuple[Stretch, ...]
    """The same in the parts it is tokenised in."""
    covered: str
    """The same with the shield on: markers in it were written by the template."""
    notice: str = ""
    """For the person; empty where all is well."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source, or None where the model has none (ChatML is used, and `notice` says so).
        bos: Text of the begin-of-text token, empty where there is none.
        eos: Text of the end-of-text token.
        origin: Where the source came from, for messages.
        markers: Texts of the vocabulary's control tokens, which no content may spell.

    Raises:
        TemplateError: The source is not valid Jinja.
    """

    def __init__(
        self,
        source: str | None,
        bos: str = "",
        eos: str = "",
        origin: str = "the model file",
        markers: Markers | None = None,
    ) -> None:
        from jinja2 import TemplateSyntaxError

        from spec_local.session.sandbox import Sandbox

        self.notice = ""
        """A warning for the person, empty where all is well."""
        if not source:
            source = CHATML
            self.notice = "This model brings no chat template; ChatML is used (--chat-template FILE supplies another)."
        self.source = source
        self._markers = markers or Markers()
        self._names = {"bos_token": bos, "eos_token": eos}
        self._origin = origin
        if len(source) > _MOST_SOURCE:
            raise TemplateError(f"The chat template of {origin} is {len(source)} characters long.", _ANOTHER)
        environment = Sandbox()
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

    def asks_for(self, name: str) -> bool:
        """Whether the template uses a variable of this name."""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def knows_role(self, role: str) -> bool:
        """Whether the template speaks of this role by its name."""
        return re.search(rf"""(['"]){role}\1""", self.source) is not None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """The prompt text, up to where the assistant speaks.

        Args:
            messages: The conversation. A template that refuses a system message gets it in front of the first user's.
                Where the assistant has the last word, it is left open, to be continued.
            tools: What the assistant may call, in OpenAI's form.
            arguments: Further variables of the template, such as `enable_thinking`.

        Raises:
            TemplateError: The template refuses this conversation, has no place for something in it, or fails.
        """
        messages = self._with_known_roles(messages)
        notice = ""
        given: tuple[Any, Any] = (list(tools), dict(arguments or {}))
        try:
            return self._render(messages, *given)
        except _Refused as refusal:
            merged = merge_system(messages)
            if merged == list(messages):
                raise self._error(refusal) from refusal
            notice = "This model takes no system message; it was put in front of the first user message."
        try:
            return self._render(merged, *given, notice)
        except _Refused as second:
            raise self._error(second) from second

    def _with_known_roles(self, messages: Sequence[Message]) -> list[Message]:
        """The same where `developer` is system, unless the template knows better."""
        if any(message["role"] == "tool" for message in messages) and not self.knows_role("tool"):
            raise TemplateError(
                f"The chat template of {self._origin} has no place for the result of a tool.",
                "Give it as a user's message, or supply another template with --chat-template FILE.",
            )
        if self.knows_role("developer"):
            return list(messages)
        return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]

    def _render(
        self, messages: Sequence[Message], tools: list[Any], arguments: dict[str, Any], notice: str = ""
    ) -> Rendered:
        shield = Shield(self._markers, [messages, tools, arguments])
        turns = shield.cover([dict(message) for message in messages])
        continued = bool(turns) and turns[-1]["role"] == "assistant"
        if continued:
            if turns[-1].get("tool_calls"):
                raise TemplateError(
                    "The last message is an assistant's that calls tools.", "Add the results as messages of tools."
                )
            turns[-1]["content"] += shield.end_mark
        if self._wants_texts and any(turn.get("tool_calls") for turn in turns):
            turns = [_with_text_arguments(turn) for turn in turns]
        if self._wants_parts:
            turns = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
        covered = self._run(
            turns, shield.cover(tools) or None, shield.cover(arguments), add_generation_prompt=not continued
        )
        if continued:
            head, mark, _ = covered.rpartition(shield.end_mark)
            if not mark:
                raise TemplateError(
                    f"The chat template of {self._origin} leaves out an assistant's message at the end, so it cannot "
                    "be continued.",
                    "End the conversation with a user's message.",
                )
            covered = head
        return Rendered(shield.uncover(covered), tuple(shield.stretches(covered)), covered, notice)

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether this template, made for images too, takes content as a list of parts only."""
        for content in (_PROBE, [{"type": "text", "text": _PROBE}]):
            try:
                if _PROBE in self._run([{"role": "user", "content": content}], None, {}):
                    return not isinstance(content, str)
            except (TemplateError, _Refused):
                continue
        return False

    @cached_property
    def _wants_texts(self) -> bool:
        """Whether this template takes the arguments of a call as JSON text, and fails on the object."""
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": _PROBE}}}
        asked = {"role": "user", "content": "x"}
        turns: list[dict[str, Any]] = [asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
        turns.append({"role": "tool", "content": "x", "tool_call_id": "abcdefghi", "name": "f"})
        for texts in (False, True):
            try:
                self._run([_with_text_arguments(turn) for turn in turns] if texts else turns, None, {})
                return texts
            except (TemplateError, _Refused):
                continue
        return False

    def _run(
        self, turns: list[dict[str, Any]], tools: Any, arguments: Mapping[str, Any], add_generation_prompt: bool = True
    ) -> str:
        from jinja2 import TemplateError as JinjaError

        from spec_local.session.sandbox import render_bounded

        names = {"documents": None, **self._names, **arguments}
        names |= {"messages": turns, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
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
    rest[first] = {**rest[first], "content": f"{system}\n\n{rest[first]['content']}"}
    return rest


def _with_text_arguments(turn: dict[str, Any]) -> dict[str, Any]:
    """The turn with the arguments of its calls as JSON text."""
    calls = []
    for call in turn.get("tool_calls") or ():
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**function, "arguments": text}})
    return {**turn, "tool_calls": calls} if calls else turn


def _refuse(message: str) -> None:
    raise _Refused(message)


def strftime_now(form: str) -> str:
    """The present time, for templates that tell the model what day it is."""
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As the reference implementation's: characters stay as they are, nothing is escaped for HTML."""
    if isinstance(indent, str) and len(indent) > _MOST_INDENT:
        raise ValueError(f"an indent of {len(indent)} characters")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
