"""The families of models that think and call tools: how their replies are written. Data; `reply.py` reads by it.

A family is known by what the model's template and vocabulary say, never by a name. Of an unknown one a reply is plain
text: one part, the answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a family marks what it thinks before it answers."""

    family: str
    signs: tuple[str, ...]
    """Texts that a template of this family has, all of them."""
    open: str
    close: str
    label: str = ""
    """What follows `open` and is no thought."""
    gap: str = ""
    """What stands between `close` and the answer."""
    channels: bool = False
    """Every message has a header that names its channel (`reply_channels.py`)."""

    @property
    def empty(self) -> str:
        """A block without a thought: what a prompt ends with where thinking is off and the template has no switch."""
        return f"{self.open}{self.label}{self.gap}{self.close}{self.gap}"


@dataclass(frozen=True, slots=True)
class Calls:
    """How a family writes a call of a tool. How what is in it is read and made: `calls.py`, by `form`."""

    family: str
    signs: tuple[str, ...]
    open: str
    """Empty where a reply that is JSON and nothing else is a call."""
    close: str = ""
    """Empty: it goes on to the end of the reply."""
    form: str = "json"


THINKING: tuple[Thinking, ...] = (
    Thinking("gpt-oss", ("<|channel|>", "<|message|>"), "<|channel|>analysis<|message|>", "<|end|>", channels=True),
    Thinking("gemma-4", ("<|channel>",), "<|channel>", "<channel|>", label="thought\n"),
    Thinking("magistral", ("[THINK]",), "[THINK]", "[/THINK]"),
    Thinking("seed-oss", ("<seed:think>",), "<seed:think>", "</seed:think>", gap="\n"),
    Thinking("think", ("</think>",), "<think>", "</think>", gap="\n\n"),
    Thinking("think", ("<think>",), "<think>", "</think>", gap="\n\n"),
)
CALLS: tuple[Calls, ...] = (
    Calls("gpt-oss", ("<|channel|>", "<|message|>"), "", form="channels"),
    Calls("gemma-4", ("<|tool_call>",), "<|tool_call>", "<tool_call|>", form="gemma"),
    Calls("qwen-xml", ("<tool_call>", "<function="), "<tool_call>", "</tool_call>", form="qwen-xml"),
    Calls("glm", ("<tool_call>", "<arg_key>"), "<tool_call>", "</tool_call>", form="glm"),
    Calls("deepseek", ("<｜tool▁calls▁begin｜>",), "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", form="deepseek"),
    Calls("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", form="mistral"),
    Calls("phi-4", ("<|tool_call|>",), "<|tool_call|>", "<|/tool_call|>"),
    Calls("hermes", ("<tool_call>",), "<tool_call>", "</tool_call>"),
    Calls("llama-3", ("<|start_header_id|>", '"parameters"'), "", form="llama"),
    Calls("llama-3", ("<|python_tag|>",), "", form="llama"),
)
CHANNEL_TAGS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
PYTHON_TAG = "<|python_tag|>"
_RESULTS = ("<tool_response>", "</tool_response>", "<|tool_response>", "<tool_response|>", "<tools>", "</tools>")
TAGS: frozenset[str] = frozenset(
    tag
    for tag in (
        *(tag for thinking in THINKING for tag in (thinking.open, thinking.close)),
        *(tag for calls in CALLS for tag in (calls.open, calls.close)),
        *CHANNEL_TAGS,
        *_RESULTS,
        PYTHON_TAG,
    )
    if tag
)
"""Everything a family gives a meaning: where it is a token of the vocabulary, no content may spell it."""


def thinking_of(source: str, tokens: Collection[str]) -> Thinking | None:
    """How a model with this template thinks; None where nothing says that it does.

    Args:
        source: Of its chat template.
        tokens: Texts of its vocabulary's control and defined tokens.
    """
    return next(
        (t for t in THINKING if all(sign in source for sign in t.signs)),
        next((t for t in THINKING if not t.channels and t.open in tokens and t.close in tokens), None),
    )


def calls_of(source: str) -> Calls | None:
    """How a model with this template calls tools; None where it has no place for them."""
    return next((c for c in CALLS if all(sign in source for sign in c.signs)), None)
