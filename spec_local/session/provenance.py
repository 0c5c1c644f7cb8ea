"""Where each token of an answer came from: the draft, or the target and why."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from spec_local.speculation.round import Round

if TYPE_CHECKING:
    from spec_local.session.result import Piece


class Origin(StrEnum):
    """Who put a token into the text. The values are what the store keeps."""

    ACCEPTED = "a"
    """Drafted, tested by the target, and kept."""
    CORRECTION = "c"
    """The target's own token in place of a drafted one that was not kept."""
    BONUS = "b"
    """The target's own token after a draft that was kept whole: the pass had computed it anyway."""
    PLAIN = "p"
    """The target's own token in a round without a draft."""


class TokenText(NamedTuple):
    """A token of an answer as text."""

    origin: Origin
    text: str
    """Whole characters; empty where the token ends inside one (the token that completes it has them all)."""


def origins(record: Round, count: int) -> list[Origin]:
    """Where the `count` tokens that a round emitted came from, in order."""
    kept = [Origin.ACCEPTED] * min(record.accepted, count)
    if count == len(kept):
        return kept
    own = Origin.CORRECTION if record.accepted < record.tested else Origin.BONUS
    if record.tested == 0:
        own = Origin.PLAIN
    return [*kept, *[own] * (count - len(kept))]


class ProvenanceDecoder:
    """Turns the pieces of one answer into tokens with text and origin.

    Args:
        piece: Bytes of a token, as `Vocabulary.piece`.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: Piece) -> list[TokenText]:
        """The tokens of a piece. A stop string is cut from an answer's text, not from its tokens: `clip` does that."""
        if piece.round is None:
            return []
        whose = origins(piece.round, len(piece.tokens))
        return [
            TokenText(origin, self._decoder.decode(self._piece(token)))
            for token, origin in zip(piece.tokens, whose, strict=True)
        ]


_RUN = re.compile("([acbp])([0-9]+)")


def encode(tokens: Iterable[TokenText]) -> str:
    """Origins and lengths in characters, such as "p4a3a1c6"; the text itself is kept elsewhere."""
    return "".join(f"{origin.value}{len(text)}" for origin, text in tokens)


def decode(encoded: str, text: str) -> list[TokenText]:
    """The tokens of `text`; what reaches beyond its end is clipped, and text no token accounts for is plain."""
    tokens: list[TokenText] = []
    at = 0
    for origin, length in _RUN.findall(encoded):
        part = text[at : at + int(length)]
        tokens.append(TokenText(Origin(origin), part))
        at += len(part)
    if at < len(text):
        tokens.append(TokenText(Origin.PLAIN, text[at:]))
    return tokens


def clip(tokens: Sequence[TokenText], length: int) -> list[TokenText]:
    """The tokens that lie in the first `length` characters."""
    return decode(encode(tokens), "".join(token.text for token in tokens)[:length])
