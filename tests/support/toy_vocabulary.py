"""A vocabulary that needs no model: all bytes, some longer pieces, and end tokens."""

from __future__ import annotations

from collections.abc import Sequence

from spec_local.llama.vocabulary import Vocabulary

WORDS = [
    '{"',
    '":',
    '","',
    '"}',
    "name",
    "na",
    "me",
    "age",
    "true",
    "false",
    "null",
    ' "',
    ", ",
    "yes",
    "no",
    "ä",
    "ü",
    "12",
]


class ToyVocabulary(Vocabulary):
    """Ids 0 and 1 end the text, 2 is a control token, 3 … 258 are bytes, then come `WORDS`; text is spelt greedily."""

    def __init__(self, words: Sequence[str] = WORDS) -> None:
        pieces = [bytes([byte]) for byte in range(256)] + [word.encode() for word in words]
        self._texts = [b"<end>", b"</s>", b"<start>", *pieces]
        self._longest = sorted(range(3, len(self._texts)), key=lambda token: -len(self._texts[token]))
        self.size = len(self._texts)
        self.eos = 0
        self.bos = -1
        self.end_ids = frozenset({0, 1})
        self.marked = {"<end>": 0, "</s>": 1, "<start>": 2}, {}

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"" if token < 3 and not special else self._texts[token]

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        data, found = text.encode(), list[int]()
        while data:
            token = next(t for t in self._longest if data.startswith(self._texts[t]))
            found.append(token)
            data = data[len(self._texts[token]) :]
        return found
