"""What a grammar needs to be exact under speculation: a state that moves with emitted tokens, and walks ahead on copies.

A constraint turns rows into rows over the tokens a grammar admits; the target's law is the masked one, for plain
decoding and for every draft alike. Its state is advanced by emitted tokens only. What would be admitted along a drafted
path is asked of a `Walk`, which steps a copy and shares its masks between the drafter and the acceptance test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
"""bool [n_vocab], True where a token is admitted. Read only."""


class Constraint(Protocol):
    """A grammar after some tokens. A pure function of those tokens: forks and paths leave no trace."""

    def allowed(self) -> Mask:
        """Tokens admitted next, an array of its own; only end tokens where the grammar is complete and cannot go on.

        Raises:
            SpecLocalError: The grammar engine gave up.
        """

    def advance(self, token: int) -> bool:
        """Move past a token; False where it was not admitted, after which the state is of no use."""

    def fork(self) -> Constraint:
        """A copy that moves on its own."""

    def legal(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` could be taken one after the other; the state stays where it is."""

    def forced(self, limit: int) -> list[int]:
        """Tokens that spell what must come next, at most `limit`; the state stays where it is. Often empty."""


class Walk:
    """Masks along drafted paths from one state. Made anew after every emitted token; each mask is computed once.

    Args:
        start: The state after the emitted tokens; it is not moved.
    """

    def __init__(self, start: Constraint) -> None:
        self._start = start
        self._state: Constraint | None = None
        self._path: list[int] = []
        self._masks: list[Mask | None] = [None]  # [i]: after the first i tokens of the path

    def allowed(self, drafted: Sequence[int]) -> Mask | None:
        """Tokens admitted after the emitted ones and `drafted`.

        Returns:
            None where `drafted` is itself not admitted: nothing is known of what follows, nor ever needed, since the
            acceptance of such a path is 0.

        Raises:
            SpecLocalError: The grammar engine gave up.
        """
        depth = len(drafted)
        if self._state is None or self._path[:depth] != list(drafted[: len(self._path)]):
            self._state, self._path, self._masks = self._start.fork(), [], self._masks[:1]
        while len(self._path) < depth:
            token = drafted[len(self._path)]
            if not self._state.advance(token):
                self._state = None
                return None
            self._path.append(token)
            self._masks.append(None)
        mask = self._masks[depth]
        if mask is None:
            if len(self._path) > depth:  # walked past without asking: step another copy up to here
                state = self._start.fork()
                for token in drafted:
                    state.advance(token)
                mask = state.allowed()
            else:
                mask = self._state.allowed()
            self._masks[depth] = mask
        return mask
