"""Why one item of a batch failed: a word for programs and a sentence for people."""

from __future__ import annotations

import re
from enum import StrEnum

from spec_local.errors import SpecLocalError


class Failure(StrEnum):
    """The `error.type` of an output record. Scripts rely on these words.

    Failures while answering carry the name of their error instead, such as "context_full" or "template".
    """

    INVALID_UTF8 = "invalid_utf8"
    INVALID_JSON = "invalid_json"
    INVALID_CSV = "invalid_csv"
    NOT_AN_OBJECT = "not_an_object"
    NOT_A_NUMBER = "not_a_number"
    """NaN or an infinity, which JSON does not have."""
    LONE_SURROGATE = "lone_surrogate"
    """Half of an escaped pair: no character, so it cannot be tokenised or written."""
    LINE_TOO_LONG = "line_too_long"
    MISSING_PROMPT = "missing_prompt"
    MISSING_FIELD = "missing_field"
    """The template names a field that the line does not have."""
    EMPTY_PROMPT = "empty_prompt"
    TWO_PROMPTS = "two_prompts"
    WRONG_TYPE = "wrong_type"
    INVALID_SAMPLING = "invalid_sampling"
    INVALID_GRAMMAR = "invalid_grammar"
    """A schema or grammar of the line's own cannot be compiled."""
    INVALID_REPLY = "invalid_reply"
    """Thinking, tools or the template's variables as the line sets them."""
    TIMEOUT = "timeout"
    INTERNAL = "internal"
    """A defect of this program, kept to the one item."""


class ItemError(SpecLocalError):
    """A failure of one item, which ends only that item."""

    def __init__(self, failure: Failure, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.failure = failure


def failure_type(error: BaseException) -> str:
    """The word for an error: an item's own, else the error class in words ("ContextFullError" → "context_full")."""
    if isinstance(error, ItemError):
        return str(error.failure)
    if isinstance(error, SpecLocalError):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__.removesuffix("Error"))
        return words.lower()
    return str(Failure.INTERNAL)


def failure_message(error: BaseException) -> str:
    """One sentence and its hint, always with text in it."""
    if isinstance(error, SpecLocalError):
        return str(error)
    return f"{type(error).__name__}: {error}"
