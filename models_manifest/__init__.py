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
        user_catalogue_path,
    )
    from spec_local.models_manifest.download import pull
    from spec_local.models_manifest.estimate import MemoryEstimate, estimate_memory, largest_context
    from spec_local.models_manifest.found import find_files
    from spec_local.models_manifest.gguf_header import Header, read_header
    from spec_local.models_manifest.manage import add_model, remove_model
    from spec_local.models_manifest.pair_check import PairReport, check_pair, require_pair
    from spec_local.models_manifest.recommended import recommended_sampling
    from spec_local.models_manifest.resolve import (
        ListedModel,
        NotPulledError,
        ResolvedModel,
        list_models,
        resolve_model,
        resolve_pair,
    )
    from spec_local.models_manifest.store import requantised_path

_LAZY = {
    "Catalogue": "catalogue",
    "Header": "gguf_header",
    "ListedModel": "resolve",
    "MemoryEstimate": "estimate",
    "ModelEntry": "catalogue",
    "NotPulledError": "resolve",
    "Pair": "catalogue",
    "PairReport": "pair_check",
    "ResolvedModel": "resolve",
    "add_entry": "catalogue",
    "add_model": "manage",
    "check_pair": "pair_check",
    "estimate_memory": "estimate",
    "find_files": "found",
    "largest_context": "estimate",
    "list_models": "resolve",
    "load_catalogue": "catalogue",
    "pull": "download",
    "read_header": "gguf_header",
    "recommended_sampling": "recommended",
    "remove_entry": "catalogue",
    "remove_model": "manage",
    "requantised_path": "store",
    "require_pair": "pair_check",
    "resolve_model": "resolve",
    "resolve_pair": "resolve",
    "user_catalogue_path": "catalogue",
}

__all__ = [
    "Catalogue",
    "Header",
    "ListedModel",
    "MemoryEstimate",
    "ModelEntry",
    "NotPulledError",
    "Pair",
    "PairReport",
    "ResolvedModel",
    "add_entry",
    "add_model",
    "check_pair",
    "estimate_memory",
    "find_files",
    "largest_context",
    "list_models",
    "load_catalogue",
    "pull",
    "read_header",
    "recommended_sampling",
    "remove_entry",
    "remove_model",
    "requantised_path",
    "require_pair",
    "resolve_model",
    "resolve_pair",
    "user_catalogue_path",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
