"""Tiny files that carry a multi-token prediction (MTP) block behind their ordinary ones, and hand out hidden states.

The block takes a token and the hidden state of the position before it. Three kinds of weights, each of which proves
something else:

* `token`: all blocks add nothing, and the MTP block looks at its token alone: target and head are one bigram model.
* `hidden`: all blocks add nothing, token x is followed by `successor(x)`, and the MTP block looks at the state alone,
  which it moves on by one: it is right only if that state is the one of the position before.
* `random`: blocks of full strength, in which nothing agrees: for caches, states and the way back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from tiny_gguf import N_VOCAB, TEMPLATE, _finish, _head

WIDTH = 288
"""Length of an embedding, and entries of the vocabulary: so there can be as many orthogonal embeddings as tokens."""
BLOCKS = 4
"""Ordinary blocks; the MTP block is the next one."""
HEAD = 32
HEADS = WIDTH // HEAD
INNER = 64
STATE, RANK, GROUPS, CONV = 16, 4, 2, 4

Arch = Literal["hy_v3", "qwen35"]
Kind = Literal["token", "hidden", "random"]


def successor(token: int, seed: int = 0) -> int:
    """The token after `token` that a `hidden` model of this seed is surest of."""
    return int(_permutation(seed)[token])


def write_mtp(path: Path, arch: Arch, kind: Kind, *, seed: int = 0, heads: int = 1, tensors: bool = True) -> Path:
    """A file of this architecture and kind.

    Args:
        path: Where to write.
        arch: `hy_v3` is dense, `qwen35` a hybrid of which llama.cpp keeps snapshots.
        kind: See the module.
        seed: The weights.
        heads: MTP blocks.
        tensors: Whether their tensors are there, which the header declares.
    """
    writer = _head(path, arch, f"tiny-{arch}-{kind}-{seed}", TEMPLATE, {"padding": WIDTH - N_VOCAB})
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS + heads)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(WIDTH)
    writer.add_uint32(f"{arch}.nextn_predict_layers", heads)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if arch == "qwen35":
        writer.add_rope_dimension_sections([4, 4, 4, 4])
        writer.add_ssm_conv_kernel(CONV)
        writer.add_ssm_inner_size(STATE * RANK)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(RANK)
        writer.add_ssm_group_count(GROUPS)
        writer.add_uint32(f"{arch}.full_attention_interval", 2)
    else:
        writer.add_expert_feed_forward_length(INNER)
    weights = _Weights(kind, seed)
    found = weights.ends()
    for i in range(BLOCKS):
        found |= weights.block(arch, i, linear=arch == "qwen35" and i % 2 == 0)
    for i in range(BLOCKS, BLOCKS + heads if tensors else BLOCKS):
        found |= weights.block(arch, i, linear=False) | weights.mtp(i)
    return _finish(writer, path, found)


def _permutation(seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 1]).permutation(WIDTH)


class _Weights:
    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind = kind
        self.rng = np.random.default_rng([seed, 0])
        embeddings = np.linalg.qr(self.rng.normal(size=(WIDTH, WIDTH)))[0] * np.sqrt(WIDTH)
        self.embeddings = np.asarray(embeddings, np.float32)  # [token, width], orthogonal
        self.next = _permutation(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return np.asarray(self.rng.normal(size=(rows, columns)) * scale / np.sqrt(columns), np.float32)

    def output(self, rows: int, columns: int) -> np.ndarray:
        """What a block adds to the residual stream: only `random` ones add anything."""
        return self.matrix(rows, columns) * np.float32(self.kind == "random")

    def ends(self) -> dict[str, np.ndarray]:
        if self.kind == "hidden":  # the row of the token that follows x is the embedding of x
            output = np.empty_like(self.embeddings)
            output[self.next] = self.embeddings * np.float32(10 / WIDTH)
        else:
            output = self.matrix(WIDTH, WIDTH, scale=3.0)
        return {"token_embd.weight": self.embeddings, "output_norm.weight": _ones(WIDTH), "output.weight": output}

    def block(self, arch: Arch, i: int, linear: bool) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {
            "attn_norm.weight": _ones(WIDTH),
            ("post_attention_norm" if arch == "qwen35" else "ffn_norm") + ".weight": _ones(WIDTH),
            "ffn_gate.weight": self.matrix(INNER, WIDTH),
            "ffn_up.weight": self.matrix(INNER, WIDTH),
            "ffn_down.weight": self.output(WIDTH, INNER),
        }
        if linear:
            inner, channels = STATE * RANK, 2 * GROUPS * STATE + STATE * RANK
            found |= {
                "attn_qkv.weight": self.matrix(channels, WIDTH),
                "attn_gate.weight": self.matrix(inner, WIDTH),
                "ssm_conv1d.weight": self.matrix(channels, CONV, scale=2.0),
                "ssm_dt.bias": np.zeros(RANK, np.float32),
                "ssm_a": -_ones(RANK) / 2,
                "ssm_beta.weight": self.matrix(RANK, WIDTH),
                "ssm_alpha.weight": self.matrix(RANK, WIDTH),
                "ssm_norm.weight": _ones(STATE),
                "ssm_out.weight": self.output(WIDTH, inner),
            }
        else:
            gated = 2 if arch == "qwen35" else 1  # query and gate
            found |= {
                "attn_q.weight": self.matrix(gated * WIDTH, WIDTH),
                "attn_k.weight": self.matrix(WIDTH, WIDTH),
                "attn_v.weight": self.matrix(WIDTH, WIDTH),
                "attn_output.weight": self.output(WIDTH, WIDTH),
                "attn_q_norm.weight": _ones(HEAD),
                "attn_k_norm.weight": _ones(HEAD),
            }
        return {f"blk.{i}.{name}": values for name, values in found.items()}

    def mtp(self, i: int) -> dict[str, np.ndarray]:
        nothing = np.zeros((WIDTH, WIDTH), np.float32)
        if self.kind == "token":
            joined = np.hstack([np.eye(WIDTH, dtype=np.float32), nothing])
        elif self.kind == "hidden":  # e(x) → e(successor(x)): Σ_x e(successor(x)) e(x)ᵀ / |e|²
            moves = self.embeddings[self.next].T @ self.embeddings / np.float32(WIDTH)
            joined = np.hstack([nothing, moves])
        else:
            joined = self.matrix(WIDTH, 2 * WIDTH)
        found: dict[str, Any] = {
            "eh_proj.weight": np.asarray(joined, np.float32),  # its input: [normed embedding, normed hidden state]
            "enorm.weight": _ones(WIDTH),
            "hnorm.weight": _ones(WIDTH),
            "shared_head_norm.weight": _ones(WIDTH),
        }
        return {f"blk.{i}.nextn.{name}": values for name, values in found.items()}


def _ones(count: int) -> np.ndarray:
    return np.ones(count, np.float32)
