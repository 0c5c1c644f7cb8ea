"""How models are named: `NAME`, `NAME:QUANTISATION`, or a path."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def split_quantisation(spec: str) -> tuple[str, str | None]:
    """`qwen2.5-coder-1.5b-instruct:q8_0` → its name and quantisation, both lower case; None where none is asked for."""
    name, colon, quantisation = spec.lower().rpartition(":")
    return (name, quantisation or None) if colon else (quantisation, None)


def looks_like_path(spec: str) -> bool:
    """Whether `spec` can only be meant as a path: it has a separator, a `~`, or ends in `.gguf`."""
    return "/" in spec or "\\" in spec or spec.startswith("~") or spec.lower().endswith(".gguf")


def nearest(name: str, names: Iterable[str]) -> str:
    """A sentence with up to three names like `name`; empty where none is."""
    close = difflib.get_close_matches(name.lower(), sorted(set(names)), n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(close)}?" if close else ""
