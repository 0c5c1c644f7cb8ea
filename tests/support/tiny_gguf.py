"""Tiny random GGUF files that llama.cpp really loads: a transformer of 100 000 weights; and one file for each way in
which memory can be other than a cell per token: recurrent, hybrid, sliding window; and a mixture of experts.

All share one vocabulary: every byte is a token, some pairs and words are merged, and ChatML's control tokens are there.
A file takes milliseconds to write and to load, so the whole stack can be tested on real caches and real kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "i n", "e r", "a n", "a b", "c d", "ab cd", "Ġ t", "Ġt he", "Ġ a", "o n", "r e")
END_OF_TEXT, TURN, END_OF_TURN = 256 + len(MERGES), 257 + len(MERGES), 258 + len(MERGES)
N_VOCAB = 256 + len(MERGES) + len(CONTROL)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_symbols() -> list[str]:
    """The 256 printable characters under which byte-level BPE writes bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols, extra = {}, 0
    for byte in range(256):
        symbols[byte] = chr(byte) if byte in plain else chr(256 + extra)
        extra += byte not in plain
    return [symbols[byte] for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int]]:
    """Token texts and types."""
    texts = [*byte_symbols(), *(merge.replace(" ", "") for merge in MERGES), *CONTROL]
    types = [gguf.TokenType.NORMAL] * (len(texts) - len(CONTROL)) + [gguf.TokenType.CONTROL] * len(CONTROL)
    return texts, [int(kind) for kind in types]


def _head(path: Path, arch: str, name: str, template: str | None, options: dict[str, Any]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(name)
    texts, types = vocabulary()
    texts += [f"[PAD{i}]" for i in range(options.get("padding", 0))]
    types += [int(gguf.TokenType.UNUSED)] * options.get("padding", 0)
    texts += [text for text, _ in options.get("extra", ())]
    types += [int(kind) for _, kind in options.get("extra", ())]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(options.get("bos", END_OF_TEXT))
    writer.add_eos_token_id(END_OF_TURN)
    writer.add_add_bos_token(options.get("add_bos", False))
    writer.add_add_eos_token(options.get("add_eos", False))
    if template is not None:
        writer.add_chat_template(template)
    return writer


def write_transformer(
    path: Path,
    *,
    seed: int = 0,
    near: float = 0.0,
    sharpness: float = 6.0,
    layers: int = 2,
    width: int = 64,
    template: str | None = TEMPLATE,
    n_ctx_train: int = 2048,
    **options: Any,
) -> Path:
    """A llama-architecture file.

    Args:
        path: Where to write.
        seed: The weights.
        near: Relative noise added to the weights of the same seed: a draft that often agrees.
        sharpness: Scale of the logits; at 6 the likeliest token has about half of the probability.
        layers: Blocks.
        width: Embedding length, a multiple of 64, so that quantised caches work too.
        template: Chat template, or None for a file without one.
        n_ctx_train: What the file says it was trained for.
        options: `add_bos`, `add_eos`, `bos`, `padding` (unused tokens at the end), `extra` (tokens behind them,
            text and type), `recommended` (sampling metadata).
    """
    heads, inner = 2, 2 * width
    n_vocab = N_VOCAB + options.get("padding", 0) + len(options.get("extra", ()))
    writer = _head(path, "llama", f"tiny-{seed}", template, options)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(n_vocab)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for key, value in options.get("recommended", {}).items():
        writer.add_float32(f"general.sampling.{key}", value)

    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1_000_003)

    def weights(*shape: int, scale: float = 1.0) -> np.ndarray:
        values = rng.normal(size=shape) * scale / np.sqrt(shape[-1])
        noise = other.normal(size=shape) * scale / np.sqrt(shape[-1])
        return np.asarray(values + near * noise, np.float32)

    def ones() -> np.ndarray:
        return np.ones(width, np.float32)

    tensors = {
        "token_embd.weight": weights(n_vocab, width, scale=np.sqrt(width)),
        "output_norm.weight": ones(),
        "output.weight": weights(n_vocab, width, scale=sharpness / 2),
    }
    for i in range(layers):
        tensors |= {
            f"blk.{i}.attn_norm.weight": ones(),
            f"blk.{i}.attn_q.weight": weights(width, width, scale=2.0),
            f"blk.{i}.attn_k.weight": weights(width, width, scale=2.0),
            f"blk.{i}.attn_v.weight": weights(width, width),
            f"blk.{i}.attn_output.weight": weights(width, width),
            f"blk.{i}.ffn_norm.weight": ones(),
            f"blk.{i}.ffn_gate.weight": weights(inner, width),
            f"blk.{i}.ffn_up.weight": weights(inner, width),
            f"blk.{i}.ffn_down.weight": weights(width, inner),
        }
    return _finish(writer, path, tensors)


def _weights(seed: int, near: float) -> Callable[..., np.ndarray]:
    """Random weights of a seed, with relative noise on them: float32 [*shape]."""
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1_000_003)

    def weights(*shape: int, scale: float = 1.0) -> np.ndarray:
        values = rng.normal(size=shape) + near * other.normal(size=shape)
        return np.asarray(values * scale / np.sqrt(shape[-1]), np.float32)

    return weights


def _ones(width: int) -> np.ndarray:
    return np.ones(width, np.float32)


def _ends(weights: Callable[..., np.ndarray], width: int, norm: str = "output_norm") -> dict[str, np.ndarray]:
    return {
        "token_embd.weight": weights(N_VOCAB, width, scale=np.sqrt(width)),
        f"{norm}.weight": _ones(width),
        "output.weight": weights(N_VOCAB, width, scale=3.0),
    }


def _attention(weights: Callable[..., np.ndarray], i: int, width: int, kv: int | None = None) -> dict[str, np.ndarray]:
    return {
        f"blk.{i}.attn_q.weight": weights(width, width, scale=2.0),
        f"blk.{i}.attn_k.weight": weights(kv or width, width, scale=2.0),
        f"blk.{i}.attn_v.weight": weights(kv or width, width),
        f"blk.{i}.attn_output.weight": weights(width, width),
    }


def _feed_forward(
    weights: Callable[..., np.ndarray], i: int, width: int, inner: int, experts: int = 0
) -> dict[str, np.ndarray]:
    if not experts:
        return {
            f"blk.{i}.ffn_gate.weight": weights(inner, width),
            f"blk.{i}.ffn_up.weight": weights(inner, width),
            f"blk.{i}.ffn_down.weight": weights(width, inner),
        }
    return {
        f"blk.{i}.ffn_gate_inp.weight": weights(experts, width, scale=2.0),
        f"blk.{i}.ffn_gate_exps.weight": weights(experts, inner, width),
        f"blk.{i}.ffn_up_exps.weight": weights(experts, inner, width),
        f"blk.{i}.ffn_down_exps.weight": weights(experts, width, inner),
    }


def _mamba(weights: Callable[..., np.ndarray], i: int, width: int, norms: bool) -> dict[str, np.ndarray]:
    inner, state, conv, rank = 2 * width, SSM["state"], SSM["conv"], SSM["rank"]
    tensors = {
        f"blk.{i}.attn_norm.weight": _ones(width),
        f"blk.{i}.ssm_in.weight": weights(2 * inner, width),
        f"blk.{i}.ssm_conv1d.weight": weights(inner, conv),
        f"blk.{i}.ssm_conv1d.bias": np.zeros(inner, np.float32),
        f"blk.{i}.ssm_x.weight": weights(rank + 2 * state, inner),
        f"blk.{i}.ssm_dt.weight": weights(inner, rank),
        f"blk.{i}.ssm_dt.bias": np.zeros(inner, np.float32),
        f"blk.{i}.ssm_a": -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1)) / 8,
        f"blk.{i}.ssm_d": _ones(inner),
        f"blk.{i}.ssm_out.weight": weights(width, inner),
    }
    if norms:
        tensors |= {
            f"blk.{i}.ssm_dt_norm.weight": _ones(rank),
            f"blk.{i}.ssm_b_norm.weight": _ones(state),
            f"blk.{i}.ssm_c_norm.weight": _ones(state),
        }
    return tensors


SSM = {"state": 16, "conv": 4, "rank": 2}


def _add_ssm(writer: gguf.GGUFWriter, width: int) -> None:
    writer.add_ssm_conv_kernel(SSM["conv"])
    writer.add_ssm_inner_size(2 * width)
    writer.add_ssm_state_size(SSM["state"])
    writer.add_ssm_time_step_rank(SSM["rank"])


def write_recurrent(
    path: Path, *, seed: int = 0, near: float = 0.0, layers: int = 2, width: int = 32, **options: Any
) -> Path:
    """A Mamba file: its state is a running one, which no cut can wind back; llama.cpp keeps no snapshots of it."""
    writer = _head(path, "mamba", f"tiny-recurrent-{seed}", TEMPLATE, options)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(layers)
    _add_ssm(writer, width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    weights = _weights(seed, near)
    tensors = _ends(weights, width)
    for i in range(layers):
        tensors |= _mamba(weights, i, width, norms=False)
    return _finish(writer, path, tensors)


def write_hybrid(
    path: Path, *, seed: int = 0, near: float = 0.0, layers: int = 4, width: int = 32, experts: int = 0, **options: Any
) -> Path:
    """A Jamba file: Mamba and attention in turn, with experts where asked for; llama.cpp keeps no snapshots of it."""
    writer = _head(path, "jamba", f"tiny-hybrid-{seed}", TEMPLATE, options)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(2)
    writer.add_head_count_kv([0 if i % 2 == 0 else 2 for i in range(layers)])
    writer.add_block_count(layers)
    _add_ssm(writer, width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    weights = _weights(seed, near)
    tensors = _ends(weights, width)
    for i in range(layers):
        if i % 2 == 0:
            tensors |= _mamba(weights, i, width, norms=True)
        else:
            tensors |= {f"blk.{i}.attn_norm.weight": _ones(width), **_attention(weights, i, width)}
        tensors |= {f"blk.{i}.ffn_norm.weight": _ones(width)}
        tensors |= _feed_forward(weights, i, width, 2 * width, experts if i % 2 else 0)
    return _finish(writer, path, tensors)


def write_convolutional(
    path: Path, *, seed: int = 0, near: float = 0.0, layers: int = 4, width: int = 32, **options: Any
) -> Path:
    """An LFM2 file: short convolutions and attention in turn, a hybrid of which llama.cpp keeps snapshots."""
    heads, kernel = 2, 3
    writer = _head(path, "lfm2", f"tiny-convolutional-{seed}", TEMPLATE, options)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv([0 if i % 2 == 0 else heads for i in range(layers)])
    writer.add_block_count(layers)
    writer.add_shortconv_l_cache(kernel)
    writer.add_vocab_size(N_VOCAB)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    weights = _weights(seed, near)
    tensors = _ends(weights, width, norm="token_embd_norm")
    for i in range(layers):
        tensors |= {f"blk.{i}.attn_norm.weight": _ones(width), f"blk.{i}.ffn_norm.weight": _ones(width)}
        tensors |= _feed_forward(weights, i, width, 2 * width)
        if i % 2 == 0:
            tensors |= {
                f"blk.{i}.shortconv.conv.weight": weights(width, kernel, scale=2.0),
                f"blk.{i}.shortconv.in_proj.weight": weights(3 * width, width),
                f"blk.{i}.shortconv.out_proj.weight": weights(width, width, scale=2.0),
            }
        else:
            tensors |= _attention(weights, i, width)
            tensors |= {
                f"blk.{i}.attn_q_norm.weight": _ones(width // heads),
                f"blk.{i}.attn_k_norm.weight": _ones(width // heads),
            }
    return _finish(writer, path, tensors)


def write_windowed(
    path: Path, *, seed: int = 0, near: float = 0.0, layers: int = 6, width: int = 64, window: int = 16, **options: Any
) -> Path:
    """A Gemma 3 file: five of six layers see the last `window` tokens only."""
    heads = 2
    writer = _head(path, "gemma3", f"tiny-windowed-{seed}", TEMPLATE, options)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_key_length(width // heads)
    writer.add_value_length(width // heads)
    writer.add_block_count(layers)
    writer.add_sliding_window(window)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    weights = _weights(seed, near)
    tensors = _ends(weights, width)
    tensors["token_embd.weight"] /= np.float32(np.sqrt(width))  # Gemma scales its embeddings itself
    for i in range(layers):
        tensors |= {
            f"blk.{i}.{name}.weight": _ones(width)
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        }
        tensors |= {f"blk.{i}.{name}.weight": _ones(width // heads) for name in ("attn_q_norm", "attn_k_norm")}
        tensors |= _attention(weights, i, width) | _feed_forward(weights, i, width, 2 * width)
    return _finish(writer, path, tensors)


def write_experts(path: Path, *, seed: int = 0, near: float = 0.0, experts: int = 4, **options: Any) -> Path:
    """A llama-architecture file whose feed-forward layers are mixtures of experts, two of which see each token."""
    width, layers, heads = 64, 2, 2
    writer = _head(path, "llama", f"tiny-experts-{seed}", TEMPLATE, options)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(2)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    weights = _weights(seed, near)
    tensors = _ends(weights, width)
    for i in range(layers):
        tensors |= {f"blk.{i}.attn_norm.weight": _ones(width), f"blk.{i}.ffn_norm.weight": _ones(width)}
        tensors |= _attention(weights, i, width) | _feed_forward(weights, i, width, 2 * width, experts)
    return _finish(writer, path, tensors)


def _finish(writer: gguf.GGUFWriter, path: Path, tensors: dict[str, np.ndarray]) -> Path:
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
