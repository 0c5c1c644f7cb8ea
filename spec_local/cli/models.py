"""`spec-local models`: which models there are, where they are, and how to get them."""

from __future__ import annotations

import argparse
from typing import Any

from spec_local.cli.exit_codes import ExitCode

EPILOG = """\
examples:
  spec-local models list
  spec-local models pull qwen2.5-coder-1.5b
  spec-local models where qwen2.5-coder-1.5b-instruct
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One parser for each action."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="models of the catalogue and files found on this machine")
    listing.add_argument("--all", action="store_true", help="also those that are not on this machine")
    pull = actions.add_parser("pull", help="fetch a model, or both models of a pair")
    pull.add_argument("name", help="name of a model (:quantisation) or of a pair")
    pull.add_argument("--offline", action="store_true", help="only check what is here; touch no network")
    where = actions.add_parser("where", help="print the path of a model's file")
    where.add_argument("name")


def run(arguments: Any) -> int:
    """Carry out one action."""
    if arguments.action == "pull":
        from spec_local.cli.interrupt import Interrupt, InThread
        from spec_local.cli.loading import pull_model

        with Interrupt() as interrupt:
            interrupt.on_first = _raise_interrupt
            for path in InThread(lambda: iter([pull_model(arguments.name, arguments.offline)])):
                print(path)
        return ExitCode.OK
    from spec_local.models_manifest import list_models, resolve_model

    if arguments.action == "where":
        print(resolve_model(arguments.name).path)
        return ExitCode.OK
    listed = [model for model in list_models() if model.path is not None or arguments.all]
    for model in listed:
        size = f"{model.bytes / 1e6:8.0f} MB" if model.bytes else " " * 11
        here = model.origin if model.path is not None else "not here"
        pairs = f"  pair {', '.join(model.pairs)}" if model.pairs else ""
        print(f"{model.name:<40} {size}  {here:<12}{pairs}")
    if not listed:
        print("No model is on this machine yet; `spec-local models list --all` shows what can be pulled.")
    return ExitCode.OK


def _raise_interrupt() -> None:
    raise KeyboardInterrupt
