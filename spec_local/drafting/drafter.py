"""The protocol between a round and whoever proposes tokens.

A drafter knows token ids only: neither the target model nor whether drafting pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from spec_local.drafting.draft import Draft

if TYPE_CHECKING:
    from spec_local.sampling.acceptance import AcceptanceRule
    from spec_local.sampling.constraint import Walk
    from spec_local.sampling.noise import Noise
    from spec_local.sampling.transform import Transform


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
    more: Callable[[list[float]], bool]
    """`more(confidence so far)`: is one more token wanted? Asked after each drafted token, before the next one is
    drawn, so it never sees a token that is thrown away. A drafter whose tokens cost nothing need not ask."""
    walk: Walk | None = None
    """What a grammar admits after `tokens`; None: everything. What a drafter proposes against it is cut off."""
    guess: Callable[[Sequence[int], int], Sequence[int]] | None = None
    """`guess(drafted so far, rows of the next pass)`: tokens that another drafter expects next. A model may read them
    along in that pass: where it then draws the very same ones, the rows after them are there already. It never changes
    what is drafted."""


class Drafter(Protocol):
    """Proposes tokens for many sequences at once."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, in order; an empty one where there is nothing to propose."""

    def forget(self, slot: int, length: int) -> None:
        """The history of `slot` is now only its first `length` tokens (0: the slot is free)."""


@runtime_checkable
class CostlyDrafter(Drafter, Protocol):
    """One whose drafts take time: it is run where the controller chose it, never to see what it would say."""

    def reach(self, slot: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Most tokens of a draft after `tokens` (0: none), and how many of `tokens` must be read for it first."""

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Read `tokens`, a prompt, into what is kept of `slot`.

        Raises:
            Aborted: Stopped on request; what was read stays.
            BackendError: This drafter is of no more use.
        """
