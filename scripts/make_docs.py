"""Writes docs/commands.md from the command line's own definitions.

    python scripts/make_docs.py [--check]

With `--check` nothing is written; the exit code is 1 where the page is not what it would be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from spec_local.cli.main import build_parser

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
_HEAD = """\
# Commands

Written by `python scripts/make_docs.py` from the program's own definitions; do not edit. Every option that is also a
setting can be given as `SPEC_LOCAL_<NAME>` in the environment or in the configuration file (`spec-local config path`).
`spec-local COMMAND --help` prints the same, with examples and the formats of files.

Exit codes: 0 ok; 1 some items of a batch failed, or `verify` found something wrong; 2 usage; 3 model or file;
4 llama.cpp cannot run here, or a worker failed; 130 interrupted.
"""


def commands_page() -> str:
    """The whole page."""
    parser = build_parser()
    parts = [_HEAD]
    for name, (command, summary) in _subcommands(parser).items():
        parts.append(f"## spec-local {name}\n\n{_sentence(summary)}\n")
        parts.extend(_tables(command))
        for word, (sub, text) in _subcommands(command).items():
            parts.append(f"### spec-local {name} {word}\n\n{_sentence(text)}\n")
            parts.extend(_tables(sub))
    return "\n".join(parts)


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """A parser's own commands: the parser of each, and its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {name: (command, helps.get(name, "")) for name, command in action.choices.items()}
    return {}


def _tables(parser: argparse.ArgumentParser) -> Iterator[str]:
    """One table for each group of options that has any."""
    for group in parser._action_groups:
        rows = [
            f"| {_flags(action)} | {_text(parser, action)} |"
            for action in group._group_actions
            if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
            and action.help is not argparse.SUPPRESS
        ]
        if rows:
            yield "\n".join([f"| {group.title} | |", "|---|---|", *rows]) + "\n"


def _flags(action: argparse.Action) -> str:
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    shown = value if isinstance(value, str) else " ".join(value)
    if not action.option_strings:
        return _code(shown)
    return ", ".join(_code(flag if action.nargs == 0 else f"{flag} {shown}") for flag in action.option_strings)


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _text(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    return ((action.help or "") % values).replace("|", "\\|").replace("<", "&lt;")


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    page = commands_page()
    if parser.parse_args().check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
