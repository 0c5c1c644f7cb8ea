"""`spec-local verify`: is speculation exact here, with this pair?"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.options import add_options, resolve
from spec_local.cli.terminal import TextOutput, is_terminal
from spec_local.errors import Aborted
from spec_local.words import harmless

EPILOG = """\
examples:
  spec-local verify --quick
  spec-local verify -m smollm2-135m-instruct -d text
  spec-local verify --acceptance block --json > verify.json

Four checks: the same tokens with and without drafts in passes of one width; ordinary runs replayed one token at
a time; the distribution of what is drawn; the caches after an answer. Exit code 1 when something is wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags, then the shared ones."""
    output = parser.add_argument_group("check")
    output.add_argument("--quick", action="store_true", help="under a minute on two cores, instead of a few minutes")
    output.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    add_options(parser, ("models", "fetching", "device", "speculation", "sampling", "comparison"))


def run(arguments: Any) -> int:
    """Load the pair, check it, print what was found."""
    settings = resolve(vars(arguments))
    from spec_local.cli.interrupt import Interrupt
    from spec_local.cli.loading import engine_options, load_engine, sampling

    pad_width = engine_options(settings).pad_width
    settings.pop("pad_width", None)  # ordinary runs are not padded: only the conformance run is
    wanted = sampling(settings)
    with Interrupt() as interrupt:
        progress = _Progress()
        try:
            with load_engine(settings, lambda: interrupt.seen) as engine:
                interrupt.on_first = engine.cancel
                from spec_local.verify.report import table
                from spec_local.verify.verify import verify

                found = verify(
                    engine,
                    quick=arguments.quick,
                    sampling=wanted,
                    pad_width=pad_width,
                    report=progress.show,
                    cancelled=lambda: interrupt.seen,
                )
        except Aborted:
            return ExitCode.INTERRUPTED
        finally:
            progress.clear()
    output = TextOutput(None)
    output.write(json.dumps(found.as_dict(), ensure_ascii=False, allow_nan=False) if arguments.json else table(found))
    output.close()
    return ExitCode.OK if found.passed else ExitCode.SOME_FAILED


class _Progress:
    """What is being done, on one line of a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._on = is_terminal(sys.stderr)

    def show(self, what: str) -> None:
        if self._on:
            sys.stderr.write(f"\r\x1b[K{harmless(what)} …")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
