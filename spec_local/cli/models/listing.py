"""`models list` and `models where`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.models.output import columns, print_json
from spec_local.cli.terminal import say
from spec_local.models_manifest import ListedModel, Pair, list_models, load_catalogue, requantised_path, show_bytes
from spec_local.words import counted


def run_list(arguments: Any) -> int:
    """The catalogue with what is here, then files of other programs."""
    every = list_models()
    listed = [model for model in every if model.path is not None or arguments.all]
    if arguments.json:
        print_json([_as_dict(model) for model in listed])
        return ExitCode.OK
    if listed:
        pairs = {pair.name: pair for pair in load_catalogue().pairs}
        rows = [("NAME", "QUANT", "SIZE", "WHERE", "PAIRS")]
        rows += [
            (
                called(model)[0],
                called(model)[1],
                show_bytes(model.bytes) if model.bytes else "?",
                model.origin if model.path is not None else "not here",
                _shortened(_roles(model, pairs)),
            )
            for model in listed
        ]
        print(columns(rows, right=(2,)))
        here = sum(model.bytes or 0 for model in listed if model.path is not None)
        count = sum(model.path is not None for model in listed)
        print(f"\n{counted(count, 'model')} on this machine, {show_bytes(here)}.", end=" ")
    else:
        print("No model is on this machine yet.", end=" ")
    hidden = len(every) - len(listed)
    print(f"{hidden} more can be pulled; `spec-local models list --all` shows them." if hidden else "")
    return ExitCode.OK


def run_where(arguments: Any) -> int:
    """The path of a model's (first) file, or the folder of all."""
    from spec_local.models_manifest import resolve_model
    from spec_local.paths import models_folder

    found = resolve_model(arguments.name) if arguments.name else None
    path = models_folder() if found is None else found.path
    if arguments.json:
        print_json({"path": str(path), "origin": None if found is None else found.origin})
    else:
        say(path)
    return ExitCode.OK


def called(model: ListedModel) -> tuple[str, str]:
    """What to type for a model, and its quantisation; the latter empty where only the file's content says it."""
    if model.variant is not None:
        return model.name, model.variant.quantisation
    if model.entry is not None and model.path is not None:
        stem = requantised_path(model.entry.name, "").stem  # `NAME-`, and the quantisation behind it
        quantisation = model.path.stem.removeprefix(stem)
        if model.path == requantised_path(model.entry.name, quantisation):
            return f"{model.entry.name}:{quantisation}", quantisation
    return model.name, ""


def _roles(model: ListedModel, pairs: Mapping[str, Pair]) -> list[str]:
    """`PAIR (target)` or `PAIR (draft)` for each of its pairs."""
    name = model.entry.name if model.entry is not None else ""
    return [f"{pair} ({'target' if pairs[pair].target == name else 'draft'})" for pair in model.pairs]


def _shortened(items: Sequence[str], most: int = 2) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _as_dict(model: ListedModel) -> dict[str, Any]:
    name, quantisation = called(model)
    return {
        "name": name,
        "present": model.path is not None,
        "path": None if model.path is None else str(model.path),
        "origin": model.origin or None,
        "bytes": model.bytes,
        "quantisation": quantisation or None,
        "title": model.entry.title if model.entry else None,
        "parameters": model.entry.parameters if model.entry else None,
        "context_length": model.entry.context_length if model.entry else None,
        "licence": model.entry.licence if model.entry else None,
        "pairs": [*model.pairs],
    }
