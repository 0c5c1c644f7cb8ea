"""What a model file says about itself, from its header alone and in well under a second.

Split GGUFs are read as one model. A fact the file does not state is None; a fact it states in a way that cannot be
is a `ModelError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spec_local.errors import ModelError
from spec_local.models_manifest.facts import Facts
from spec_local.models_manifest.gguf_format import Array, Container, Tensor, read_container
from spec_local.models_manifest.kinds import require_model
from spec_local.models_manifest.layers import Layers, read_layers
from spec_local.models_manifest.splits import split_files, split_number
from spec_local.models_manifest.tokenizer import Tokenizer, read_tokenizer

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
"""`general.file_type` → name (llama.cpp's `llama_ftype`)."""


@dataclass(frozen=True, slots=True)
class Header:
    """Facts about one model."""

    path: Path
    """The (first) file."""
    files: tuple[Path, ...]
    """All files of a split model; just `path` otherwise."""
    file_bytes: int
    """Size of all files."""
    metadata: Mapping[str, int | float | bool | str | Array]
    """Every key of the (first) file."""
    tensors: tuple[Tensor, ...]
    architecture: str
    name: str
    """What the model calls itself; empty where it does not."""
    quantisation: str
    """`Q4_K_M`, `F16` …"""
    parameters: int
    """Elements of all tensors."""
    context_length: int | None
    """Tokens the model was trained for."""
    layers: Layers
    tokenizer: Tokenizer
    chat_template: str | None
    """The default Jinja template."""
    named_templates: Mapping[str, str]
    """Further templates by name, such as `tool_use`."""
    sampling: Mapping[str, int | float]
    """`general.sampling.*` without that prefix: what the model's makers recommend."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer keeps a recurrent state, which cannot be cut back token by token."""
        return any(self.layers.recurrent)

    @property
    def is_hybrid(self) -> bool:
        """Whether it has both attention and recurrent layers."""
        return self.is_recurrent and any(self.layers.attention)


def read_header(path: Path | str) -> Header:
    """Read the header of a model file, all files of it where it is split.

    Raises:
        ModelError: No such file, not a GGUF file, damaged, incomplete, or files of a split are missing.
    """
    given = Path(path).expanduser()
    files = split_files(given)
    first, *others = [read_container(file) for file in files]
    require_model(first.path, first.metadata, split_number(first.path) is not None)
    _check_split(first, others)
    facts = Facts(first)
    tensors = tuple(tensor for container in (first, *others) for tensor in container.tensors)
    architecture = facts.text("general.architecture")
    if not architecture:
        raise ModelError(f"{first.path} does not say which architecture it is; it is not a usable model file.")

    return Header(
        path=files[0],
        files=tuple(files),
        file_bytes=sum(container.file_bytes for container in (first, *others)),
        metadata=first.metadata,
        tensors=tensors,
        architecture=architecture,
        name=facts.text("general.name"),
        quantisation=_quantisation(facts, tensors),
        parameters=sum(tensor.elements for tensor in tensors),
        context_length=facts.number(f"{architecture}.context_length"),
        layers=read_layers(facts, architecture, tensors),
        tokenizer=read_tokenizer(facts),
        chat_template=facts.text("tokenizer.chat_template") or None,
        named_templates={
            name.removeprefix("tokenizer.chat_template."): value
            for name, value in first.metadata.items()
            if name.startswith("tokenizer.chat_template.") and isinstance(value, str)
        },
        sampling={
            name.removeprefix("general.sampling."): value
            for name, value in first.metadata.items()
            if name.startswith("general.sampling.") and isinstance(value, int | float)
        },
    )


def _check_split(first: Container, others: list[Container]) -> None:
    """The files of a split must say the same of themselves as their names do."""
    count = first.metadata.get("split.count", 1)
    if count != len(others) + 1 and count not in (0, 1):
        if _goes_on(first):
            raise ModelError(
                f"{first.path} is several files of a split model, joined one behind the other.",
                "Get the files apart again, each under its own name; `llama-gguf-split --merge` joins them rightly.",
            )
        raise ModelError(
            f"{first.path} is the first of {count} files, but its name does not say so.",
            "Give the files back their names: `name-00001-of-00003.gguf`.",
        )
    for number, container in enumerate(others, start=1):
        if container.metadata.get("split.no") != number:
            raise ModelError(
                f"{container.path} says it is file {container.metadata.get('split.no')} of the model (from 0), "
                f"its name says {number}.",
                "Download it again.",
            )
    total = first.metadata.get("split.tensors.count")
    have = sum(len(container.tensors) for container in (first, *others))
    if others and type(total) is int and total != have:
        raise ModelError(
            f"The files of {first.path} hold {have} tensors where {total} are expected.", "Download them again."
        )


def _goes_on(container: Container) -> bool:
    """Whether another GGUF file begins where this one's tensors end."""
    with container.path.open("rb") as file:
        file.seek(container.end)
        return b"GGUF" in file.read(4096)


def _quantisation(facts: Facts, tensors: tuple[Tensor, ...]) -> str:
    stated = facts.metadata.get("general.file_type")
    if type(stated) is int and stated in _FILE_TYPES:
        return _FILE_TYPES[stated]
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type] += tensor.bytes
    return sizes.most_common(1)[0][0] if sizes else ""
