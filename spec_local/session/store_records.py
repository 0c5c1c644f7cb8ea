"""What the conversation store hands out, and how rounds are packed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from spec_local.session.attachments import Attachment, with_attachments
from spec_local.speculation.round import Round

State = Literal["done", "stopped", "failed", "writing"]
"""Of a message: whole; stopped by the person; ended by an error; being written, or cut off by the program's end."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a conversation's tree."""

    id: int
    conversation: int
    parent: int | None
    """The message it answers or follows; None for a first one."""
    role: Literal["user", "assistant"]
    text: str
    """As written; attachments are apart."""
    state: State
    created: float
    """Seconds since the epoch."""
    attachments: tuple[Attachment, ...] = ()
    error: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    """`Result.as_dict` without the text; empty for a person's message and where no result came."""

    @property
    def prompt_text(self) -> str:
        """What the model reads."""
        return with_attachments(self.text, self.attachments) if self.attachments else self.text


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation without its messages."""

    id: int
    title: str
    system: str
    settings: dict[str, Any]
    """Sampling values the person set, by name."""
    head: int | None
    """Last message of the branch in view; None while there is none."""


@dataclass(frozen=True, slots=True)
class Found:
    """A line of the list of conversations."""

    id: int
    title: str
    updated: float
    messages: int
    """In the whole tree."""
    snippet: str = ""
    """The text around what was searched for."""
    message: int | None = None
    """The message it was found in; None where the title matched, or nothing was searched for."""


_FIELDS = tuple(f.name for f in fields(Round))


def rounds_to_json(rounds: Iterable[Round]) -> str:
    """Rows of values under one line of names."""
    return json.dumps(
        {"fields": _FIELDS, "rows": [[getattr(r, name) for name in _FIELDS] for r in rounds]}, separators=(",", ":")
    )


def rounds_from_json(text: str) -> list[Round]:
    """Rounds as they were; fields that a later program dropped are left out, ones it added have their defaults."""
    table = json.loads(text)
    names = table["fields"]
    return [Round(**{n: v for n, v in zip(names, row, strict=True) if n in _FIELDS}) for row in table["rows"]]


def pack(rounds: Sequence[Round]) -> bytes:
    """Compressed: reasons and small numbers repeat from round to round."""
    return zlib.compress(rounds_to_json(rounds).encode(), 6)


def unpack(blob: bytes | None) -> list[Round]:
    """The inverse of `pack`; nothing for a message without rounds."""
    return rounds_from_json(zlib.decompress(blob).decode()) if blob else []
