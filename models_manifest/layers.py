"""What each layer of a model keeps of a text: keys and values, a window of them, or a recurrent state."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spec_local.models_manifest.facts import MAX_LAYERS, Facts
from spec_local.models_manifest.gguf_format import Array, Tensor

_SWA_PATTERNS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "cohere2": 4,
    "gpt-oss": 2,
    "llama4": 4,
    "olmo2": 4,
    "exaone4": 4,
}
"""Architecture → n, where n−1 of n layers look through the sliding window and llama.cpp knows so without a key."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Shape of a model, as far as memory depends on it. Tuples have one entry per layer."""

    n_embd: int
    n_head: int
    """Attention heads; the most any layer has."""
    n_ff: int
    """Width of the widest feed-forward layer; 0 where not stated."""
    attention: tuple[bool, ...]
    """Which layers have attention."""
    recurrent: tuple[bool, ...]
    """Which layers keep a recurrent state."""
    sliding: tuple[bool, ...]
    """Which layers look through the sliding window."""
    sliding_window: int | None
    """Tokens such a layer looks back; None where every layer sees everything."""
    kv_widths: tuple[tuple[int, int], ...]
    """Elements of key and value kept per token; (0, 0) where none are kept."""
    state_width: int
    """Elements of the recurrent state one recurrent layer keeps per sequence."""

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self.attention)


def read_layers(facts: Facts, architecture: str, tensors: tuple[Tensor, ...]) -> Layers:
    """The layers of a model, from its metadata and the names of its tensors.

    Raises:
        ModelError: The file states something that cannot be.
    """

    def number(name: str) -> int:
        return facts.number(f"{architecture}.{name}") or 0

    count = facts.number(f"{architecture}.block_count", most=MAX_LAYERS) or 0
    n_embd = number("embedding_length")
    heads = facts.per_layer(f"{architecture}.attention.head_count", count)
    n_head = max(heads, default=0)
    n_head_kv = facts.per_layer(f"{architecture}.attention.head_count_kv", count) or heads or (0,) * count
    attention, recurrent = _kinds(tensors, n_head_kv)

    window = number("attention.sliding_window") or (4096 if architecture == "gemma2" else 0)
    sliding = _sliding(facts, architecture, count) if window else (False,) * count
    width = n_embd // n_head if n_head else 0
    full = number("attention.key_length") or width, number("attention.value_length") or width
    windowed = number("attention.key_length_swa") or full[0], number("attention.value_length_swa") or full[1]
    # The last layers may share another's keys and values, or only predict ahead: they keep none.
    ending = max(number("attention.shared_kv_layers"), number("nextn_predict_layers"))
    keeping = 20 if architecture == "gemma3n" else count - ending
    kv_widths = []
    for layer in range(count):
        k, v = windowed if sliding[layer] else full
        n = n_head_kv[layer] if attention[layer] and layer < keeping else 0
        kv_widths.append((k * n, v * n))
    return Layers(
        n_embd=n_embd,
        n_head=n_head,
        n_ff=max(facts.per_layer(f"{architecture}.feed_forward_length", count), default=0),
        attention=attention,
        recurrent=recurrent,
        sliding=sliding,
        sliding_window=window if any(sliding) else None,
        kv_widths=tuple(kv_widths),
        state_width=_state_width(facts, architecture, n_embd, n_head),
    )


def _kinds(tensors: tuple[Tensor, ...], n_head_kv: tuple[int, ...]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which layers have attention and which a recurrent state, read off the names of their tensors."""
    parts: list[set[str]] = [set() for _ in n_head_kv]
    for tensor in tensors:
        match = re.match(r"blk\.(\d{1,4})\.([a-z]+_?[a-z]*)", tensor.name)
        if match and int(match[1]) < len(parts):
            parts[int(match[1])].add(match[2])
    recurrent = tuple(any(p.startswith(("ssm_", "shortconv", "time_mix")) for p in part) for part in parts)
    attention = tuple(
        kv > 0 and ("attn_k" in part or "attn_kv" in part or ("attn_qkv" in part and not state))
        for part, state, kv in zip(parts, recurrent, n_head_kv, strict=True)
    )
    return attention, recurrent


def _sliding(facts: Facts, architecture: str, count: int) -> tuple[bool, ...]:
    """Which layers look through the sliding window: stated per layer, as "n−1 of n", or known by architecture."""
    stated = facts.metadata.get(f"{architecture}.attention.sliding_window_pattern")
    if isinstance(stated, Array) and not stated.is_text and count <= stated.count <= MAX_LAYERS:
        return tuple(bool(value) for value in stated.numbers()[:count])
    pattern = stated if type(stated) is int else _SWA_PATTERNS.get(architecture)
    if not pattern or not 0 < pattern <= MAX_LAYERS:
        return (False,) * count
    return tuple(layer % pattern < pattern - 1 for layer in range(count))


def _state_width(facts: Facts, architecture: str, n_embd: int, n_head: int) -> int:
    """Elements of one layer's recurrent state (llama.cpp's `n_embd_r` + `n_embd_s`)."""

    def number(name: str) -> int:
        return facts.number(f"{architecture}.{name}", most=1 << 24) or 0

    if head := number("wkv.head_size"):
        return (number("token_shift_count") or 2) * n_embd + n_embd * head
    if cells := number("shortconv.l_cache"):
        return n_embd * max(0, cells - 1)
    convolution = max(0, number("ssm.conv_kernel") - 1)
    if head := number("kda.head_dim"):
        return 3 * (convolution or 3) * n_head * head + head * head * n_head
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    return convolution * (inner + 2 * number("ssm.group_count") * state) + inner * state
