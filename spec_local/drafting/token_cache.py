"""`TokenCache`: a language model whose caches are known token by token.

The model says how many tokens a slot holds; this remembers which. The target and the draft model each sit behind one,
so there is a single place where caches are compared, cut, filled and, after a failure, believed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_local.errors import CacheError, InvariantError, SpecLocalError
from spec_local.language_model import Chunk, LanguageModel, Logits, SharingModel

_WORTH_SHARING = 16
"""Tokens; fewer are computed as fast as they are looked for."""


class TokenCache:
    """The caches of one model, by slot.

    The model's own length is the truth: where it differs from what is remembered (a failed pass cost more than itself,
    an interrupt came between a pass and its booking), the shorter of both counts, and the rest is cut or read again.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._sharing = model if isinstance(model, SharingModel) else None
        self._held: dict[int, list[int]] = {}

    def tokens(self, slot: int) -> Sequence[int]:
        """The ids in the cache of `slot`, to be read only."""
        return self._held.setdefault(slot, [])

    def holds(self, slot: int, length: int) -> bool:
        """Whether `slot` holds exactly `length` tokens, in truth and by what is remembered."""
        return len(self.tokens(slot)) == length == self.model.length(slot)

    def shared(self, slot: int, tokens: Sequence[int], known: int = 0) -> int:
        """Tokens at the start of `tokens` that the cache of `slot` holds; the first `known` are not compared again."""
        return min(common_prefix(self.tokens(slot), tokens, known), self.model.length(slot))

    def adopt(self, slot: int, tokens: Sequence[int], held: int) -> int:
        """Where another slot holds a longer beginning of `tokens`, take that over: what prompts share is computed once.

        Args:
            slot: Holds the first `held` of `tokens`, and perhaps others behind them.
            tokens: What the slot is about to be filled with.
            held: As `shared` says.

        Returns:
            How many of `tokens` the slot holds now.
        """
        if self._sharing is None or not self.model.memory.free or not worth_sharing(len(tokens) - held):
            return held
        longest, source = max((self.shared(other, tokens), other) for other in self._held)
        if not worth_sharing(longest - held):
            return held
        self._held[slot] = []
        try:
            self._sharing.copy(source, slot, longest)
        except CacheError:
            return 0
        self._held[slot] = list(tokens[:longest])
        return longest

    def cut(self, slot: int, length: int) -> int:
        """Keep only the first `length` tokens of `slot`, of those it holds, or fewer where its memory wants it so.

        Returns:
            How many are left: never more than `length`.

        Raises:
            CacheError: The cache cannot be cut there; what it holds counts as unknown, so it can only be emptied now.
        """
        held = self._held.setdefault(slot, [])
        if self.model.length(slot) > length:
            length = self.model.foothold(slot, length)
            try:
                self.model.trim(slot, length)
                if (left := self.model.length(slot)) != length:
                    raise CacheError(f"A cache cut to {length} tokens still holds {left}.")
            except CacheError:
                held.clear()
                raise
        del held[length:]
        return len(held)

    def mark(self, slot: int, ahead: int | None = None) -> None:
        """`LanguageModel.mark`."""
        self.model.mark(slot, ahead)

    def behind(self, slot: int, tokens: Sequence[int], most: int, known: int = 0) -> Chunk | None:
        """What `slot` is to compute next to come nearer to `tokens`; None: it holds them already.

        The one way in which a history is read: what this slot holds of it stays, what another slot holds more of is
        taken over, all else is cut off, and the rest comes in chunks of at most `most` ≥ 1 tokens.

        Args:
            slot: The cache slot.
            tokens: What it is to hold in the end.
            most: Tokens of the chunk.
            known: The first tokens that need not be compared again.

        Raises:
            CacheError: The cache cannot be cut back.
        """
        held = self.cut(slot, self.adopt(slot, tokens, self.shared(slot, tokens, known)))
        return Chunk(slot, tokens[held : held + most], 0) if held < len(tokens) else None

    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """`LanguageModel.decode`, booked."""
        if not all(self.holds(chunk.seq, len(self.tokens(chunk.seq))) for chunk in chunks):
            raise InvariantError("cache", "the cache holds unknown tokens: cut it first")
        try:
            rows = self.model.decode(chunks)
        except SpecLocalError:  # a failed pass may have cost more than itself: what is gone is known to be gone
            for chunk in chunks:
                del self._held[chunk.seq][self.model.length(chunk.seq) :]
            raise
        for chunk in chunks:
            self._held[chunk.seq].extend(chunk.tokens)
        return rows


def worth_sharing(tokens: int) -> bool:
    """Whether so many tokens should be taken over from another slot rather than computed."""
    return tokens >= _WORTH_SHARING


def common_prefix(a: Sequence[int], b: Sequence[int], known: int = 0) -> int:
    """Length of the longest common prefix of two token lists, the first `known` of which are equal."""
    short = min(len(a), len(b))
    low = min(known, short)
    if a[low:short] == b[low:short]:
        return short
    high = short  # invariant: the first `low` agree, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low
