"""Models by name: the catalogue of pairs, where their files are, how they get here, and what their headers say.

Importing this package is cheap; pydantic, numpy and the hub client load with the function that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_local.models_manifest.catalogue import (
        Catalogue,
        ModelEntry,
        Pair,
        add_entry,
        load_catalogue,
        remove_entry,
    )
    from spec_local.models_manifest.download import models_of, pull
    from spec_local.models_manifest.estimate import (
        compute_bytes,
        kv_bytes,
        recurrent_bytes,
        repacked_bytes,
        split_weights,
        vocabulary_bytes,
    )
    from spec_local.models_manifest.found import FoundFile, find_files
    from spec_local.models_manifest.gguf_header import Header, read_header
    from spec_local.models_manifest.manage import Removed, add_model, remove_model
    from spec_local.models_manifest.pair_check import PairReport, check_pair, require_pair
    from spec_local.models_manifest.recommended import recommended_sampling, unthinking_sampling
    from spec_local.models_manifest.resolve import (
        ListedModel,
        NotPulledError,
        ResolvedModel,
        list_models,
        resolve_model,
        resolve_pair,
    )
    from spec_local.models_manifest.sizes import show_bytes
    from spec_local.models_manifest.splits import split_files
    from spec_local.models_manifest.store import requantised_path
    from spec_local.models_manifest.suggest import PossibleDraft, possible_drafts

_LAZY = {
    "Catalogue": "catalogue",
    "FoundFile": "found",
    "Header": "gguf_header",
    "ListedModel": "resolve",
    "ModelEntry": "catalogue",
    "NotPulledError": "resolve",
    "Pair": "catalogue",
    "PairReport": "pair_check",
    "PossibleDraft": "suggest",
    "Removed": "manage",
    "ResolvedModel": "resolve",
    "add_entry": "catalogue",
    "add_model": "manage",
    "check_pair": "pair_check",
    "compute_bytes": "estimate",
    "find_files": "found",
    "kv_bytes": "estimate",
    "list_models": "resolve",
    "load_catalogue": "catalogue",
    "models_of": "download",
    "possible_drafts": "suggest",
    "pull": "download",
    "read_header": "gguf_header",
    "recommended_sampling": "recommended",
    "unthinking_sampling": "recommended",
    "recurrent_bytes": "estimate",
    "remove_entry": "catalogue",
    "remove_model": "manage",
    "repacked_bytes": "estimate",
    "requantised_path": "store",
    "require_pair": "pair_check",
    "resolve_model": "resolve",
    "resolve_pair": "resolve",
    "show_bytes": "sizes",
    "split_files": "splits",
    "split_weights": "estimate",
    "vocabulary_bytes": "estimate",
}

__all__ = [
    "Catalogue",
    "FoundFile",
    "Header",
    "ListedModel",
    "ModelEntry",
    "NotPulledError",
    "Pair",
    "PairReport",
    "PossibleDraft",
    "Removed",
    "ResolvedModel",
    "add_entry",
    "add_model",
    "check_pair",
    "compute_bytes",
    "find_files",
    "kv_bytes",
    "list_models",
    "load_catalogue",
    "models_of",
    "possible_drafts",
    "pull",
    "read_header",
    "recommended_sampling",
    "recurrent_bytes",
    "remove_entry",
    "remove_model",
    "repacked_bytes",
    "requantised_path",
    "require_pair",
    "resolve_model",
    "resolve_pair",
    "show_bytes",
    "split_files",
    "split_weights",
    "unthinking_sampling",
    "vocabulary_bytes",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
