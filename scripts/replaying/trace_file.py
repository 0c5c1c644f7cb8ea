"""Traces as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spec_local.bench.traces import Trace

CONFIDENCE_STEPS = 10_000
"""Confidence is stored in steps of 1e-4: it matters near 1."""


def load(path: Path) -> list[Trace]:
    """Read traces written by `save`."""
    with np.load(path) as data:
        names, kinds = data["names"].tolist(), data["kinds"].tolist()
        prompts = np.split(data["prompt"], np.cumsum(data["prompt_sizes"])[:-1])
        bounds = np.cumsum(data["sizes"])[:-1]
        tokens, own = np.split(data["tokens"], bounds), np.split(data["own"], bounds)
        confidence = np.split(data["confidence"].astype(np.float64) / CONFIDENCE_STEPS, bounds)
        return [
            Trace(name, kind, float(temperature), p.tolist(), t.tolist(), o, c)
            for name, kind, temperature, p, t, o, c in zip(
                names, kinds, data["temperatures"], prompts, tokens, own, confidence, strict=True
            )
        ]


def save(path: Path, traces: Sequence[Trace]) -> None:
    """Write traces as one compressed .npz of plain arrays."""
    np.savez_compressed(
        path,
        names=np.array([t.name for t in traces]),
        kinds=np.array([t.kind for t in traces]),
        temperatures=np.array([t.temperature for t in traces]),
        prompt_sizes=np.array([len(t.prompt) for t in traces]),
        sizes=np.array([len(t) for t in traces]),
        prompt=np.concatenate([np.array(t.prompt, dtype=np.int32) for t in traces]),
        tokens=np.concatenate([np.array(t.tokens, dtype=np.int32) for t in traces]),
        own=np.concatenate([t.own for t in traces]),
        confidence=np.concatenate([np.round(t.confidence * CONFIDENCE_STEPS).astype(np.uint16) for t in traces]),
    )
