"""`spec-local`: picks the command, and turns errors into a sentence and an exit code."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NoReturn

from spec_local import __version__
from spec_local.cli.exit_codes import ExitCode, exit_code
from spec_local.errors import SpecLocalError, UsageError
from spec_local.words import harmless

COMMANDS = {
    "chat": "chat in the terminal",
    "generate": "answer a prompt",
    "bench": "measure whether drafting pays here, and on which texts",
    "verify": "check that speculation changes nothing, on this machine with this pair",
    "models": "list, fetch and check models",
    "doctor": "check this machine: build, devices, memory, folders, and a decode on each device",
    "worker": "lend this machine's devices to spec-local on another one",
    "config": "show the settings in force and where each comes from",
}

_LOCALE = "Set PYTHONUTF8=1 in the environment, or a UTF-8 locale such as LC_ALL=C.UTF-8."
_EPILOG = """\
examples:
  spec-local generate -p "Write a haiku about rivers"
  git diff | spec-local generate -p "Write a commit message for this diff:" --stats
  spec-local models pull qwen2.5-coder-1.5b
"""


class Parser(argparse.ArgumentParser):
    """argparse with our sentence and exit code, and the nearest name for a mistyped one."""

    chosen = ""
    """The command that was typed: the root parser reports what that does not know."""

    def error(self, message: str) -> NoReturn:
        commands = next((action for action in self._actions if isinstance(action, argparse._SubParsersAction)), None)
        unknown = str(argparse.ArgumentError(commands, "invalid choice: "))
        if commands is not None and message.startswith(unknown):
            typed = message.removeprefix(unknown).partition(" (choose from")[0]
            near = difflib.get_close_matches(typed.strip("'\""), commands.choices, 1)
            message = f"there is no command {typed}" + (f"; did you mean {near[0]}?" if near else "")
        elif message.startswith("unrecognized arguments: "):
            typed = message.removeprefix("unrecognized arguments: ").split()[0]
            known = [flag for action in self._all_actions() for flag in action.option_strings]
            near = difflib.get_close_matches(typed.split("=")[0], known, 1, cutoff=0.7)
            message = f"there is no option {typed!r} here" + (f"; did you mean {near[0]}?" if near else "")
            if not typed.startswith("-"):
                message = f"{typed!r} is one word too many: texts with spaces need quotes"
        command = f"{self.prog} {self.chosen}".rstrip()
        sys.stderr.write(harmless(f"spec-local: {message}\n  `{command} --help` lists what there is.\n"))
        raise SystemExit(int(ExitCode.USAGE))

    def _all_actions(self) -> list[argparse.Action]:
        actions = list(self._actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    actions += parser._actions
        return actions


def build_parser(names: Collection[str] = COMMANDS) -> Parser:
    """The command line.

    Args:
        names: Commands that get their flags; of the others only the name is known, and nothing is imported for them.
    """
    parser = Parser(
        prog="spec-local",
        description="Run a language model on this machine, faster through exact speculative decoding.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"spec-local {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, summary in COMMANDS.items():
        if name not in names:
            commands.add_parser(name, help=summary)
            continue
        module = import_module(f"spec_local.cli.{name}")
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[:1].upper()}{summary[1:]}.",
            epilog=getattr(module, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--verbose", action="store_true", help="show llama.cpp's own log")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A console that cannot show a character shows a replacement; it must not end the program.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    words = sys.argv[1:] if argv is None else argv
    names = [word for word in words if not word.startswith("-")][:1]
    parser = build_parser(names)
    parser.chosen = next((name for name in names if name in COMMANDS), "")
    arguments: Any = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return ExitCode.USAGE
    try:
        if arguments.verbose:
            from spec_local.llama.library import set_verbose

            set_verbose(True)
        return int(arguments.run(arguments))
    except SpecLocalError as error:
        print_error(error)
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except UnicodeEncodeError as error:
        # Only a path can do that, where the locale is not UTF-8: files are opened under their bytes.
        print_error(UsageError(f"The encoding {error.encoding} of this locale has no {error.object!r}.", _LOCALE))
        return ExitCode.USAGE
    except BrokenPipeError:
        # The reader (head, less) has gone: that is its right, and no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK


def print_error(error: SpecLocalError) -> None:
    """The sentence, and the way out on a line of its own."""
    hint = f"\n  {error.hint}" if error.hint else ""
    sys.stderr.write(harmless(f"spec-local: {error.message}{hint}\n"))


if __name__ == "__main__":
    raise SystemExit(main())
