"""Models by name: the catalogue of pairs, where their files are, how they get here, and what their headers say.

Importing this package is cheap; pydantic, numpy and the hub client load with the function that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_local.models_manifest.catalogue import load_catalogue
    from spec_local.models_manifest.download import pull
    from spec_local.models_manifest.found import find_files
    from spec_local.models_manifest.resolve import (
        ListedModel,
        NotPulledError,
        ResolvedModel,
        list_models,
        resolve_model,
        resolve_pair,
    )

_LAZY = {
    "ListedModel": "resolve",
    "NotPulledError": "resolve",
    "ResolvedModel": "resolve",
    "find_files": "found",
    "list_models": "resolve",
    "load_catalogue": "catalogue",
    "pull": "download",
    "resolve_model": "resolve",
    "resolve_pair": "resolve",
}

__all__ = [
    "ListedModel",
    "NotPulledError",
    "ResolvedModel",
    "find_files",
    "list_models",
    "load_catalogue",
    "pull",
    "resolve_model",
    "resolve_pair",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
