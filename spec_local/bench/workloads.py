"""What is measured: prompts by kind of text. Seven kinds come with the program; a person's own prompts replace them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spec_local.errors import UsageError
from spec_local.session.generation import Prompt
from spec_local.session.messages import Message
from spec_local.words import counted

SEPARATOR = "---"
"""A line with just this separates prompts that have empty lines of their own."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One question."""

    name: str
    """Unique within its workload."""
    prompt: Prompt
    """A user's text, or a conversation."""
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts that ask for one kind of text."""

    name: str
    title: str
    """For a person: "edit code"."""
    prompts: tuple[BenchPrompt, ...]

    def first(self, count: int) -> Workload:
        """The same with at most `count` prompts."""
        return replace(self, prompts=self.prompts[:count])


def count_prompts(workloads: Sequence[Workload]) -> int:
    """Prompts of all of them together."""
    return sum(len(w.prompts) for w in workloads)


def prompts_used(used: int, given: int) -> str:
    """`2 prompts`, and `1 of 2 prompts` where not all that were given are used."""
    return f"{used} of {counted(given, 'prompt')}" if used < given else counted(used, "prompt")


def builtin_workloads() -> list[Workload]:
    """The workloads that ship with spec-local: seven kinds of text, at least five prompts each."""
    data = json.loads(Path(__file__).with_name("workloads.json").read_text(encoding="utf-8"))
    return [
        Workload(w["name"], w["title"], tuple(BenchPrompt(p["name"], p["prompt"]) for p in w["prompts"]))
        for w in data["workloads"]
    ]


def choose_workloads(names: Sequence[str]) -> list[Workload]:
    """The built-in workloads of these names, in their own order; all of them where `names` is empty.

    Raises:
        UsageError: A name is unknown.
    """
    workloads = builtin_workloads()
    known = [w.name for w in workloads]
    for name in names:
        if name not in known:
            raise UsageError(f"There is no workload {name!r}.", f"There are {', '.join(known)}.")
    return [w for w in workloads if not names or w.name in names]


def parse_prompts(text: str, name: str) -> list[Workload]:
    """A person's own prompts.

    JSON Lines (the first line is an object): each line has "prompt", or "messages", and may have "system", "id" and
    "workload", which puts it under a kind of its own. Plain text: prompts stand between lines of `---`; else between
    empty lines; else one on each line.

    Args:
        text: The file's content.
        name: Name for the workload of prompts that name none.

    Raises:
        UsageError: There is no prompt in it, or a line is no request.
    """
    lines = text.splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("{"):
        return _from_json_lines(lines, name)
    if any(line.strip() == SEPARATOR for line in lines):
        parts = re.split(rf"^[ \t]*{SEPARATOR}[ \t]*$", text, flags=re.MULTILINE)
    elif re.search(r"\n[ \t\r]*\n", text.strip()):
        parts = re.split(r"\n[ \t\r]*\n", text)
    else:
        parts = lines
    prompts = [part.strip() for part in parts if part.strip()]
    if not prompts:
        raise UsageError(f"There is no prompt in {name}.", "Write one prompt a line, or one a paragraph.")
    return [Workload(name, name, tuple(BenchPrompt(str(i), prompt) for i, prompt in enumerate(prompts, 1)))]


def _from_json_lines(lines: Sequence[str], name: str) -> list[Workload]:
    found: dict[str, list[BenchPrompt]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(f"Line {number} of {name} is not JSON: {error}.") from None
        if not isinstance(record, dict):
            raise UsageError(f"Line {number} of {name} is no JSON object.", 'Write {"prompt": "..."}.')
        kind = record.get("workload", name)
        system = record.get("system")
        if not isinstance(kind, str) or not (system is None or isinstance(system, str)):
            raise UsageError(f"Line {number} of {name}: workload and system are texts.")
        prompts = found.setdefault(kind, [])
        key = str(record.get("id", number))
        if any(p.name == key for p in prompts):
            key = f"{key} (line {number})"
        prompts.append(BenchPrompt(key, _prompt(record, number, name), system))
    return [Workload(kind, kind, tuple(prompts)) for kind, prompts in found.items()]


def _prompt(record: dict[str, Any], number: int, name: str) -> Prompt:
    prompt, messages = record.get("prompt"), record.get("messages")
    if isinstance(prompt, str) and prompt.strip() and messages is None:
        return prompt
    if isinstance(messages, list) and messages and prompt is None:
        turns = [
            Message(role=m["role"], content=m["content"])
            for m in messages
            if isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        ]
        if len(turns) == len(messages):
            return turns
    raise UsageError(
        f"Line {number} of {name} asks nothing.",
        'It needs "prompt": a text, or "messages": a list of role and content.',
    )
