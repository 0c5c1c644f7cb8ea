"""How much memory a model takes before it is loaded: pure arithmetic on facts of its header.

Key/value cells, window and recurrent sizes follow llama.cpp's `llama-kv-cache.cpp`, `llama-kv-cache-iswa.cpp` and
`llama-hparams.cpp`. The compute buffer is the largest of three stages of the reserved graph; on the CPU back end it
agrees with what llama.cpp reports within 5 % for models with and without sliding window and flash attention, and with
room for the logits of all tokens or of a few.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_local.errors import UsageError
from spec_local.models_manifest.gguf_format import TENSOR_TYPES
from spec_local.models_manifest.gguf_header import Header

_CELL_STEP = 256
"""llama.cpp rounds the cells of a cache up to a multiple of this."""

_BYTES = {name.lower(): (block, size) for name, block, size in TENSOR_TYPES.values()}
_REPACKED_X86 = ("Q4_0", "Q4_K", "Q2_K", "IQ4_NL")
_REPACKED_ARM = (*_REPACKED_X86, "Q8_0", "Q5_K", "Q6_K")
"""Types the processor back end may repack (`ggml-cpu/repack.cpp`); an old processor repacks fewer."""
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "iq4_nl", "q4_1", "q4_0")
"""Types llama.cpp keeps keys and values in."""


@dataclass(frozen=True, slots=True)
class WeightSplit:
    """Bytes of weights by place, for a number of offloaded layers."""

    host: int
    device: int


def kv_bytes(
    header: Header,
    n_ctx: int,
    type_k: str = "f16",
    type_v: str = "f16",
    n_seq: int = 1,
    swa_full: bool = True,
    n_ubatch: int = 512,
) -> int:
    """Bytes of the key/value cache.

    Args:
        header: The model.
        n_ctx: Tokens of context for each sequence; rounded up to whole cells.
        type_k: Type of the keys, one of `CACHE_TYPES`.
        type_v: Type of the values.
        n_seq: Sequences with a cache of their own.
        swa_full: Whether sliding-window layers keep the whole context too, which trimming past the window needs.
        n_ubatch: Tokens evaluated at once; a window cache has room for that many more.

    Raises:
        UsageError: llama.cpp keeps no cache of that type.
    """
    for name in (type_k, type_v):
        if name not in CACHE_TYPES:
            raise UsageError(f"{name!r} is no cache type.", f"Use one of {', '.join(CACHE_TYPES)}.")
    full = _padded(n_ctx)
    window = min(full, _padded((header.layers.sliding_window or 0) + n_ubatch))
    total = 0
    for (k, v), slides in zip(header.layers.kv_widths, header.layers.sliding, strict=True):
        cells = window if slides and not swa_full else full
        total += cells * (_row_bytes(k, type_k) + _row_bytes(v, type_v))
    return total * n_seq


def recurrent_bytes(header: Header, n_seq: int = 1, snapshots: int = 0) -> int:
    """Bytes of recurrent states (float32), for `n_seq` sequences with `snapshots` older states kept of each."""
    return sum(header.layers.recurrent) * header.layers.state_width * 4 * n_seq * (1 + snapshots)


def compute_bytes(
    header: Header,
    n_ctx: int,
    n_ubatch: int = 512,
    flash_attention: bool = True,
    rows: int = 1,
    most_rows: int | None = None,
) -> int:
    """Bytes of the graph's scratch buffer and of `rows` rows of logits handed out, all float32.

    The buffer holds one stage at a time: the logits of the micro-batch, the attention weights of one layer (without
    flash attention), or one feed-forward layer. `most_rows` is llama.cpp's `n_outputs_max`: logits are reserved for so
    many tokens of the micro-batch only; None for all of them.
    """
    n_vocab, n_embd = header.tokenizer.n_vocab, header.layers.n_embd
    cells = _padded(n_ctx)
    mask = cells * 2 if flash_attention else cells * 4
    logits = 4 * (n_vocab + 3 * n_embd)
    attention = 4 * 6 * n_embd + mask + (0 if flash_attention else 4 * header.layers.n_head * cells)
    feed_forward = 4 * (3 * header.layers.n_ff + 4 * n_embd) + mask
    outputs = n_ubatch if most_rows is None else min(n_ubatch, most_rows)
    return max(outputs * logits, n_ubatch * attention, n_ubatch * feed_forward) + rows * n_vocab * 4


def repacked_bytes(header: Header, gpu_layers: int = 0, machine: str = "") -> int:
    """Bytes of the second copy that llama.cpp's processor back end makes of weights it has faster kernels for.

    The first copy is the mapped file: it stays resident until the system wants its memory back. The token embedding,
    of which rows are looked up, is not repacked.

    Args:
        header: The model.
        gpu_layers: Layers that lie on other devices: the output, then blocks from the end of the model.
        machine: Processor family as `platform.machine()` names it; empty for this one's.
    """
    import platform

    arm = (machine or platform.machine()).lower() in ("arm64", "aarch64")
    on_host = max(0, header.layers.count - max(0, gpu_layers - 1))
    total = 0
    for tensor in header.tensors:
        prefix, _, rest = tensor.name.partition(".")
        number = rest.partition(".")[0]
        here = int(number) < on_host if prefix == "blk" and number.isdecimal() else gpu_layers <= 0
        is_matrix = len(tensor.shape) > 1 and tensor.shape[1] % 8 == 0 and not tensor.name.startswith("token_embd")
        if here and is_matrix and tensor.type in (_REPACKED_ARM if arm else _REPACKED_X86):
            total += tensor.bytes
    return total


def vocabulary_bytes(header: Header) -> int:
    """Bytes of llama.cpp's own tables: about 166 for each token and each merge (measured on three vocabularies)."""
    return 166 * (header.tokenizer.n_vocab + header.tokenizer.n_merges)


def split_weights(header: Header, gpu_layers: int) -> WeightSplit:
    """Where the weights lie with the last `gpu_layers` layers offloaded.

    As in llama.cpp: the token embedding stays on the host, and the output layer counts as the last layer, which is the
    first one to be offloaded; where the two are one tensor, the device gets a copy of it.
    """
    layers = [0] * header.layers.count
    embedding = output = 0
    has_output = any(tensor.name == "output.weight" for tensor in header.tensors)
    for tensor in header.tensors:
        prefix, _, rest = tensor.name.partition(".")
        number = rest.partition(".")[0]
        if prefix == "blk" and number.isdecimal() and int(number) < header.layers.count:
            layers[int(number)] += tensor.bytes
        elif prefix in ("token_embd", "per_layer_token_embd"):
            embedding += tensor.bytes
            output += tensor.bytes if prefix == "token_embd" and not has_output else 0
        else:
            output += tensor.bytes
    if gpu_layers > 0:
        device = sum(layers[header.layers.count - min(gpu_layers - 1, header.layers.count) :])
        return WeightSplit(host=sum(layers) - device + embedding, device=device + output)
    tied = 0 if has_output else embedding  # not a second copy while it is on the host
    return WeightSplit(host=sum(layers) + embedding + max(0, output - tied), device=0)


def _row_bytes(elements: int, type_name: str) -> int:
    block, size = _BYTES[type_name]
    return -(-elements // block) * size


def _padded(n_ctx: int) -> int:
    return -(-max(n_ctx, 1) // _CELL_STEP) * _CELL_STEP
