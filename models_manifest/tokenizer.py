"""The vocabulary of a model file: what ids mean, what is added to a text, where an answer ends."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spec_local.errors import ModelError
from spec_local.models_manifest.facts import Facts
from spec_local.models_manifest.gguf_format import Array

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token kinds (llama.cpp's `llama_token_type`)."""

_PADDING = re.compile(rb"\[PAD\d*\]|<pad>|<\|?unused[_-]?\d*\|?>|<\|reserved(_special)?_token_\d+\|>")
"""Texts under which converters and makers keep places nobody uses."""

WORD_MARKED = frozenset({"llama", "t5", "gemma4"})
"""Tokenizers that write a space as a low bar (SentencePiece's notation)."""

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
    b"<|eot_id|>", b"<|im_end|>", b"<|end|>", b"<|return|>", b"<|call|>", b"<|flush|>", b"<|calls|>", b"<end_of_turn>",
    b"<|endoftext|>", b"</s>", b"<|eom_id|>", b"<EOT>", b"_<EOT>", b"[EOT]", b"[EOS]", b"<|end_of_text|>",
    b"<end_of_utterance>", b"<eos>", b"<turn|>", b"<|tool_response>", b"[e~[", "<｜end▁of▁sentence｜>".encode(),
    # What separates files in fill-in-the-middle prompts:
    b"<|fim_pad|>", b"<fim-pad>", b"<fim_pad>", b"<PAD>", b"[PAD]", b"<|fim_repo|>", b"<|repo_name|>", b"<fim-repo>",
    b"<REPO>", b"<reponame>", b"<|file_sep|>",
)  # fmt: skip
"""Token texts at which llama.cpp ends an answer, whatever the file's own end ids are."""


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

    def spelled(self) -> list[bytes]:
        """What every token stands for in a text, its tokenizer's notation undone: [n_vocab].

        The bytes that llama.cpp writes for the token: of a control token, its name.
        """
        spell = _bpe_bytes if self.model == "gpt2" else _sentencepiece_bytes
        return [
            spell(text) if kind == NORMAL else _byte(text) if kind == BYTE else text
            for text, kind in zip(self.tokens(), self.kinds(), strict=True)
        ]

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
        calls = {b"<|call|>", b"<|calls|>"} & texts.keys()
        if b"<|end|>" in texts and calls and {b"<|return|>", b"<|flush|>"} & texts.keys():
            ends.discard(texts[b"<|end|>"])  # it ends one of the messages that an answer is made of
        return frozenset(ends)

    def repeated(self) -> int | None:
        """The first id whose text an earlier one has too, None where each has its own: llama.cpp ends the process that
        loads such a file."""
        seen: set[bytes] = set()
        for id, text in enumerate(self.tokens()):
            if text and text in seen:
                return id
            seen.add(text)
        return None

    def show(self, id: int | None) -> str:
        """Text of a token for people, quoted."""
        tokens = self.tokens()
        if id is None or not 0 <= id < len(tokens):
            return "nothing"
        return repr(readable(tokens[id], self.model))


def read_tokenizer(facts: Facts) -> Tokenizer:
    """The vocabulary in a file's metadata; `n_vocab` is 0 where it has none.

    Raises:
        ModelError: What the file says of it cannot be.
    """
    prefix = "tokenizer.ggml."
    model, pre = facts.text(prefix + "model"), facts.text(prefix + "pre")
    texts = facts.array(prefix + "tokens", text=True)
    kinds = facts.array(prefix + "token_type", text=False)
    merges = facts.array(prefix + "merges", text=True)
    n_vocab = texts.count if texts else 0
    if kinds is not None and kinds.count != n_vocab:
        raise ModelError(f"{facts.path} has {n_vocab} tokens but kinds for {kinds.count}; it is damaged.")
    ids = {name: facts.token(name, n_vocab) for name in ("bos", "eos", "eot", "eom")}
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
        add_bos=facts.flag(prefix + "add_bos_token", adds_bos),
        add_eos=facts.flag(prefix + "add_eos_token", model == "t5"),
    )


def is_unused(text: bytes, kind: int) -> bool:
    """Whether an entry of a vocabulary, as the file writes it, is a place that nobody uses."""
    return kind == UNUSED or (text[:1] in (b"[", b"<") and _PADDING.fullmatch(text) is not None)


def readable(text: bytes, model: str) -> str:
    """A token's text with the notation of its tokenizer undone, as far as it is whole characters."""
    if model == "gpt2":
        return _bpe_bytes(text).decode("utf-8", errors="replace")
    return (_sentencepiece_bytes(text) if model in WORD_MARKED else text).decode("utf-8", errors="replace")


def _bpe_bytes(text: bytes) -> bytes:
    """The bytes that a token of byte-level BPE stands for; a character of no byte stands for itself."""
    shown = text.decode("utf-8", errors="replace").translate(_BYTE_OF)
    try:
        return shown.encode("latin-1")
    except UnicodeEncodeError:
        return b"".join(char.encode("latin-1" if char < "\u0100" else "utf-8") for char in shown)


def _sentencepiece_bytes(text: bytes) -> bytes:
    """The bytes that a SentencePiece token stands for: a low bar is a space."""
    return text.replace(b"\xe2\x96\x81", b" ")


def _byte(text: bytes) -> bytes:
    """The byte that a byte token stands for: its text is `<0x0A>`; anything else is taken as it is."""
    try:
        return bytes([int(text[1:-1], 16)])
    except ValueError:
        return text


def _byte_alphabet() -> dict[int, int]:
    """The characters byte-level BPE writes bytes as (GPT-2's `bytes_to_unicode`)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {byte: byte for byte in plain} | {256 + n: byte for n, byte in enumerate(shifted)}


_BYTE_OF = _byte_alphabet()
"""Character of the alphabet → the byte it stands for."""
