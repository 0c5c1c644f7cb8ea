"""What can be completed at the cursor: command names, their values, and paths behind @."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from spec_local.session.attachments import mention
from spec_local.ui.commands import BY_NAME, COMMANDS
from spec_local.ui.lines_view import LinesView
from spec_local.ui.tones import FAINT
from spec_local.ui.visible import visible

if TYPE_CHECKING:
    from spec_local.ui.app import ChatApp

_SHOWN = 8
_MOST = 200


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that could stand at the cursor."""

    text: str
    """What is put in."""
    label: str
    summary: str
    length: int
    """Characters before the cursor that it replaces."""


def candidates(app: ChatApp, before: str, whole: str) -> list[Candidate]:
    """What fits.

    Args:
        app: For the values of commands.
        before: The current line up to the cursor.
        whole: The whole input.
    """
    if whole.startswith("/") and "\n" not in whole:
        return _commands(app, before)
    if match := re.search(r'(?<!\S)@(?:"([^"\n]*)|([^\s"]*))$', before):
        typed = match[1] if match[1] is not None else match[2]
        return _paths(typed, len(match[0]))
    return []


def _commands(app: ChatApp, before: str) -> list[Candidate]:
    name, blank, rest = before[1:].partition(" ")
    if not blank:
        found = [c for c in COMMANDS if c.name.startswith(name.lower())]
        found += [c for c in COMMANDS if name and name.lower() in c.name and c not in found]
        return [
            Candidate(
                f"/{c.name}{' ' if c.argument else ''}", f"/{c.name} {c.argument}".rstrip(), c.summary, len(before)
            )
            for c in found
        ]
    command = BY_NAME.get(name.lower())
    if command is None:
        return []
    if command.name == "attach":
        return [Candidate(c.label, c.label, c.summary, len(rest)) for c in _paths(rest, len(rest))]
    if command.values is None or " " in rest:
        return []
    return [
        Candidate(f"{value} " if command.name == "set" else value, value, "", len(rest))
        for value in command.values(app)
        if rest.lower() in value.lower() and value != rest
    ]


def _paths(typed: str, length: int) -> list[Candidate]:
    """Files and folders that begin like this, folders first; hidden ones only where a dot is typed."""
    folder, _, start = typed.rpartition("/")
    shown = f"{folder}/" if "/" in typed else ""
    base = Path(f"{folder}/" if shown else ".").expanduser()
    found = []
    try:
        with os.scandir(base) as entries:
            for entry in entries:
                if not entry.name.lower().startswith(start.lower()):
                    continue
                if entry.name.startswith(".") and not start.startswith("."):
                    continue
                found.append((not entry.is_dir(), entry.name))
                if len(found) >= _MOST:
                    break
    except (OSError, ValueError):
        return []
    result = []
    for is_file, name in sorted(found):
        path = f"{shown}{name}{'' if is_file else '/'}"
        written = mention(path) if is_file else f"@{path}" if " " not in path else f'@"{path}'
        result.append(Candidate(f"{written} " if is_file else written, path, "" if is_file else "folder", length))
    return result


class CompletionList(LinesView):
    """The candidates, one of them chosen. It never takes the focus: the input keeps it and sends the keys."""

    MARGINS = (2, 1)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._all: list[Candidate] = []
        self._at = 0
        self.display = False

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that Tab or Enter takes."""
        return self._all[self._at] if self._all else None

    def offer(self, found: Sequence[Candidate]) -> None:
        """Show these; none closes the list."""
        if list(found) == self._all:
            return
        self._all, self._at = list(found), 0
        self.display = bool(found)
        self.changed()

    def move(self, step: int) -> None:
        """Choose the next or previous one, around the ends."""
        if self._all:
            self._at = (self._at + step) % len(self._all)
            self.changed()

    def build(self, width: int) -> Sequence[Content]:
        start = max(0, min(self._at - _SHOWN // 2, len(self._all) - _SHOWN))
        shown = self._all[start : start + _SHOWN]
        column = min(max((len(c.label) for c in shown), default=0) + 2, max(1, width - 12))
        lines = []
        for i, candidate in enumerate(shown, start):
            line = Content(visible(candidate.label)).truncate(column, ellipsis=True, pad=True)
            line = line + Content.styled(candidate.summary, FAINT)
            line = line.truncate(width, ellipsis=True, pad=True)
            lines.append(line.stylize("bold on $primary 30%") if i == self._at else line)
        if len(self._all) > _SHOWN:
            lines.append(Content.styled(f"{self._at + 1} of {len(self._all)}", FAINT))
        return lines
