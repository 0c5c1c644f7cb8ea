"""`spec-local config`: which settings are in force, and where each value comes from."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.options import OPTIONS, resolve
from spec_local.cli.terminal import say
from spec_local.paths import config_file

EPILOG = """\
examples:
  spec-local config show
  $EDITOR "$(spec-local config path)"

The file is TOML with one line per setting, for example:  temperature = 0.2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`path` or `show`."""
    actions = parser.add_subparsers(dest="action", metavar="path|show", required=True)
    actions.add_parser("path", help="print where the settings file is")
    show = actions.add_parser("show", help="print every setting with its origin")
    show.add_argument("--json", action="store_true", help="as one JSON object")


def run(arguments: Any) -> int:
    """Print the path or the table."""
    if arguments.action == "path":
        say(config_file())
        return ExitCode.OK
    found = resolve({})
    rows: dict[str, dict[str, Any]] = {}
    for option in OPTIONS:
        if option.name in found:
            rows[option.name] = {"value": found[option.name].value, "origin": found[option.name].origin}
        else:
            origin = "default, unless the model recommends another" if option.group == "sampling" else "default"
            rows[option.name] = {"value": option.default or None, "origin": origin}
    if arguments.json:
        json.dump(rows, sys.stdout, ensure_ascii=False)
        print()
        return ExitCode.OK
    width = max(map(len, rows))
    for name, row in rows.items():
        value = "-" if row["value"] is None else str(row["value"])
        say(f"{name:<{width}}  {value:<28}  {row['origin']}")
    return ExitCode.OK
