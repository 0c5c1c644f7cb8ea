"""The seam between a round and whoever proposes tokens.

A drafter knows token ids only: neither the target model nor whether drafting pays. A round asks every drafter the same
questions and never for its class or its name:

    offer(request)                     what could it give this sequence now? A ready draft, or how far it could draw one
    draft(requests)                    drafts from those that were chosen, all sequences together
    read(slot, tokens, most)           catch up with a history, a part at a time
    seen(slot, tokens, start, stop, states)
                                       what the target's last pass computed and the text kept
    forget(slot, length)               the history was cut back

A drafter whose drafts cost nothing derives from `ReadyDrafter`, any other one from `BaseDrafter`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from spec_local.drafting.draft import Draft

if TYPE_CHECKING:
    from spec_local.language_model import States
    from spec_local.sampling.acceptance import AcceptanceRule
    from spec_local.sampling.constraint import Walk
    from spec_local.sampling.noise import Noise
    from spec_local.sampling.transform import Transform


def always(_confidence: list[float]) -> bool:
    """`DraftRequest.more` of a request that leaves the length to the drafter."""
    return True


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A wish for a draft that continues one sequence."""

    slot: int
    """The sequence's slot; the drafter keeps its own state (cache, index) per slot."""
    tokens: Sequence[int]
    """Prompt and emitted tokens so far. Only ever read. The drafter compares it with what it knows of the slot."""
    limit: int
    """Most tokens wanted, ≥ 1."""
    transform: Transform
    """Makes draft rows; may differ from the target's without changing the output law."""
    noise: Noise
    """The request's randomness."""
    rule: AcceptanceRule
    """Decides how a token is drawn from a draft row."""
    more: Callable[[list[float]], bool] = always
    """`more(confidence so far)`: is one more token wanted? Asked after each drafted token, before the next one is
    drawn, so it never sees a token that is thrown away. A drafter whose tokens cost nothing need not ask."""
    walk: Walk | None = None
    """What a grammar admits after `tokens`; None: everything. What a drafter proposes against it is cut off."""
    guess: Callable[[Sequence[int], int], Sequence[int]] | None = None
    """`guess(drafted so far, rows of the next pass)`: tokens that another drafter expects next. A model may read them
    along in that pass: where it then draws the very same ones, the rows after them are there already. It never changes
    what is drafted."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one drafter could give one sequence this round."""

    tokens: int
    """Most tokens it can give, ≥ 1 and at most the request's limit."""
    draft: Draft | None = None
    """The draft itself if making it cost nothing: a *ready* draft, one-hot. None: it has to be *drawn* by passes of a
    model."""
    lag: int = 1
    """Drawn: rows its model is behind, the last emitted token included. The first draft step computes that many."""
    certain: bool = False
    """Ready, and every token of it will be accepted: there is no other way to go on. Nobody else is asked then."""
    ahead: Callable[[Sequence[int], int], Draft] | None = None
    """Ready: `ahead(drafted, limit)` is what it would say if the text went on with `drafted`, for a model to read
    along; None: it cannot say."""


class Drafter(Protocol):
    """Proposes tokens for many sequences at once."""

    draws: bool
    """Whether its drafts are drawn by a model, which has to read the prompt first."""
    needs_states: bool
    """Whether `seen` wants the target's hidden states."""

    def offer(self, request: DraftRequest) -> Offer | None:
        """What it could give; None: nothing. Never runs a model."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, in order; an empty one where there is nothing to propose.

        Raises:
            Aborted: Stopped on request.
            BackendError: This drafter is of no more use.
        """

    def read(self, slot: int, tokens: Sequence[int], most: int) -> int:
        """Bring what is kept of `slot` nearer to `tokens` by computing at most `most` ≥ 1 of them in one pass.

        Returns:
            How many were computed; 0: it lacks none.

        Raises:
            Aborted: Stopped on request; what was read stays.
            BackendError: This drafter is of no more use.
        """

    def seen(self, slot: int, tokens: Sequence[int], start: int, stop: int, states: States | None) -> None:
        """The target computed `tokens[start:stop]` of the history `tokens`, and they stay. A target that went back to a
        saved state computes some again.

        Args:
            slot: The sequence's slot.
            tokens: The history as it is now. Only ever read.
            start: Position of the first one computed.
            stop: Position after the last one; not below `start`.
            states: float32 [stop - start, width], their hidden states, if `needs_states`; valid during the call only.
        """

    def forget(self, slot: int, length: int) -> None:
        """The history of `slot` is now only its first `length` tokens (0: the slot is free).

        Raises:
            BackendError: This drafter is of no more use.
        """


class BaseDrafter:
    """Answers what a drafter that keeps nothing per slot has no use for."""

    draws = True
    needs_states = False

    def read(self, slot: int, tokens: Sequence[int], most: int) -> int:
        return 0

    def seen(self, slot: int, tokens: Sequence[int], start: int, stop: int, states: States | None) -> None:
        pass

    def forget(self, slot: int, length: int) -> None:
        pass


class ReadyDrafter(BaseDrafter, ABC):
    """One whose drafts cost nothing: it offers the draft itself."""

    draws = False

    @abstractmethod
    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See `Drafter.draft`."""

    def offer(self, request: DraftRequest) -> Offer | None:
        """The draft, as far as the request's grammar admits it."""
        (draft,) = self.draft([request])
        assert draft.rows is None, "a plan may cut what it has seen only if it is one-hot"
        if request.walk is not None and draft.tokens:
            draft = draft.cut(request.walk.legal(draft.tokens))
        return Offer(len(draft), draft) if draft.tokens else None
