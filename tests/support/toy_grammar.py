"""A grammar over the toys' vocabulary: a table of states, strict about how it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spec_local.errors import BackendError
from spec_local.sampling.constraint import Mask

START = "start"


class ToyGrammar:
    """A finite automaton: state → token → state. States that only one token leaves are what it can spell.

    Args:
        edges: The automaton, beginning at `START`.
        n_vocab: Entries of a mask.
        ends: Tokens admitted where a state has none of its own.
    """

    def __init__(
        self, edges: Mapping[str, Mapping[int, str]], n_vocab: int, ends: Sequence[int] = (0,), state: str = START
    ) -> None:
        self.edges = edges
        self.n_vocab = n_vocab
        self.ends = tuple(ends)
        self.state = state
        self.taken: list[int] = []
        """Tokens this very copy was moved by."""
        self.dead = False
        self.fails_in: str | None = None
        """In this state the engine gives up."""

    def allowed(self) -> Mask:
        assert not self.dead, "asked after a token that was not admitted"
        if self.state == self.fails_in:
            raise BackendError("the grammar gave up")
        mask = np.zeros(self.n_vocab, np.bool_)
        mask[list(self.edges.get(self.state) or self.ends)] = True
        mask.flags.writeable = False
        return mask

    def advance(self, token: int) -> bool:
        assert not self.dead, "moved after a token that was not admitted"
        following = self.edges.get(self.state, {}).get(token)
        self.taken.append(token)
        self.dead = following is None
        self.state = following or ""
        return not self.dead

    def fork(self) -> ToyGrammar:
        copy = ToyGrammar(self.edges, self.n_vocab, self.ends, self.state)
        copy.fails_in = self.fails_in
        return copy

    def legal(self, tokens: Sequence[int]) -> int:
        copy = self.fork()
        for count, token in enumerate(tokens):
            if not copy.edges.get(copy.state) and token in copy.ends:
                return count + 1
            if not copy.advance(token):
                return count
        return len(tokens)

    def forced(self, limit: int) -> list[int]:
        copy, found = self.fork(), list[int]()
        while len(found) < limit and len(ways := copy.edges.get(copy.state, {})) == 1:
            found += ways
            copy.advance(found[-1])
        return found


LIST = {
    START: {1: "open"},
    "open": {2: "label"},
    "label": {3: "item"},
    "item": {4: "next", 5: "next", 6: "next", 7: "next"},
    "next": {8: "comma", 9: "done"},
    "comma": {10: "space"},
    "space": {11: "item"},
}
"""1 2 3 (4|5|6|7) (8 10 11 (4|5|6|7))* 9: a list of at least one; of a separator only the first token is a choice."""


def is_list(tokens: Sequence[int], complete: bool = True) -> bool:
    """Whether tokens, without an end token, are a `LIST` (or the beginning of one)."""
    grammar = ToyGrammar(LIST, 12)
    return all(grammar.advance(token) for token in tokens) and (not complete or grammar.state == "done")
