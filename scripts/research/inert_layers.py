"""A model that says what a small one says and costs what a big one costs: inert layers behind the small one's own.

    python scripts/research/inert_layers.py qwen2.5-coder-1.5b-instruct:q4_0 big.gguf --times 4

An added layer is a copy of one of the model's own whose output matrices are zero, so it adds nothing to the residual
stream: text, probabilities and acceptance of drafts are the small model's, time and memory those of so many layers.
That is the pair of a big target and a small draft, measured on a machine that holds no big model.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from spec_local.errors import ModelError, SpecLocalError
from spec_local.models_manifest import resolve_model

LAYER = re.compile(r"blk\.(\d+)\.(.+)")
OUTPUTS = re.compile(r"(attn_output|ffn_down(_exps|_shexp)?|ssm_out)\.(weight|bias)")
"""Tensors through which a layer adds to the residual stream. Zero bytes are zeros in every tensor type of ggml."""
NOT_COPIED = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")
"""Fields that the writer makes itself."""


def deepen(source: Path, target: Path, times: int) -> int:
    """Write `source` with inert layers behind its own, `times` as many in all, to `target`.

    Returns:
        Layers of the new file.

    Raises:
        ModelError: A layer of this architecture cannot be made inert like that.
    """
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    field = reader.fields.get(f"{architecture}.block_count")
    if field is None:
        raise ModelError(f"{source.name} does not say how many layers it has.", "Take a model with ordinary layers.")
    own = int(field.contents())
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name not in NOT_COPIED:
            value, kind = _copied(name, field, architecture, own, times)
            writer.add_key_value(name, value, kind, field.types[1] if kind == gguf.GGUFValueType.ARRAY else None)
    tensors = list(_layers(reader, own, times))
    zeroed = {match[1] for name, tensor, zero in tensors if zero and (match := OUTPUTS.search(name))}
    if not {"attn_output", "ffn_down"} <= zeroed and not {"attn_output", "ffn_down_exps"} <= zeroed:
        raise ModelError(
            f"The layers of {source.name} ({architecture}) have other output matrices than attn_output and ffn_down.",
            "Take a model with ordinary layers.",
        )
    for name, tensor, _ in tensors:
        writer.add_tensor_info(name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, tensor, zero in tensors:
        writer.write_tensor_data(np.zeros_like(tensor.data) if zero else tensor.data)
    writer.close()
    return own * times


def _copied(name: str, field: Any, architecture: str, own: int, times: int) -> tuple[Any, Any]:
    """Value and type of a field; what counts layers, or has an entry per layer, is made longer."""
    value, kind = field.contents(), field.types[0]
    if name == f"{architecture}.block_count":
        value = own * times
    elif kind == gguf.GGUFValueType.ARRAY and name.startswith(architecture) and len(value) == own:
        value = list(value) * times
    return value, kind


def _layers(reader: gguf.GGUFReader, own: int, times: int) -> Iterator[tuple[str, Any, bool]]:
    """Name, tensor, and whether it is to be zero, of all layers."""
    for tensor in reader.tensors:
        yield tensor.name, tensor, False
    for copy in range(1, times):
        for tensor in reader.tensors:
            if match := LAYER.fullmatch(tensor.name):
                yield f"blk.{int(match[1]) + copy * own}.{match[2]}", tensor, bool(OUTPUTS.fullmatch(match[2]))


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Put inert layers behind a model's own.")
    parser.add_argument("model", help="name or path of the small model")
    parser.add_argument("output", type=Path, help="the .gguf to write")
    parser.add_argument("--times", type=int, default=4, help="layers in all, in the model's own (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.times < 2:
        parser.error("--times must be 2 or more")
    try:
        layers = deepen(resolve_model(arguments.model).path, arguments.output, arguments.times)
    except SpecLocalError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{arguments.output}: {layers} layers, {arguments.output.stat().st_size / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
