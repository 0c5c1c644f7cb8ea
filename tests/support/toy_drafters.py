"""Drafters that know more, or less, than any real one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from spec_local.drafting.draft import Draft
from spec_local.drafting.drafter import BaseDrafter, Drafter, DraftRequest, Offer, ReadyDrafter
from spec_local.errors import BackendError


class FunctionDrafter(ReadyDrafter):
    """Proposes what a function of (tokens so far, limit) says; one-hot. Remembers what it was told to forget."""

    def __init__(self, propose: Callable[[Sequence[int], int], list[int]], source: str = "text") -> None:
        self.source = source
        self.forgotten: list[tuple[int, int]] = []
        self.asked: list[list[int]] = []
        """The history of every request."""
        self._propose = propose

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = []
        for request in requests:
            self.asked.append(list(request.tokens))
            tokens = self._propose(request.tokens, request.limit)[: request.limit]
            drafts.append(Draft(tokens, None, self.source, [8.0 + i for i in range(len(tokens))]))
        return drafts

    def forget(self, slot: int, length: int) -> None:
        self.forgotten.append((slot, length))


def perfect(text: Sequence[int]) -> FunctionDrafter:
    """Knows the whole text, prompt included."""
    return FunctionDrafter(lambda tokens, limit: list(text[len(tokens) : len(tokens) + limit]))


def wrong(text: Sequence[int], n_vocab: int) -> FunctionDrafter:
    """Knows the whole text, and never proposes a token of it."""
    return FunctionDrafter(
        lambda tokens, limit: [(token + 1) % n_vocab for token in text[len(tokens) : len(tokens) + limit]]
    )


def right_for(text: Sequence[int], n_vocab: int, right: int, length: int) -> FunctionDrafter:
    """Proposes `length` tokens of which exactly the first `right` are those of the text."""

    def propose(tokens: Sequence[int], limit: int) -> list[int]:
        ahead = list(text[len(tokens) : len(tokens) + length])
        return [token if i < right else (token + 1) % n_vocab for i, token in enumerate(ahead)]

    return FunctionDrafter(propose)


def junk(n_vocab: int, seed: int = 0) -> FunctionDrafter:
    """Random lengths of random tokens; a function of the history's length."""

    def propose(tokens: Sequence[int], limit: int) -> list[int]:
        chance = random.Random(seed * 100_003 + len(tokens))
        return [chance.randrange(n_vocab) for _ in range(chance.randint(0, limit))]

    return FunctionDrafter(propose)


def scripted(drafts: Sequence[Sequence[int]]) -> FunctionDrafter:
    """The given drafts, one a request, then nothing."""
    waiting = [list(draft) for draft in drafts]
    return FunctionDrafter(lambda _tokens, _limit: waiting.pop(0) if waiting else [])


class Breaking(BaseDrafter):
    """Another drafter that fails at its n-th request for drafts (counted from 0), or when it is told to forget."""

    def __init__(self, inner: Drafter, at: int = 0, *, forgetting: bool = False) -> None:
        self.inner = inner
        self.draws = inner.draws
        self._at = -1 if forgetting else at
        self._forgetting = forgetting
        self._calls = 0

    def offer(self, request: DraftRequest) -> Offer | None:
        if isinstance(self.inner, ReadyDrafter):  # its offer is the draft
            self._count()
        return self.inner.offer(request)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._count()
        return self.inner.draft(requests)

    def read(self, slot: int, tokens: Sequence[int], most: int) -> int:
        return self.inner.read(slot, tokens, most)

    def _count(self) -> None:
        self._calls += 1
        if self._calls - 1 == self._at:
            raise BackendError("the drafter broke")

    def forget(self, slot: int, length: int) -> None:
        if self._forgetting:
            raise BackendError("the drafter cannot forget")
        self.inner.forget(slot, length)
