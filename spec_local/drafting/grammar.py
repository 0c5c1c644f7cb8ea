"""Drafts that spell what a grammar makes certain: names of fields, quotes, brackets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spec_local.drafting.draft import GRAMMAR_SOURCE, Draft
from spec_local.drafting.drafter import DraftRequest, Offer, ReadyDrafter


class GrammarDrafter(ReadyDrafter):
    """Offers the tokens that a request's grammar leaves no choice about: they are sure to be accepted."""

    source = GRAMMAR_SOURCE

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request; empty if there is no grammar or more than one way to go on."""
        forced = [[] if r.walk is None else r.walk.forced((), r.limit) for r in requests]
        return [Draft(tokens, None, self.source, [1.0] * len(tokens)) for tokens in forced]

    def offer(self, request: DraftRequest) -> Offer | None:
        """The draft, marked as certain."""
        if request.walk is None:
            return None
        offer = super().offer(request)
        return None if offer is None else replace(offer, certain=True)
