"""A model's vocabulary: text to token ids and back, by bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from spec_local.errors import BackendError, ModelError
from spec_local.llama.library import llama

_UNKNOWN, _NORMAL, _CONTROL, _USER_DEFINED = 1 << 0, 1 << 2, 1 << 3, 1 << 4
"""Bits of `llama_token_attr`."""


class Vocabulary:
    """Tokenises for one model. Token ids are plain ints; a token's text is bytes, since a character may span tokens."""

    def __init__(self, handle: Any) -> None:
        self._lib = llama()
        self._handle = handle
        self.size: int = self._lib.llama_vocab_n_tokens(handle)
        self.bos: int = self._lib.llama_vocab_bos(handle)
        """Begin-of-text id, -1 where there is none."""
        self.eos: int = self._lib.llama_vocab_eos(handle)
        """End-of-text id, -1 where there is none; `end_ids` has all ids that end a generation."""
        self._adds_eos: bool = self._lib.llama_vocab_get_add_eos(handle)
        self._buffer = ctypes.create_string_buffer(256)
        self._pieces: dict[int, bytes] = {}
        is_end, named = self._lib.llama_vocab_is_eog, (self.eos, self._lib.llama_vocab_eot(handle))
        ends = [token for token in range(self.size) if is_end(handle, token)]
        # llama.cpp makes an end of any token with an end-like text, and marks it as a control token besides what the
        # file says. Several vocabularies have `</s>` as ordinary HTML: an answer must neither end there nor lose it.
        self._ordinary = frozenset(
            token
            for token in ends
            if token not in named and self._lib.llama_vocab_get_attr(handle, token) & (_NORMAL | _USER_DEFINED)
        )
        self.end_ids: frozenset[int] = frozenset(ends) - self._ordinary
        """Every id that ends a generation (end of text, end of turn)."""

    @property
    def handle(self) -> Any:
        """llama.cpp's own pointer."""
        if self._handle is None:
            raise BackendError("The model of this vocabulary is closed.")
        return self._handle

    def close(self) -> None:
        """The model is being freed: from now on an error instead of a crash."""
        self._handle = None

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        Args:
            text: Any text; lone surrogates are replaced.
            add_special: Add what the model's tokenizer puts in front by itself, such as a begin-of-text token.
            parse_special: Read control tokens written in the text (`<|im_end|>`) as those tokens.
        """
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        tokens = (ctypes.c_int32 * room)()
        count = self._lib.llama_tokenize(self.handle, data, len(data), tokens, room, add_special, parse_special)
        if count < 0:
            room = -count
            tokens = (ctypes.c_int32 * room)()
            count = self._lib.llama_tokenize(self.handle, data, len(data), tokens, room, add_special, parse_special)
        if count < 0:
            raise ModelError(
                "This model's tokenizer cannot take the text.", "Check the file with `spec-local models show`."
            )
        # A template that wrote the begin-of-text token must not get a second one, and nothing can follow an end.
        start = 1 if count > 1 and add_special and tokens[0] == tokens[1] == self.bos else 0
        end = count - 1 if count and add_special and self._adds_eos and tokens[count - 1] == self.eos else count
        return list(tokens[start:end])

    def tokenize_inside(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Token ids of a text that stands in the middle of another one: nothing is put in front of it."""
        tokens = self.tokenize(text, add_special=False, parse_special=parse_special)
        if not self.piece(self.tokenize("a", add_special=False)[0]).startswith(b" "):
            return tokens
        # This tokenizer begins every text with a space. A line end is a token of its own, so it can be taken off again.
        line_end = self.tokenize("\n", add_special=False)
        tokens = self.tokenize("\n" + text, add_special=False, parse_special=parse_special)
        return tokens[len(line_end) :] if tokens[: len(line_end)] == line_end else tokens

    @cached_property
    def marked(self) -> tuple[dict[str, int], dict[str, int]]:
        """Texts of tokens that are no ordinary text, with their ids: control tokens, read as such only where special
        parsing is on, and tokens that the model's makers defined, which are read wherever they are written."""
        control: dict[str, int] = {}
        defined: dict[str, int] = {}
        for token in range(self.size):
            attributes = self._lib.llama_vocab_get_attr(self.handle, token)
            if attributes & (_CONTROL | _UNKNOWN | _USER_DEFINED) and token not in self._ordinary:
                text = self._lib.llama_vocab_get_text(self.handle, token).decode("utf-8", "replace")
                (control if attributes & (_CONTROL | _UNKNOWN) else defined)[text] = token
        return control, defined

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token; control tokens are empty unless `special`."""
        if not special and token in self._pieces:
            return self._pieces[token]
        keep, special = not special, special or token in self._ordinary
        size = self._lib.llama_token_to_piece(self.handle, token, self._buffer, len(self._buffer), 0, special)
        if size < 0:
            self._buffer = ctypes.create_string_buffer(-size)
            size = self._lib.llama_token_to_piece(self.handle, token, self._buffer, len(self._buffer), 0, special)
        piece = self._buffer.raw[: max(size, 0)]
        if keep:
            self._pieces[token] = piece
        return piece

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of `tokens`; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.piece(token, special=special) for token in tokens).decode("utf-8", "replace")
