"""Drafting from the text itself: what followed the last time these tokens stood here?

An index maps the last n tokens, for several n, to the place after their most recent earlier occurrence in prompt and
output. The drafter follows one source at a time: while the text goes on as the source does, it stays with it; after one
token that differs (an edit) it tries the source one token further on; after two it looks for a new match. All of it is a
function of the tokens alone, never of what was drafted, submitted or accepted, so a draft can be replayed offline.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from spec_local.drafting.draft import Draft
from spec_local.drafting.drafter import DraftRequest

ORDERS = (16, 12, 8, 6, 4, 3, 2)
"""Lengths n of the indexed n-grams, longest first."""
LONGEST_MATCH = 64
"""A match is measured back to this many tokens."""
TAIL = 256
"""Tokens compared with the request each round to notice a history that was replaced without `forget`."""


class TextIndex:
    """Most recent occurrence of every n-gram of a growing token list; can be cut back.

    Appending costs a few microseconds and about 0.7 kB; cutting back undoes each append exactly.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._last: list[dict[int, int]] = [{} for _ in ORDERS]  # hash of n-gram -> index after its last occurrence
        self._earlier = [array("i") for _ in ORDERS]  # [i]: index after the occurrence that token i superseded, or -1

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add one token. Its n-grams become findable with the next token: a match never is the text's own end."""
        tokens = self.tokens
        end = len(tokens)
        for order, last, earlier in zip(ORDERS, self._last, self._earlier, strict=True):
            if end < order:
                earlier.append(-1)
                continue
            key = hash(tuple(tokens[end - order : end]))
            earlier.append(last.get(key, -1))
            last[key] = end
        tokens.append(token)

    def cut(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        tokens = self.tokens
        for end in range(len(tokens) - 1, length - 1, -1):
            for order, last, earlier in zip(ORDERS, self._last, self._earlier, strict=True):
                superseded = earlier.pop()
                if end < order:
                    continue
                key = hash(tuple(tokens[end - order : end]))
                if superseded < 0:
                    del last[key]
                else:
                    last[key] = superseded
        del tokens[length:]

    def match(self) -> tuple[int, int]:
        """The best source for the next token.

        Returns:
            (source, length): the text's last `length` tokens also stand just before index `source`, its most recent
            such place for the largest n in `ORDERS` that has one; 2 ≤ length ≤ 64 is the true length of the match
            there. (-1, 0) where the last two tokens are new.
        """
        tokens = self.tokens
        end = len(tokens)
        for order, last in zip(ORDERS, self._last, strict=True):
            if end <= order:
                continue
            source = last.get(hash(tuple(tokens[end - order :])), -1)
            if source < 0:
                continue
            length = self.length_at(source)
            if length >= order:  # else two n-grams share a hash
                return source, length
        return -1, 0

    def length_at(self, source: int) -> int:
        """Tokens, at most 64, that agree just before `source` and at the end of the text."""
        tokens = self.tokens
        end = len(tokens)
        longest = min(LONGEST_MATCH, source)
        length = 0
        while length < longest and tokens[source - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length


class TextFollower:
    """The text of one slot and the source it is being compared with."""

    __slots__ = ("index", "missed", "run", "source")

    def __init__(self) -> None:
        self.index = TextIndex()
        self.source = -1
        self.run = 0
        self.missed = 0

    def sync(self, tokens: Sequence[int]) -> None:
        """Bring the index to `tokens`, which may have grown, been cut back or been replaced."""
        known = self.index.tokens
        size = min(len(known), len(tokens))
        if known[max(0, size - TAIL) : size] != list(tokens[max(0, size - TAIL) : size]):
            size = next(i for i in range(size) if known[i] != tokens[i])
        if size < len(known):
            self.cut(size)
        fresh = tokens[size:]
        for token in fresh[:-LONGEST_MATCH]:  # a prompt: nobody asks for drafts inside it
            self.index.append(token)
        for token in fresh[-LONGEST_MATCH:]:
            self._append(token)

    def cut(self, length: int) -> None:
        self.index.cut(length)
        self.source, self.run = self.index.match()
        self.missed = 0

    def propose(self, limit: int) -> tuple[list[int], int]:
        """Up to `limit` tokens that would follow if the text went on as the source does, and the match behind them."""
        if self.source < 0:
            return [], 0
        tokens = self.index.tokens
        drafted = tokens[self.source : self.source + limit]
        period = len(tokens) - self.source
        while len(drafted) < limit:  # the source runs into the draft itself: text that repeats with this period
            drafted.append(drafted[-period])
        return drafted, self.run

    def _append(self, token: int) -> None:
        index, source = self.index, self.source
        if source >= 0:
            if index.tokens[source] == token:
                self.run = min(self.run + 1, LONGEST_MATCH)
                self.source = source + 1
            elif self.run:
                self.missed, self.run, self.source = self.run, 0, source + 1
            else:
                self.source = -1
        index.append(token)
        if self.source < 0:
            self.source, self.run = index.match()


class TextDrafter:
    """Drafts for any number of slots from what stands in their own prompt and output."""

    source = "text"

    def __init__(self) -> None:
        self._slots: dict[int, TextFollower] = {}

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def forget(self, slot: int, length: int) -> None:
        if length <= 0:
            self._slots.pop(slot, None)
        elif (follower := self._slots.get(slot)) is not None and length < len(follower.index):
            follower.cut(length)

    def _draft(self, request: DraftRequest) -> Draft:
        follower = self._slots.get(request.slot)
        if follower is None:
            follower = self._slots[request.slot] = TextFollower()
        follower.sync(request.tokens)
        tokens, length = follower.propose(request.limit)
        return Draft(tokens, None, self.source, [float(length + i) for i in range(len(tokens))])
