"""`models pull`, `add` and `remove`: what changes the stored files and the user's catalogue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.interrupt import Interrupt, InThread
from spec_local.cli.loading import pull_model
from spec_local.cli.models.output import print_json
from spec_local.cli.terminal import is_terminal, say
from spec_local.errors import UsageError
from spec_local.models_manifest import add_model, list_models, load_catalogue, remove_model, show_bytes
from spec_local.words import counted, harmless


def run_pull(arguments: Any) -> int:
    """Fetch a model or a pair; prints the path of the (first) file."""
    with Interrupt() as interrupt:
        interrupt.on_first = _raise_interrupt
        for path in InThread(lambda: iter([pull_model(arguments.name, arguments.offline)])):
            say(path)
    return ExitCode.OK


def run_add(arguments: Any) -> int:
    """Put a model of the user's own into their catalogue."""
    place: str = arguments.place
    where: dict[str, Any]
    if place.startswith(("http://", "https://")):
        where = {"url": place}
    elif arguments.file is not None:
        where = {"repository": place, "file": arguments.file}
    else:
        where = {"path": Path(place).expanduser()}
    entry = add_model(
        arguments.name,
        **where,
        sha256=arguments.sha256,
        quantisation=arguments.quantisation,
        draft=arguments.draft,
        licence=arguments.licence,
    )
    quantisation = entry.variants[0].quantisation
    if arguments.json:
        print_json({"name": entry.name, "quantisation": quantisation, "draft": arguments.draft})
        return ExitCode.OK
    drafted = f"; {arguments.draft} drafts for it" if arguments.draft else ""
    print(harmless(f"{entry.name} ({quantisation}) is in your catalogue{drafted}."))
    if "path" not in where:
        print(f"`spec-local models pull {entry.name}` brings it.", file=sys.stderr)
    return ExitCode.OK


def run_remove(arguments: Any) -> int:
    """Delete stored files and the user's own entry; asks at a terminal."""
    name = arguments.name.lower().partition(":")[0]
    load_catalogue().model(name)
    if not arguments.yes and is_terminal(sys.stdin) and is_terminal(sys.stderr):
        stored = [m for m in list_models() if m.entry and m.entry.name == name and m.origin == "spec-local"]
        size = sum(model.bytes or 0 for model in stored)
        what = f"{counted(len(stored), 'file')} of {name}, {show_bytes(size)}" if stored else f"the entry {name}"
        sys.stderr.write(harmless(f"Delete {arguments.name if ':' in arguments.name else what}? [y/N] "))
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("Nothing was deleted.")
    removed = remove_model(arguments.name)
    if arguments.json:
        print_json({"files": [str(path) for path in removed.files], "bytes": removed.bytes, "entry": removed.entry})
        return ExitCode.OK
    for path in removed.files:
        print(harmless(str(path)))
    entry = " and your catalogue's entry" if removed.entry else ""
    print(f"Deleted {counted(len(removed.files), 'file')}{entry}; {show_bytes(removed.bytes)} freed.", file=sys.stderr)
    return ExitCode.OK


def _raise_interrupt() -> None:
    raise KeyboardInterrupt
