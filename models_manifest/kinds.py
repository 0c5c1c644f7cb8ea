"""GGUF files that are no models: named for what they are, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spec_local.errors import ModelError

_TYPES = {
    "adapter": "an adapter (LoRA), which changes a model and is none",
    "lora": "an adapter (LoRA), which changes a model and is none",
    "mmproj": "a projector, which lets a model see images or hear",
    "projector": "a projector, which lets a model see images or hear",
    "imatrix": "an importance matrix, which serves quantising",
    "vocab": "a vocabulary without a model",
}
"""By `general.type`."""
_ENCODERS = frozenset(
    [
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "modern-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "roberta",
        "xlm-roberta",
        "gemma-embedding",
        "t5encoder",
    ]
)
_PICTURES = frozenset(
    [
        "flux",
        "sd1",
        "sdxl",
        "sd3",
        "aura",
        "hidream",
        "cosmos",
        "ltxv",
        "hyvid",
        "wan",
        "qwen_image",
        "lumina2",
        "chroma",
        "pig",
    ]
)
_ARCHITECTURES = {
    "clip": _TYPES["mmproj"],
    "t5": "a model that translates one text into another (encoder and decoder)",
    "wavtokenizer-dec": "a part of a model that speaks",
    "eagle3": "a head for drafting (EAGLE), which works with its own model only",
    "imatrix": _TYPES["imatrix"],
}
_POOLED = {4: "a model that ranks documents", 5: "a model that ranks documents"}
"""By `pooling_type`; the others, but 0, make embeddings."""


def no_model(metadata: Mapping[str, object], split_by_name: bool = False) -> str:
    """What a file is that cannot write text, in words behind "is"; empty for a model.

    Args:
        metadata: Of its header, or the keys in front of its lists.
        split_by_name: The file's name says which part of a split model it is.
    """
    kind = str(metadata.get("general.type", "model"))
    architecture = str(metadata.get("general.architecture", ""))
    if kind in _TYPES:
        return _TYPES[kind]
    if kind.endswith(".imatrix") or "imatrix.chunk_count" in metadata:
        return _TYPES["imatrix"]
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture]
    if architecture in _PICTURES:
        return "a model that makes pictures or films"
    pooling = metadata.get(f"{architecture}.pooling_type", 0)
    if architecture in _ENCODERS or pooling not in (0, -1):
        return _POOLED.get(pooling if isinstance(pooling, int) else 0, "a model that makes embeddings of texts")
    if metadata.get(f"{architecture}.attention.causal") is False:
        return "an encoder or a diffusion model, which does not write from left to right"
    part = metadata.get("split.no")
    if isinstance(part, int) and part > 0 and not split_by_name:
        count = metadata.get("split.count", "several")
        return f"part {part + 1} of {count} of a split model, and its name does not say so"
    return ""


def require_model(path: Path, metadata: Mapping[str, object], split_by_name: bool = False) -> None:
    """Refuse what is no model.

    Raises:
        ModelError: It is none; the message says what it is.
    """
    if what := no_model(metadata, split_by_name):
        hint = "Give the files of a split model their names back: `name-00001-of-00003.gguf`, and so on."
        raise ModelError(
            f"{path} is {what}.", hint if what.startswith("part ") else "Choose a model that writes text, as -m FILE."
        )
