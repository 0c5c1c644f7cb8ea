"""What a model file says about itself, from its header alone and in well under a second.

Split GGUFs are read as one model. A fact the file does not state is None; a fact it states in a way that cannot be
is a `ModelError`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spec_local.models_manifest.gguf_format import Array, Container, Tensor, read_container
from spec_local.models_manifest.splits import split_files

from spec_local.errors import ModelError

_MAX_LAYERS = 4096

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
"""`general.file_type` → name (llama.cpp's `llama_ftype`)."""

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

_BOS_ADDED = {
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "tekken",
    "chameleon",
}
"""Pre-tokenizers for which llama.cpp adds BOS unless the file says otherwise."""

_END_TEXTS = (
    b"<|eot_id|>", b"<|im_end|>", b"<|end|>", b"<|return|>", b"<|call|>", b"<end_of_turn>", b"<|endoftext|>", b"</s>",
    b"<|eom_id|>", b"<EOT>", b"_<EOT>", b"[EOT]", b"[EOS]", b"<|end_of_text|>", b"<end_of_utterance>", b"<eos>",
    "<｜end▁of▁sentence｜>".encode(),
)  # fmt: skip
"""Token texts at which llama.cpp ends an answer, whatever the file's own end ids are."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token kinds (llama.cpp's `llama_token_type`)."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The vocabulary of a model file."""

    model: str
    """`gpt2` (byte-level BPE), `llama` (SentencePiece), `bert`, `t5`, `rwkv` …; empty where the file has none."""
    pre: str
    """Pre-tokenizer: how text is cut before merging. It does not change what an id means."""
    texts: Array | None
    kinds_array: Array | None
    n_merges: int
    bos: int | None
    eos: int | None
    eot: int | None
    eom: int | None
    unk: int | None
    pad: int | None
    add_bos: bool
    """Whether text is tokenised with BOS in front."""
    add_eos: bool

    @property
    def n_vocab(self) -> int:
        """Entries of the vocabulary, padding included."""
        return self.texts.count if self.texts else 0

    def tokens(self) -> list[bytes]:
        """Text of every token as the file writes it (byte-level or SentencePiece notation): [n_vocab]."""
        return self.texts.strings() if self.texts else []

    def kinds(self) -> list[int]:
        """Kind of every token: [n_vocab]; all NORMAL where the file does not say."""
        if self.kinds_array is None:
            return [NORMAL] * self.n_vocab
        return [int(kind) for kind in self.kinds_array.numbers()]

    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer: those the file names, and control tokens whose text says so.

        llama.cpp takes ordinary tokens of such a text too, which ends an answer at an HTML `</s>`; not so here.
        """
        named = {id for id in (self.eos, self.eot, self.eom) if id is not None}
        tokens, kinds = self.tokens(), self.kinds()
        wanted = set(_END_TEXTS)
        ends = named | {id for id, text in enumerate(tokens) if text in wanted and kinds[id] == CONTROL}
        texts = {tokens[id]: id for id in ends if id < len(tokens)}
        if {b"<|return|>", b"<|call|>", b"<|end|>"} <= texts.keys():  # harmony format: <|end|> only ends one message
            ends.discard(texts[b"<|end|>"])
        return frozenset(ends)

    def show(self, id: int | None) -> str:
        """Text of a token for people, quoted."""
        tokens = self.tokens()
        if id is None or not 0 <= id < len(tokens):
            return "nothing"
        return repr(readable(tokens[id], self.model))


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
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: tuple[int, ...]
    """Key/value heads of each layer: [n_layer]; 0 where a layer has no attention."""
    key_length: int
    """Elements of one key head."""
    value_length: int
    n_ff: int
    """Width of the widest feed-forward layer; 0 where not stated."""
    sliding_window: int | None
    """Tokens a sliding-window layer looks back; None where all layers see everything."""
    swa_layers: tuple[bool, ...]
    """Which layers look through the window: [n_layer]."""
    attention_layers: tuple[bool, ...]
    """Which layers keep keys and values: [n_layer]."""
    recurrent_layers: tuple[bool, ...]
    """Which layers keep a recurrent state: [n_layer]."""
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
        return any(self.recurrent_layers)

    @property
    def is_hybrid(self) -> bool:
        """Whether it has both attention and recurrent layers."""
        return self.is_recurrent and any(self.attention_layers)


def read_header(path: Path | str) -> Header:
    """Read the header of a model file, all files of it where it is split.

    Raises:
        ModelError: No such file, not a GGUF file, damaged, incomplete, or files of a split are missing.
    """
    given = Path(path).expanduser()
    files = split_files(given)
    first, *others = [read_container(file) for file in files]
    _check_split(first, others)
    facts = _Facts(first)
    tensors = tuple(tensor for container in (first, *others) for tensor in container.tensors)
    architecture = facts.text("general.architecture")
    if not architecture:
        raise ModelError(f"{first.path} does not say which architecture it is; it is not a usable model file.")

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    n_layer = facts.number(key("block_count"), most=_MAX_LAYERS) or 0
    n_embd = facts.number(key("embedding_length")) or 0
    n_head = facts.per_layer(key("attention.head_count"), n_layer)
    n_head_kv = facts.per_layer(key("attention.head_count_kv"), n_layer) or n_head
    most_heads = max(n_head, default=0)
    width = n_embd // most_heads if most_heads else 0
    attention, recurrent = _layer_kinds(tensors, n_layer, n_head_kv)
    window = facts.number(key("attention.sliding_window")) or (4096 if architecture == "gemma2" else None)
    swa = _swa_layers(facts, key("attention.sliding_window_pattern"), architecture, n_layer) if window else ()
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
        context_length=facts.number(key("context_length")),
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=most_heads,
        n_head_kv=n_head_kv or (0,) * n_layer,
        key_length=facts.number(key("attention.key_length")) or width,
        value_length=facts.number(key("attention.value_length")) or width,
        n_ff=max(facts.per_layer(key("feed_forward_length"), n_layer), default=0),
        sliding_window=window if any(swa) else None,
        swa_layers=swa if any(swa) else (False,) * n_layer,
        attention_layers=attention,
        recurrent_layers=recurrent,
        tokenizer=_tokenizer(facts),
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


def readable(text: bytes, model: str) -> str:
    """A token's text with the notation of its tokenizer undone, as far as it is whole characters."""
    shown = text.decode("utf-8", errors="replace")
    if model == "gpt2":
        raw = bytearray()
        for char in shown:
            byte = _BYTE_OF.get(char)
            raw += char.encode() if byte is None else bytes([byte])
        return raw.decode("utf-8", errors="replace")
    return shown.replace("\u2581", " ") if model in ("llama", "t5", "gemma4") else shown


def _byte_alphabet() -> dict[str, int]:
    """The characters byte-level BPE writes bytes as (GPT-2's `bytes_to_unicode`)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(shifted)}


_BYTE_OF = _byte_alphabet()


class _Facts:
    """Typed look-ups in metadata nobody vouches for."""

    def __init__(self, container: Container) -> None:
        self.path, self.metadata = container.path, container.metadata

    def wrong(self, key: str, value: object) -> ModelError:
        shown = f"{value!r:.60}" if not isinstance(value, Array) else f"an array of {value.count}"
        return ModelError(f"{self.path} gives {key} the impossible value {shown}; it is not a usable model file.")

    def text(self, key: str) -> str:
        value = self.metadata.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(key, value)
        return value

    def number(self, key: str, most: int = 1 << 40) -> int | None:
        """A count; the largest one where the file gives one for each layer."""
        value = self.metadata.get(key)
        if isinstance(value, Array) and not value.is_text and 0 < value.count <= _MAX_LAYERS:
            value = max(value.numbers())
        if value is None:
            return None
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(key, value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value)
        return value

    def token(self, key: str, n_vocab: int) -> int | None:
        """A token id; None where it is not stated or, as llama.cpp has it, lies outside the vocabulary."""
        value = self.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is not None and type(value) is not int:
            raise self.wrong(f"tokenizer.ggml.{key}_token_id", value)
        return value if value is not None and 0 <= value < n_vocab else None

    def per_layer(self, key: str, n_layer: int) -> tuple[int, ...]:
        """A count for each layer, whether the file gives one or one each: [n_layer]; empty where it is silent."""
        value = self.metadata.get(key)
        if isinstance(value, Array):
            if value.is_text or value.count < n_layer or value.count > _MAX_LAYERS:
                raise self.wrong(key, value)
            counts = value.numbers()[:n_layer]
            if not all(isinstance(count, int) and 0 <= count < 1 << 32 for count in counts):
                raise self.wrong(key, value)
            return tuple(int(count) for count in counts)
        if value is None:
            return ()
        if type(value) is not int or not 0 <= value < 1 << 32:
            raise self.wrong(key, value)
        return (value,) * n_layer

    def array(self, key: str, text: bool) -> Array | None:
        value = self.metadata.get(key)
        if value is not None and (not isinstance(value, Array) or value.is_text != text):
            raise self.wrong(key, value)
        return value


def _tokenizer(facts: _Facts) -> Tokenizer:
    prefix = "tokenizer.ggml."
    model, pre = facts.text(prefix + "model"), facts.text(prefix + "pre")
    texts = facts.array(prefix + "tokens", text=True)
    kinds = facts.array(prefix + "token_type", text=False)
    merges = facts.array(prefix + "merges", text=True)
    n_vocab = texts.count if texts else 0
    if kinds is not None and kinds.count != n_vocab:
        raise ModelError(f"{facts.path} has {n_vocab} tokens but kinds for {kinds.count}; it is damaged.")
    ids = {name: facts.token(name, n_vocab) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    # What llama.cpp assumes where the file is silent.
    standard = {"llama": (1, 2), "gpt2": (11, 11)}.get(model)
    if standard and n_vocab > max(standard):
        ids["bos"] = standard[0] if ids["bos"] is None else ids["bos"]
        ids["eos"] = standard[1] if ids["eos"] is None else ids["eos"]
    adds_bos = model in ("llama", "bert") or (model == "gpt2" and pre in _BOS_ADDED)
    return Tokenizer(
        model=model,
        pre=pre,
        texts=texts,
        kinds_array=kinds,
        n_merges=merges.count if merges else 0,
        bos=ids["bos"],
        eos=ids["eos"],
        eot=ids["eot"],
        eom=ids["eom"],
        unk=ids["unknown"],
        pad=ids["padding"],
        add_bos=facts.flag(prefix + "add_bos_token", adds_bos),
        add_eos=facts.flag(prefix + "add_eos_token", model == "t5"),
    )


def _check_split(first: Container, others: list[Container]) -> None:
    """The files of a split must say the same of themselves as their names do."""
    count = first.metadata.get("split.count", 1)
    if count != len(others) + 1 and count not in (0, 1):
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


def _layer_kinds(
    tensors: tuple[Tensor, ...], n_layer: int, n_head_kv: tuple[int, ...]
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which layers have attention and which a recurrent state, read off the names of their tensors."""
    parts: list[set[str]] = [set() for _ in range(n_layer)]
    for tensor in tensors:
        match = re.match(r"blk\.(\d{1,4})\.([a-z]+_?[a-z]*)", tensor.name)
        if match and int(match[1]) < n_layer:
            parts[int(match[1])].add(match[2])
    recurrent = tuple(any(p.startswith(("ssm_", "shortconv", "time_mix")) for p in part) for part in parts)
    attention = tuple(
        bool(kv) and ("attn_k" in part or "attn_kv" in part or ("attn_qkv" in part and not state))
        for part, state, kv in zip(parts, recurrent, n_head_kv or (0,) * n_layer, strict=True)
    )
    return attention, recurrent


def _swa_layers(facts: _Facts, key: str, architecture: str, n_layer: int) -> tuple[bool, ...]:
    """Which layers look through the sliding window: stated per layer, as "n−1 of n", or known by architecture."""
    stated = facts.metadata.get(key)
    if isinstance(stated, Array) and not stated.is_text and n_layer <= stated.count <= _MAX_LAYERS:
        return tuple(bool(value) for value in stated.numbers()[:n_layer])
    pattern = stated if type(stated) is int else _SWA_PATTERNS.get(architecture)
    if not pattern or not 0 < pattern <= _MAX_LAYERS:
        return (False,) * n_layer
    return tuple(layer % pattern < pattern - 1 for layer in range(n_layer))


def _quantisation(facts: _Facts, tensors: tuple[Tensor, ...]) -> str:
    stated = facts.metadata.get("general.file_type")
    if type(stated) is int and stated in _FILE_TYPES:
        return _FILE_TYPES[stated]
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type] += tensor.bytes
    return sizes.most_common(1)[0][0] if sizes else ""
