"""A conversation as a file for people (.md, the branch in view) or for programs (.json, the whole tree)."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from spec_local.errors import UsageError
from spec_local.session.conversation import Conversation


def export_to(conversation: Conversation, path: Path | None = None) -> Path:
    """Write a conversation; the ending of `path` says how. An existing file is not overwritten.

    Args:
        conversation: What to write.
        path: Where; None: in the current folder, under its title.

    Raises:
        UsageError: The file exists, cannot be written, or has another ending.
    """
    path = path or _free(Path(f"{_file_name(conversation.title)}.md"))
    if path.suffix not in (".md", ".json"):
        raise UsageError(f"{path} ends in {path.suffix or 'nothing'}; export writes .md or .json.")
    text = to_markdown(conversation) if path.suffix == ".md" else to_json(conversation)
    try:
        with open(path, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already.", "Give another name.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path.absolute()


def to_markdown(conversation: Conversation) -> str:
    """The branch in view."""
    parts = [f"# {conversation.title or 'Conversation'}"]
    if conversation.system.strip():
        parts += ["## System", conversation.system]
    for message in conversation.path():
        parts.append(
            "## You" if message.role == "user" else f"## {message.result.get('model', {}).get('target', 'Answer')}"
        )
        parts.append(message.prompt_text)
        if message.state != "done":
            parts.append(f"*({'stopped' if message.state == 'stopped' else 'incomplete'})*")
    return "\n\n".join(parts) + "\n"


def to_json(conversation: Conversation) -> str:
    """The whole tree, with sampling, figures and the origins of tokens."""
    store = conversation.store
    messages: list[dict[str, Any]] = []
    for identity in conversation.tree():
        message = conversation.message(identity)
        record: dict[str, Any] = {
            "id": message.id,
            "parent": message.parent,
            "role": message.role,
            "text": message.text,
            "state": message.state,
            "created": _time(message.created),
        }
        if message.attachments:
            record["attachments"] = [asdict(file) for file in message.attachments]
        if message.error:
            record["error"] = message.error
        if message.role == "assistant":
            record |= message.result
            record["tokens"] = [{"text": t.text, "origin": t.origin.name.lower()} for t in store.tokens(message.id)]
            record["rounds"] = [asdict(r) for r in store.rounds(message.id)]
        messages.append(record)
    whole = {
        "title": conversation.title,
        "system": conversation.system.strip(),
        "settings": conversation.settings,
        "head": conversation.head,
        "messages": messages,
    }
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _file_name(title: str) -> str:
    """A name that every system takes."""
    name = re.sub(r"[^\w\- ]+", "", title).strip().replace(" ", "-")[:60]
    return name or "conversation"


def _free(path: Path) -> Path:
    """`path`, or the first of path-2, path-3 … that does not exist."""
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_stem(f"{path.stem}-{number}")
    return found
