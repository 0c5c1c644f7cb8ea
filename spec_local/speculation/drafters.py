"""`Drafters`: those who propose, by source. One that fails is given up with its reason; answers go on without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spec_local.drafting.draft import Draft, no_draft
from spec_local.drafting.drafter import Drafter, DraftRequest, Offer
from spec_local.errors import BackendError
from spec_local.language_model import States


class Drafters(dict[str, Drafter]):
    """The drafters in use, in the order in which they are asked.

    Args:
        drafters: By source.
    """

    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        super().__init__(drafters)
        self.off: dict[str, str] = {}
        """Those that had to be given up, with the reason."""

    def give_up(self, source: str, reason: str) -> None:
        """Stop using a drafter, and remember why."""
        self.pop(source, None)
        self.off[source] = reason

    @property
    def any_draws(self) -> bool:
        """Whether one draws its drafts with a model, which has to read prompts."""
        return any(drafter.draws for drafter in self.values())

    @property
    def wanting_states(self) -> list[str]:
        """Sources whose drafters want the target's hidden states."""
        return [source for source, drafter in self.items() if drafter.needs_states]

    def offers(self, request: DraftRequest) -> dict[str, Offer]:
        """What each could give, by source; a certain draft alone, if there is one."""
        offers: dict[str, Offer] = {}
        for source, drafter in list(self.items()):
            try:
                offer = drafter.offer(request)
            except BackendError as error:
                self.give_up(source, error.message)
                continue
            if offer is not None and offer.certain:
                return {source: offer}
            if offer is not None:
                offers[source] = offer
        return offers

    def draft(self, source: str, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Drafts from one of them; empty ones if it fails."""
        try:
            if requests and source in self:
                return self[source].draft(requests)
        except BackendError as error:
            self.give_up(source, error.message)
        return [no_draft() for _ in requests]

    def read(self, source: str, slot: int, tokens: Sequence[int], most: int) -> int:
        """Have one of them read at most so many of the tokens it lacks; returns how many it read."""
        try:
            return self[source].read(slot, tokens, most) if source in self else 0
        except BackendError as error:
            self.give_up(source, error.message)
            return 0

    def seen(self, slot: int, tokens: Sequence[int], start: int, stop: int, states: States | None) -> None:
        """Tell all what a pass computed and the text kept."""
        for source, drafter in list(self.items()):
            try:
                drafter.seen(slot, tokens, start, stop, states)
            except BackendError as error:
                self.give_up(source, error.message)

    def forget(self, slot: int, length: int) -> None:
        """Tell all that the history of `slot` is now only its first `length` tokens."""
        for source, drafter in list(self.items()):
            try:
                drafter.forget(slot, length)
            except BackendError as error:
                self.give_up(source, error.message)
