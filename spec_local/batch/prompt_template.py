"""`--template 'Summarise: {text}'`: a prompt made from the fields of a line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from spec_local.batch.failures import Failure, ItemError
from spec_local.errors import UsageError

_PARTS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class PromptTemplate:
    """Text with `{field}` in it; `{{` and `}}` are braces. Names are looked up and nothing else: no expressions.

    Args:
        source: The template.

    Raises:
        UsageError: A brace stands alone, or a pair of braces is empty.
    """

    def __init__(self, source: str) -> None:
        self._parts: list[tuple[str, str]] = []  # (text, name of the field that follows it or "")
        at, text = 0, ""
        for match in _PARTS.finditer(source):
            text += source[at : match.start()]
            at = match.end()
            if match[0] in ("{{", "}}"):
                text += match[0][0]
                continue
            name = (match[1] or "").strip()
            if not name:
                raise UsageError(
                    f"The template has {match[0]!r} at position {match.start() + 1} without a field name.",
                    "Write {field} for a field, {{ and }} for braces.",
                )
            self._parts.append((text, name))
            text = ""
        self._parts.append((text + source[at:], ""))

    @property
    def fields(self) -> list[str]:
        """Names the template asks for."""
        return [name for _, name in self._parts if name]

    def render(self, fields: Mapping[str, Any]) -> str:
        """The prompt of one line; a value that is no text is written as JSON.

        Raises:
            ItemError: A field is missing or null.
        """
        return "".join(text + (_written(name, fields) if name else "") for text, name in self._parts)


def _written(name: str, fields: Mapping[str, Any]) -> str:
    if name not in fields:
        known = ", ".join(map(str, fields)) or "none"
        raise ItemError(Failure.MISSING_FIELD, f"The template names {name!r}; the fields here are: {known}.")
    value = fields[name]
    if value is None:
        raise ItemError(Failure.WRONG_TYPE, f"The field {name!r} of the template is null.")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
