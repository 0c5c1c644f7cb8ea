"""Drafting from the text itself: what followed the last time these tokens stood here?

An index maps the last n tokens, for several n, to the place after their most recent earlier occurrence in prompt and
output. The drafter follows one source at a time and stays with it while the text goes on as the source does. Where the
text departs from it (an edit), the place is remembered: the source is taken up again near there as soon as one token
fits, and what was put in its stead is expected again where the source says the same (a renamed variable).

All of it is a function of the tokens alone, never of what was drafted, submitted or accepted: a draft can be replayed
offline, and rounds of any shape give the same one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from spec_local.drafting.draft import TEXT_SOURCE, Draft
from spec_local.drafting.drafter import DraftRequest, Offer, ReadyDrafter

ORDERS = (16, 12, 8, 6, 4, 3, 2)
"""Lengths n of the indexed n-grams, longest first."""
LONGEST_MATCH = 64
"""A match is measured back to this many tokens."""
TAIL = 256
"""Tokens compared with the request each round to notice a history that was replaced without `forget`."""
WINDOW = 32
"""Tokens around an edit within which its source is looked for again."""
ANCHOR_MATCH = 4
"""Tokens a source must have fitted for its place to be worth remembering."""
SMALL_EDIT, LARGEST_EDIT, EDITS = 3, 8, 64
"""An edit of up to so many tokens is believed at once, a larger one once three tokens fit behind it and up to
`LARGEST_EDIT`; so many are remembered."""
EDIT_CONFIRMED = 3

# Log-odds that the next token of a source is right, fitted to 3 000 offers over eight kinds of text.
_LENGTH_0, _LENGTH = -0.8, 0.95
"""Intercept, and weight of the logarithm of the match's length."""
_PROMPT = (0.0, -0.4, 0.4, 1.0)
"""Added for a source in the prompt, by match length (the last entry: 3 and more): prompts are quoted, output varies."""
_NEAR = (0.0, -0.3, 0.5, 0.6)
"""Added, likewise, for a source found near the place where it was left."""
_AMBIGUOUS = -1.8
"""Added where the occurrence before the most recent one went on differently."""
_EDITED = -0.5
"""Added for tokens of a remembered edit."""
_SAID, _PLACE = 0.43, 0.73
"""What speaks for a source is believed by this share, and the tokens of a draft that fitted speak for the next: weight
of the logarithm of the token's place in the draft. Fitted to 2 301 tokens of drafts that did not overlap (negative
log-likelihood 1 206, 1 294 without): a draft fails at its first tokens or goes far."""
_LOG = [math.log(max(length, 1)) for length in range(LONGEST_MATCH + 1)]


def likelihood(length: int, score: float = 0.0, place: int = 0) -> float:
    """Probability that a source goes on as the text does.

    Args:
        length: Its match so far, the drafted tokens before this one included.
        score: Log-odds of what else speaks for the source.
        place: Tokens of the same draft before this one, all of them taken to be right.
    """
    said = _LENGTH_0 + _LENGTH * _LOG[length] + score
    far = _LOG[min(place + 1, LONGEST_MATCH)]  # no draft so long was in what this was fitted to
    return 1.0 / (1.0 + math.exp(-_SAID * said - _PLACE * far))


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

    def ambiguous(self, source: int, length: int) -> bool:
        """Whether the occurrence before `source` of the same n-gram, n ≤ length, went on differently."""
        for order, earlier in zip(ORDERS, self._earlier, strict=True):
            if order <= length:
                other = earlier[source]
                return other >= 0 and self.tokens[other] != self.tokens[source]
        return False


@dataclass(frozen=True, slots=True)
class _Source:
    """The place the text is being compared with."""

    at: int
    """Index of the token expected next, or of the one after `instead`."""
    match: int
    """Tokens that fitted so far, at most 64."""
    score: float
    """Log-odds of what speaks for the source besides its match."""
    instead: tuple[int, ...] = ()
    """Tokens of a remembered edit that are expected first."""
    edit: tuple[int, int] | None = None
    """Key of that edit while none of it has been seen, so that it may still turn out not to be made here."""
    original: int = -1
    """Where the edit's own source tokens begin."""
    gap: tuple[int, int, int, int] | None = None
    """An edit that is not believed yet: source from, to and text from, to."""
    near: bool = False
    """Found beside an edit, by little: where it ends counts as the edit's place again."""


class TextFollower:
    """The text of one slot, and the source in it that the text is being compared with."""

    def __init__(self) -> None:
        self.index = TextIndex()
        self.given = 0
        """Tokens that came in one piece (a prompt), not round by round."""
        self._start()

    def _start(self) -> None:
        self._source: _Source | None = None
        self._left: tuple[int, int] | None = None  # (place in the source, place in the text) of the last departure
        self._edits: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        # (token before, first token replaced) -> (tokens replaced ≥ 1, what stood there instead)

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
                self._step(token, self.index.append)
        elif fresh:
            for token in fresh:
                self.index.append(token)
            self.given = len(tokens)
            self._start()
            self._search()

    def cut(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        self.index.cut(length)
        self.given = min(self.given, length)
        self._start()
        self._search()

    def propose(self, limit: int) -> tuple[list[int], list[float]]:
        """Up to `limit` tokens that would follow if the text went on as its source does, and how likely each is."""
        drafted: list[int] = []
        likely: list[float] = []
        source = self._source
        if source is None:
            return drafted, likely
        tokens, edits = self.index.tokens, self._edits
        end, at, match, instead = len(tokens), source.at, source.match, source.instead
        while len(drafted) < limit:
            if instead:
                drafted += instead
                likely += [likelihood(match, source.score + _EDITED, len(likely))] * len(instead)
                instead = ()
                continue
            # A source that runs into the draft itself is text that repeats with a period.
            token = tokens[at] if at < end else drafted[at - end]
            edit = edits.get((tokens[at - 1], token)) if edits and at < end else None
            if edit is not None and at + edit[0] < end:
                at += edit[0]
                instead = edit[1]
                if instead:
                    continue
                token = tokens[at]
            drafted.append(token)
            likely.append(likelihood(match, source.score, len(likely)))
            match = min(match + 1, LONGEST_MATCH)
            at += 1
        return drafted[:limit], likely[:limit]

    def propose_after(self, drafted: Sequence[int], limit: int) -> tuple[list[int], list[float]]:
        """`propose` as if the text went on with `drafted`; nothing is kept of it."""
        tokens = self.index.tokens
        size, state = len(tokens), (self._source, self._left, dict(self._edits))
        for token in drafted:
            self._step(token, tokens.append)
        proposal = self.propose(limit)
        del tokens[size:]
        self._source, self._left, self._edits = state
        return proposal

    def _step(self, token: int, append: Callable[[int], None]) -> None:
        """Append one token and move the source along."""
        tokens, source = self.index.tokens, self._source
        place = len(tokens)
        append(token)
        if source is None:
            self._search()
            return
        expected = source.instead[0] if source.instead else tokens[source.at]
        if token == expected:
            match = min(source.match + 1, LONGEST_MATCH)
            at = source.at if source.instead else source.at + 1
            gap = source.gap
            if gap is not None and match >= EDIT_CONFIRMED:
                self._remember(*gap)
                gap = None
            moved = _Source(at, match, source.score, source.instead[1:], gap=gap, near=source.near)
            self._source = moved if moved.instead else self._expect_edit(moved)
        elif source.edit is not None and token == tokens[source.original]:
            del self._edits[source.edit]  # the source was not edited here
            self._source = _Source(source.original + 1, min(source.match + 1, LONGEST_MATCH), source.score)
        else:
            if source.match >= ANCHOR_MATCH or source.near:
                self._left = (source.at, place)
            self._search()

    def _search(self) -> None:
        """Find a new source: the longest match, or one near the place where the last source was left."""
        index, tokens = self.index, self.index.tokens
        best: _Source | None = None
        at, match = index.match()
        if at >= 0:
            score = self._origin(at, match) + (_AMBIGUOUS if index.ambiguous(at, match) else 0.0)
            best = _Source(at, match, score)
        if self._left is not None and len(tokens) - self._left[1] > WINDOW:
            self._left = None
        if self._left is not None:
            place, left = self._left
            last = tokens[-1]
            for at in range(place + 1, min(len(tokens) - 1, place + WINDOW) + 1):
                if tokens[at - 1] != last:
                    continue
                match = index.length_at(at)
                score = self._origin(at, match) + _NEAR[min(match, 3)]
                if best is None or likelihood(match, score) > likelihood(best.match, best.score):
                    gap = (place, at - match, left, len(tokens) - match)
                    best = _Source(at, match, score, gap=gap if gap[0] <= gap[1] and gap[2] <= gap[3] else None)
        if best is not None and best.gap is not None:
            place, back, left, here = best.gap
            if back - place < SMALL_EDIT and here - left <= SMALL_EDIT:
                self._remember(*best.gap)
                best = _Source(best.at, best.match, best.score, near=True)
        self._source = None if best is None else self._expect_edit(best)

    def _origin(self, at: int, match: int) -> float:
        return _PROMPT[min(match, 3)] if at < self.given else 0.0

    def _remember(self, place: int, back: int, left: int, here: int) -> None:
        """The text replaced source tokens [place, back) by its own [left, here)."""
        tokens = self.index.tokens
        replaced, new = back - place, tuple(tokens[left:here])
        self._left = None
        if replaced == 0:  # an insertion: before a token that stays
            replaced, new = 1, (*new, tokens[place])
        if replaced <= LARGEST_EDIT and len(new) <= LARGEST_EDIT:
            if len(self._edits) >= EDITS:
                del self._edits[next(iter(self._edits))]
            self._edits[tokens[place - 1], tokens[place]] = (replaced, new)

    def _expect_edit(self, source: _Source) -> _Source:
        """The source with a remembered edit applied, where one begins at its place."""
        if not self._edits:
            return source
        tokens, at = self.index.tokens, source.at
        key = (tokens[at - 1], tokens[at])
        edit = self._edits.get(key)
        if edit is None or at + edit[0] >= len(tokens):
            return source
        return _Source(at + edit[0], source.match, source.score, edit[1], key, at, source.gap, source.near)


class TextDrafter(ReadyDrafter):
    """Drafts for any number of slots from what stands in their own prompt and output."""

    source = TEXT_SOURCE

    def __init__(self) -> None:
        self._slots: dict[int, TextFollower] = {}

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, of `limit` tokens if there is a source at all; costs microseconds."""
        return [self._draft(request) for request in requests]

    def offer(self, request: DraftRequest) -> Offer | None:
        """The draft, with what would come after other tokens."""
        offer = super().offer(request)
        return None if offer is None else replace(offer, ahead=partial(self.ahead, request.slot))

    def forget(self, slot: int, length: int) -> None:
        """The history of `slot` is now only its first `length` tokens; what came after them is not drafted from."""
        if length <= 0:
            self._slots.pop(slot, None)
        elif (follower := self._slots.get(slot)) is not None and length < len(follower.index):
            follower.cut(length)

    def ahead(self, slot: int, drafted: Sequence[int], limit: int) -> Draft:
        """What would be drafted if the text of `slot`, as of its last draft, went on with `drafted`."""
        follower = self._slots.get(slot)
        tokens, likely = ([], []) if follower is None else follower.propose_after(drafted, limit)
        return Draft(tokens, None, self.source, likely)

    def _draft(self, request: DraftRequest) -> Draft:
        follower = self._slots.get(request.slot)
        if follower is None:
            follower = self._slots[request.slot] = TextFollower()
        follower.sync(request.tokens)
        tokens, likely = follower.propose(request.limit)
        return Draft(tokens, None, self.source, likely)
