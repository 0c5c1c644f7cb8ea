"""Drafters made to break speculation: they know the answer, and propose something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spec_local.drafting.draft import Draft
from spec_local.drafting.drafter import DraftRequest, ReadyDrafter

SOURCE = "adversary"
ALWAYS_WRONG, WRONG_IN_TURN = "always wrong", "wrong in turn"
"""What the two are called as arms of a run."""


class Adversary(ReadyDrafter):
    """Proposes `right(round)` tokens of the known answer, then wrong ones to the end of the draft.

    A wrong token is always another one than the answer's, so under a reproducible rule (or at temperature 0) exactly
    the right ones must be accepted; whatever else happens, an untested token was let through or a cache was wrong.

    Args:
        answer: Prompt and answer of a run without drafts.
        n_vocab: Entries in the vocabulary; wrong tokens are spread over it.
        right: From the count of drafts made so far to the number of right tokens in the next one.
    """

    def __init__(self, answer: Sequence[int], n_vocab: int, right: Callable[[int], int]) -> None:
        self._answer = answer
        self._n_vocab = n_vocab
        self._right = right
        self._drafts = 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        right = self._right(self._drafts)
        self._drafts += 1
        tokens = []
        for i in range(request.limit):
            at = len(request.tokens) + i
            answer = self._answer[at] if at < len(self._answer) else 0
            tokens.append(answer if i < right else (answer + 1 + (at * 7919) % (self._n_vocab - 1)) % self._n_vocab)
        return Draft(tokens, None, SOURCE, [1.0] * len(tokens))


def always_wrong(answer: Sequence[int], n_vocab: int) -> Adversary:
    """Every token of every draft is wrong."""
    return Adversary(answer, n_vocab, lambda _: 0)


def right_then_wrong(answer: Sequence[int], n_vocab: int, longest: int) -> Adversary:
    """Drafts whose first wrong token stands at place 1, 2, … `longest`, none, and so on: every trim there is."""
    return Adversary(answer, n_vocab, lambda drafts: drafts % (longest + 1))
