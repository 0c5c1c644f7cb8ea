"""Sampling a model's makers recommend: from the file's own metadata, else from the catalogue."""

from __future__ import annotations

from spec_local.models_manifest.catalogue import ModelEntry
from spec_local.models_manifest.gguf_header import Header

FROM_FILE, FROM_CATALOGUE = "model file", "catalogue"

_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "penalty_last_n",
}
"""`general.sampling.*` → name of the sampling setting. Others (mirostat, xtc) have no counterpart here."""

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_k": (0, 1 << 31),
    "top_p": (1e-9, 1),
    "min_p": (0, 1),
    "repeat_penalty": (1e-9, 100),
    "penalty_last_n": (-1, 1 << 31),
}


def unthinking_sampling(entry: ModelEntry | None) -> dict[str, tuple[int | float, str]]:
    """What the catalogue recommends instead where a model that can think is told not to; the same form."""
    values = entry.sampling_without_thinking.model_dump(exclude_none=True) if entry is not None else {}
    return {name: (value, FROM_CATALOGUE) for name, value in values.items()}


def recommended_sampling(header: Header | None, entry: ModelEntry | None) -> dict[str, tuple[int | float, str]]:
    """Setting → (value, origin), origin being `FROM_FILE` or `FROM_CATALOGUE`. What neither names is left out.

    A value in the file that cannot be (a negative temperature, say) is ignored.
    """
    found: dict[str, tuple[int | float, str]] = {}
    if entry is not None:
        for name, value in entry.sampling.model_dump(exclude_none=True).items():
            found[name] = (value, FROM_CATALOGUE)
    for key, value in (header.sampling if header else {}).items():
        setting = _NAMES.get(key)
        if setting and not isinstance(value, bool) and _RANGES[setting][0] <= value <= _RANGES[setting][1]:
            whole = setting in ("top_k", "penalty_last_n")
            found[setting] = (int(value) if whole else float(f"{value:.6g}"), FROM_FILE)  # float32 0.8 reads 0.8
    return found
