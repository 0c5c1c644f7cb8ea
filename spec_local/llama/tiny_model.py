"""A transformer of 0.6 MB with random weights, written on the spot: enough to see whether a backend computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_WIDTH, _HEADS, _LAYERS, _CONTEXT = 256, 4, 2, 512
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def write_tiny_model(path: Path, quantisation: str = "Q4_0", seed: int = 0) -> None:
    """Write a random llama-architecture GGUF whose tokens are the 256 bytes.

    Args:
        path: Where to; replaced in one step.
        quantisation: ggml type of the matrices, for example Q4_0, Q8_0 or F32.
        seed: Of the weights.
    """
    import gguf

    kind = gguf.GGMLQuantizationType[quantisation]
    temporary = path.with_name(f"{path.name}.part")
    writer = gguf.GGUFWriter(temporary, "llama")
    writer.add_name("tiny random model")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *_BYTES, *(f"<unused{i}>" for i in range(29))]  # 288 = 9 · 32
    types = gguf.TokenType
    kinds = [types.UNKNOWN, types.CONTROL, types.CONTROL, *([types.BYTE] * 256), *([types.UNUSED] * 29)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)

    random = np.random.default_rng(seed)

    def matrix(name: str, rows: int) -> None:
        values = random.normal(0, _WIDTH**-0.5, (rows, _WIDTH)).astype(np.float32)  # [rows, width]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(_WIDTH, np.float32))

    matrix("token_embd.weight", len(tokens))
    for layer in range(_LAYERS):
        ones(f"blk.{layer}.attn_norm.weight")
        ones(f"blk.{layer}.ffn_norm.weight")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            matrix(f"blk.{layer}.{part}.weight", _WIDTH)
    ones("output_norm.weight")
    matrix("output.weight", len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(path)
