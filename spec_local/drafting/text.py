"""Drafting from the text itself: what followed the last time these tokens stood here?

An index maps the last n tokens, for several n, to the place after their most recent earlier occurrence in prompt and
output. The drafter follows one source at a time: while the text goes on as the source does, it stays with it; after one
token that differs (an edit) it tries the source one token further on; after two it looks for a new match. All of it is a
function of the tokens alone, never of what was drafted, submitted or accepted, so a draft can be replayed offline.
"""

from __future__ import annotations

import math
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

    def doubt(self, source: int, length: int) -> float:
        """Log-odds to take off because the occurrence before the most recent one went on differently."""
        for order, earlier in zip(ORDERS, self._earlier, strict=True):
            if order <= length:
                other = earlier[source]
                return AMBIGUOUS if other >= 0 and self.tokens[other] != self.tokens[source] else 0.0
        return 0.0

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
    """The text of one slot, and the source in it that the text is being compared with."""

    def __init__(self) -> None:
        self.index = TextIndex()
        self.given = 0
        """Tokens that came in one piece (a prompt), not round by round."""
        self._forget()

    def sync(self, tokens: Sequence[int]) -> None:
        """Bring the index to `tokens`, which may have grown, been cut back or been replaced."""
        known = self.index.tokens
        size = min(len(known), len(tokens))
        if known[max(0, size - TAIL) : size] != list(tokens[max(0, size - TAIL) : size]):
            size = next(i for i in range(size) if known[i] != tokens[i])
        if size < len(known):
            self.cut(size)
        fresh = tokens[size:]
        if size and len(fresh) <= LONGEST_MATCH:
            for token in fresh:
                self._append(token)
        elif fresh:
            for token in fresh:
                self.index.append(token)
            self.given = len(tokens)
            self._forget()
            self._search()

    def cut(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        self.index.cut(length)
        self.given = min(self.given, length)
        self._forget()
        self._search()

    def propose(self, limit: int) -> tuple[list[int], list[float]]:
        """Up to `limit` tokens that would follow if the text went on as the source does, with their confidence."""
        drafted: list[int] = []
        confidence: list[float] = []
        if self._source < 0:
            return drafted, confidence
        tokens = self.index.tokens
        end = len(tokens)
        at, ahead, run, score = self._source, self._ahead, self._run, self._score
        while len(drafted) < limit:
            if ahead:
                drafted.extend(ahead)
                confidence.extend([probability(run, score + EDIT_SCORE)] * len(ahead))
                ahead = ()
                continue
            token = tokens[at] if at < end else drafted[at - end]  # a source that runs into the draft: a period
            edit = self._edits.get((tokens[at - 1], token)) if self._edits and at < end else None
            if edit is not None:
                at += edit[0]
                ahead = edit[1]
                if ahead: continue
                token = tokens[at] if at < end else drafted[at - end]
            drafted.append(token)
            confidence.append(probability(run, score))
            run = min(run + 1, LONGEST_MATCH)
            at += 1
        return drafted[:limit], confidence[:limit]

    def _forget(self) -> None:
        self._source = -1
        self._run = 0
        self._score = 0.0
        self._ahead: tuple[int, ...] = ()
        self._edit: tuple[int, tuple[int, int]] | None = None
        self._left: tuple[int, int] | None = None
        self._near = False
        self._pending: tuple[int, int] | None = None
        self._edits: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}

    def _append(self, token: int) -> None:
        tokens = self.index.tokens
        if self._source >= 0:
            if token == (self._ahead[0] if self._ahead else tokens[self._source]):
                self._run = min(self._run + 1, LONGEST_MATCH)
                if self._ahead:
                    self._ahead = self._ahead[1:]
                else:
                    self._source += 1
                self._edit = None
                self.index.append(token)
                if self._pending and self._run >= CONFIRM:
                    self._learn_edit()
                if not self._ahead: self._enter_edit()
                return
            if self._edit is not None and token == tokens[self._edit[0]]:  # the remembered edit is not made here
                self._source = self._edit[0] + 1
                del self._edits[self._edit[1]]
                self._edit, self._ahead = None, ()
                self._run = 2
                self.index.append(token)
                return
            if self._run >= ANCHOR_RUN or self._near:
                self._left = (self._source, len(tokens))
            self._source, self._ahead, self._edit, self._pending = -1, (), None, None
        self.index.append(token)
        self._search()

    def _enter_edit(self) -> None:
        tokens, at = self.index.tokens, self._source
        key = (tokens[at - 1], tokens[at])
        edit = self._edits.get(key)
        if edit is not None:
            self._edit = (at, key)
            self._source = at + edit[0]
            self._ahead = edit[1]
            if self._source >= len(tokens): self._source = -1

    def _learn_edit(self) -> None:
        tokens = self.index.tokens
        (at, left), (back, here) = self._left, self._pending
        self._left = self._pending = None
        old, new = back - at, tuple(tokens[left:here])
        if old == 0:
            old, new = 1, (*new, tokens[at])
        if EDITS and 0 < old <= 8 and len(new) <= 8:
            self._edits[tokens[at - 1], tokens[at]] = (old, new)

    def _search(self) -> None:
        """Find a new source: the longest match, or one that goes on near where the last source was left."""
        index, tokens = self.index, self.index.tokens
        source, length = index.match()
        score = best = -9.0
        if source >= 0:
            score = (PROMPT[min(length, 3)] if source < self.given else 0.0) + index.doubt(source, length)
            best = base(length) + score
        self._pending = None
        if self._left is not None:
            anchor, left = self._left
            if len(tokens) - left > WINDOW:
                self._left = None
            else:
                last = tokens[-1]
                for at in range(anchor + 1, min(len(tokens) - 1, anchor + WINDOW) + 1):
                    if tokens[at - 1] != last:
                        continue
                    near = index.length_at(at)
                    s = (PROMPT[min(near, 3)] if at < self.given else 0.0) + NEAR[min(near, 3)]
                    if base(near) + s > best:
                        best, source, length, score = base(near) + s, at, near, s
                        self._pending = (at - near, len(tokens) - near)
                if self._pending and (self._pending[0] < anchor or self._pending[1] < left): self._pending = None
        self._source, self._run, self._score = source, length, score
        self._near = False
        if self._pending and self._pending[0] - self._left[0] <= SMALL and self._pending[1] - self._left[1] <= SMALL + 1:
            self._learn_edit()
            self._near = True
        if source >= 0: self._enter_edit()


SMALL = 2
EDIT_SCORE = -0.5
CONFIRM = 3
EDITS = True
EDIT_MATCH = 1
ANCHOR_RUN = 4
WINDOW = 32
NEAR = (0.0, -0.3, 0.5, 0.6)
PROMPT = (0.0, -0.4, 0.4, 1.0)
AMBIGUOUS = -1.8


def base(length: int) -> float:
    return -0.8 + 0.95 * math.log(length) if length else -1.5


def probability(length: int, score: float) -> float:
    return 1 / (1 + math.exp(-base(length) - score))


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
        tokens, confidence = follower.propose(request.limit)
        return Draft(tokens, None, self.source, confidence)
