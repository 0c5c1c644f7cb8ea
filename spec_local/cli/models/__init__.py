"""`spec-local models`: which models there are, where they are, how to get them, and which go together."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

EPILOG = """\
examples:
  spec-local models list --all
  spec-local models pull qwen2.5-coder-1.5b
  spec-local models show qwen2.5-coder-1.5b-instruct
  spec-local models check some/model.gguf some/draft.gguf
  spec-local models add my-model some/model.gguf --draft qwen2.5-0.5b-instruct
  spec-local models requantise qwen2.5-coder-0.5b-instruct --type q4_0 --pure
"""

_NAME = "name of a model, NAME:QUANTISATION, or path of a GGUF file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One parser for each action."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="models of the catalogue and files found on this machine")
    listing.add_argument("--all", action="store_true", help="also those that are not on this machine")

    show = actions.add_parser("show", help="what a model is, what it needs, and which drafts fit it")
    show.add_argument("name", help=_NAME)
    show.add_argument("--metadata", action="store_true", help="every single value of the file's metadata besides")
    show.add_argument("--template", action="store_true", help="the chat template, whole, and nothing else")

    check = actions.add_parser("check", help="whether a draft fits a target; nothing is loaded")
    check.add_argument("target", nargs="?", help=_NAME)
    check.add_argument("draft", nargs="?", help="the same for the draft")
    check.add_argument("--pair", metavar="NAME", help="both models of a catalogue pair")

    where = actions.add_parser("where", help="print the path of a model's file")
    where.add_argument("name", nargs="?", help="model; without one, the folder of all models")

    pull = actions.add_parser("pull", help="fetch a model, or both models of a pair")
    pull.add_argument("name", help="name of a model (:quantisation) or of a pair")
    pull.add_argument("--offline", action="store_true", help="only check what is here; touch no network")

    add = actions.add_parser("add", help="put a model of your own into the catalogue")
    add.add_argument("name", help="what to call it")
    add.add_argument("place", help="path of a GGUF file, a web address, or a hub repository (with --file)")
    add.add_argument("--file", metavar="NAME", help="file in the hub repository")
    add.add_argument("--draft", metavar="NAME", help="catalogue model that drafts for it")
    add.add_argument("--quantisation", metavar="Q", help="default: read from the file or its name")
    add.add_argument("--sha256", metavar="HEX", help="checksum of the file")
    add.add_argument("--licence", metavar="TEXT", default="not stated", help="its licence (default: not stated)")

    remove = actions.add_parser("remove", help="delete a model's stored files, and your own entry of that name")
    remove.add_argument("name", help="name of a model, or NAME:QUANTISATION for that one alone")
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask")

    requantise = actions.add_parser("requantise", help="make another quantisation of a model that is here")
    requantise.add_argument("name", metavar="SRC", help=_NAME)
    requantise.add_argument("--type", required=True, metavar="TYPE", help="q4_0, q4_k_m, q5_k_m, q6_k, q8_0, f16 …")
    requantise.add_argument("--pure", action="store_true", help="this type for every matrix, no mixture")
    requantise.add_argument("--force", action="store_true", help="make it again although it is there")

    for action in (listing, show, check, where, add, remove, requantise):
        action.add_argument("--json", action="store_true", help="print one JSON object")


_MODULES = {"list": "listing", "where": "listing", "show": "show", "check": "check", "requantise": "requantise"}


def run(arguments: Any) -> int:
    """Carry out one action."""
    module = import_module(f"spec_local.cli.models.{_MODULES.get(arguments.action, 'store')}")
    return int(getattr(module, f"run_{arguments.action}")(arguments))
