"""What makes a grammar exact under speculation: a state moved by emitted tokens, and copies that walk ahead.

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
    """What is admitted along drafted paths from one state. Made anew after every round; each mask is computed once.

    Args:
        start: The state after the emitted tokens; it is not moved.
    """

    def __init__(self, start: Constraint) -> None:
        self._start = start
        self._state: Constraint | None = None  # after `_path`
        self._path: tuple[int, ...] = ()
        self._masks: dict[tuple[int, ...], Mask | None] = {}

    def allowed(self, drafted: Sequence[int]) -> Mask | None:
        """Tokens admitted after the emitted ones and `drafted`.

        Returns:
            None where `drafted` is itself not admitted: what follows it is never needed, since its acceptance is 0.

        Raises:
            SpecLocalError: The grammar engine gave up.
        """
        path = tuple(drafted)
        if path not in self._masks:
            state = self._at(path)
            self._masks[path] = None if state is None else state.allowed()
        return self._masks[path]

    def forced(self, drafted: Sequence[int], limit: int) -> list[int]:
        """Tokens that spell what must come after `drafted`, at most `limit`."""
        state = self._at(tuple(drafted)) if limit > 0 else None
        return [] if state is None else state.forced(limit)

    def legal(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` could be emitted next."""
        return self._start.legal(tokens)

    def _at(self, path: tuple[int, ...]) -> Constraint | None:
        """A state after `path`, or None where that is not admitted."""
        if self._state is None or self._path != path[: len(self._path)]:
            self._state, self._path = self._start.fork(), ()
        for token in path[len(self._path) :]:
            if not self._state.advance(token):
                self._state = None
                return None
        self._path = path
        return self._state
