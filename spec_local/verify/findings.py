"""What a check of exactness can find wrong: the kinds of fault, and the words for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from spec_local.errors import CacheError, InvariantError


class Kind(IntEnum):
    """Kinds of fault, the most specific cause first: where several checks fail, the first kind names the fault."""

    CACHE = 1
    NOISE = 2
    DRAFT_ROW = 3
    DRAFT = 4
    RESIDUAL = 5
    ACCEPTANCE = 6
    DECISION = 7
    TOKENS = 8
    DISTRIBUTION = 9
    INTERNAL = 10

    @property
    def words(self) -> str:
        """For a person."""
        return _WORDS[self]


_WORDS = {
    Kind.CACHE: "a cache does not hold the text (trim)",
    Kind.NOISE: "one random number decides twice (shared noise)",
    Kind.DRAFT_ROW: "a draft row belongs to another position",
    Kind.DRAFT: "drafted tokens are not drawn from their row",
    Kind.RESIDUAL: "after a rejection the token is not drawn from the residual (p - q)+",
    Kind.ACCEPTANCE: "tokens are accepted with the wrong probability",
    Kind.DECISION: "tokens differ from a one-by-one replay by more than rounding explains",
    Kind.TOKENS: "speculation changes the text",
    Kind.DISTRIBUTION: "tokens do not follow the target's distribution",
    Kind.INTERNAL: "a check inside the program stopped a run",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong."""

    check: str
    """The check that found it: conformance, audit, distribution or cache."""
    kind: Kind
    message: str
    """One sentence with the numbers."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"check": self.check, "kind": self.kind.name.lower(), "message": self.message}


def broke_off(check: str, run: str, error: AssertionError | CacheError) -> Problem:
    """The problem of a run that a check inside the program stopped."""
    kind = Kind.CACHE if isinstance(error, CacheError) else Kind.INTERNAL
    if isinstance(error, InvariantError):
        kind = {"cache": Kind.CACHE, "noise": Kind.NOISE, "draft row": Kind.DRAFT_ROW}[error.what]
    return Problem(check, kind, f"{run}: the run broke off with {type(error).__name__}: {error}")


def culprit(problems: list[Problem]) -> Kind | None:
    """The kind that best explains all of them; None where there are none."""
    return min((problem.kind for problem in problems), default=None)
