"""Watching a sequence decide: every draft, row, ruling and random stream of its rounds, without changing any.

A recorder stands between a sequence and its rule and noise. Both are handed on unchanged, so the tokens are those the
sequence would have had without it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from spec_local.sampling.acceptance import AcceptanceRule, Ruling, TargetRow
from spec_local.sampling.noise import Chance, Ids, Noise, Purpose, Weights
from spec_local.sampling.row import Row
from spec_local.speculation.sequence import Sequence
from spec_local.verify.findings import Kind, Problem

Stream = tuple[Purpose, int, int | None]
"""One source of random numbers: purpose, position, and the round for the purposes that know it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One application of the acceptance rule."""

    position: int
    """Absolute position of x_1."""
    tokens: tuple[int, ...]
    """The draft x_1..x_γ."""
    rows: tuple[Row, ...] | None
    """q_1..q_γ as the rule was given them; None for a one-hot draft."""
    targets: tuple[Row, ...]
    """p_1.. as far as the rule asked."""
    ruling: Ruling


@dataclass(slots=True)
class Recorder:
    """Attach it to a sequence before its first round; read it after the last."""

    sequence: Sequence
    decisions: list[Decision] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rule: AcceptanceRule = field(init=False)
    """The sequence's own rule."""
    noise: Noise = field(init=False)
    """The sequence's own noise."""
    _drawn: dict[int, Row] = field(default_factory=dict)
    _used: set[Stream] = field(default_factory=set)
    _drafting: set[Stream] = field(default_factory=set)
    _deciding: set[Stream] = field(default_factory=set)
    _stage: set[Stream] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rule, self.noise = self.sequence.rule, self.sequence.noise
        self.sequence.rule = _Rule(self)
        self.sequence.noise = cast(Noise, _Noise(self.noise, self))  # a sequence asks no more of it

    @property
    def emitted_rows(self) -> list[Row]:
        """The target's row, as the rule saw it, behind every emitted token."""
        rows: list[Row] = []
        for decision in self.decisions:
            rows.extend(decision.targets[: len(decision.ruling.tokens)])
        return rows[: len(self.sequence.tokens) - self.sequence.prompt_length]

    def draft_token(self, row: Row, noise: Chance, position: int) -> int:
        """The rule's own draw, noted."""
        self._drawn[position] = row
        self._stage = self._drafting
        return self.rule.draft_token(row, noise, position)

    def verify(
        self, tokens: Many[int], rows: Many[Row] | None, target_row: TargetRow, noise: Chance, position: int
    ) -> Ruling:
        """The rule's own ruling, noted, with the draft rows checked against those the tokens were drawn from."""
        targets: list[Row] = []

        def noted(i: int) -> Row:
            targets.append(target_row(i))
            return targets[-1]

        if rows is not None:
            self._check_rows(rows, position)
        self._stage = self._deciding
        try:
            ruling = self.rule.verify(tokens, rows, noted, noise, position)
            kept = None if rows is None else tuple(rows)
            self.decisions.append(Decision(position, tuple(tokens), kept, tuple(targets), ruling))
        finally:
            self._check_streams(position)
            self._drawn.clear()
        return ruling

    def note(self, purpose: Purpose, position: int, start: int | None) -> None:
        """A random number was read."""
        per_round = purpose in (Purpose.ACCEPT, Purpose.DRAFT)
        self._stage.add((purpose, position, start if per_round else None))

    def _check_rows(self, rows: Many[Row], position: int) -> None:
        if any(problem.kind is Kind.DRAFT_ROW for problem in self.problems):
            return
        for i, row in enumerate(rows):
            drawn = self._drawn.get(position + i)
            if drawn is None or same(row, drawn):
                continue
            shift = next((s for s in (-1, 1) if (near := self._drawn.get(position + i + s)) and same(row, near)), 0)
            whose = f"that of position {position + i + shift}" if shift else "not the one the token was drawn from"
            message = f"the draft row given to the acceptance rule for position {position + i} is {whose}"
            self.problems.append(Problem("distribution", Kind.DRAFT_ROW, message))
            return

    def _check_streams(self, position: int) -> None:
        """No random number may decide twice; sharing is the coupled rule's very idea, so it is left out."""
        if not self.rule.reproducible:
            twice = (self._drafting & self._deciding) | ((self._drafting | self._deciding) & self._used)
            if twice and not any(problem.kind is Kind.NOISE for problem in self.problems):
                purpose, at, _ = min(twice)
                message = f"the {purpose.name.lower()} noise of position {at} decides twice in the round of {position}"
                self.problems.append(Problem("distribution", Kind.NOISE, message))
            self._used |= self._drafting | self._deciding
        self._drafting.clear()
        self._deciding.clear()


class _Rule:
    """The recorder as an `AcceptanceRule`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        rule = recorder.rule
        self.name = rule.name
        self.tolerates_truncation = rule.tolerates_truncation
        self.reproducible = rule.reproducible

    def draft_token(self, row: Row, noise: Chance, position: int) -> int:
        return self._recorder.draft_token(row, noise, position)

    def verify(
        self, tokens: Many[int], rows: Many[Row] | None, target_row: TargetRow, noise: Chance, position: int
    ) -> Ruling:
        return self._recorder.verify(tokens, rows, target_row, noise, position)


class _Noise:
    """A `Noise` that notes what is read of it."""

    def __init__(self, noise: Noise, recorder: Recorder) -> None:
        self._noise = noise
        self._recorder = recorder
        self.seed = noise.seed
        self.start = noise.start

    def for_round(self, start: int) -> _Noise:
        return _Noise(self._noise.for_round(start), self._recorder)

    def happens(self, purpose: Purpose, position: int, probability: float) -> bool:
        self._recorder.note(purpose, position, self.start)
        return self._noise.happens(purpose, position, probability)

    def choose(self, purpose: Purpose, position: int, ids: Ids, weights: Weights) -> int:
        if len(ids) > 1:  # the only candidate is chosen without a random number
            self._recorder.note(purpose, position, self.start)
        return self._noise.choose(purpose, position, ids, weights)


def same(a: Row, b: Row) -> bool:
    """Whether two rows are equal, bit by bit."""
    return a is b or (np.array_equal(a.ids, b.ids) and np.array_equal(a.probs, b.probs))
