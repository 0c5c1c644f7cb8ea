"""Do the emitted tokens follow the target's own distribution?

Two bodies of evidence, judged by the same tests.

*Live*: the tokens the engine really emitted, each under the target's row as the rule saw it.

*Resampled*: target and draft rows of the live runs, cut to their likeliest tokens, are a small language model whose
rows do not depend on what precedes. Over it the very rule in use is played for tens of thousands of tokens, at a tenth
of a millisecond each, which gives power that no live run on a laptop has. For a ratio rule each stage has a known law
given the stage before, computed here a second time and independently of the rule: x_i ~ q_i, the number of accepted
tokens given the draft, the added token given that number. The stage that fails names the fault.

Tests: the probability integral transform of each token under its row must be uniform, by χ² (tokens ordered by q/p, so
that a pull towards the draft shows as a slope); log-likelihood drift, Σ[-log p(y) - H(p)]; draft-leak score,
Σ[f(y) - E f] with f = min(q/p, 20). Only the whole emitted stream follows p: accepted tokens alone do not. The level is
shared between the tests (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Many
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from spec_local.sampling.acceptance import AcceptanceRule
from spec_local.sampling.noise import Ids, Noise
from spec_local.sampling.row import Row
from spec_local.verify.audit import Replay
from spec_local.verify.findings import Kind, Problem
from spec_local.verify.recording import Recorder
from spec_local.verify.reference import Law, accepted_law, added_law
from spec_local.verify.significance import Drift, Floats, Tested, uniformity

LEVEL = 1e-3
"""Chance that a run of all tests together raises a false alarm."""
LEAK_CAP = 20.0
FAR_ROW = 0.25
"""Draft rows whose mean total variation from fresh ones is larger belong elsewhere; rounding makes a few hundredths."""
LIKELIEST = 64
"""Tokens kept of a row for resampling."""
STREAM = 6
"""Tokens of one resampled stream."""
LONGEST = 4
"""Longest draft in it."""


_STAGES = {Kind.DRAFT: "drafted token", Kind.ACCEPTANCE: "tokens accepted", Kind.RESIDUAL: "added token"}


@dataclass(frozen=True, slots=True)
class Distribution:
    """All tests."""

    rule: str
    live_tokens: int
    resampled_tokens: int
    level: float
    """Of each test."""
    tests: tuple[Tested, ...]
    draft_row_distance: float | None
    """Mean total variation between the draft rows used and those of a fresh draft cache; None without draft rows."""
    problems: tuple[Problem, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        shown = {name: getattr(self, name) for name in self.__slots__ if name not in ("tests", "problems")}
        return {**shown, "tests": [asdict(test) for test in self.tests]}


@dataclass(slots=True)
class Stream:
    """The three tests of emitted tokens, gathering evidence."""

    name: str
    chance: np.random.Generator
    uniform: list[float] = field(default_factory=list)
    drift: Drift = field(default_factory=Drift)
    leak: Drift = field(default_factory=Drift)
    impossible: int = 0
    """Emitted tokens of probability 0."""

    def add(self, token: int, p: Row, q: Row | None) -> None:
        """One emitted token, the row it must follow, and the draft's row there."""
        at = int(np.searchsorted(p.ids, token))
        if at >= len(p.ids) or p.ids[at] != token:
            self.impossible += 1
            return
        surprise = -np.log(p.probs)
        ratio = surprise  # without a draft model: from the likeliest to the rarest
        if q is not None:
            ratio = np.minimum(over(q, p.ids) / p.probs, LEAK_CAP)
            self.leak.add(p.probs, ratio, float(ratio[at]))
        self.drift.add(p.probs, surprise, float(surprise[at]))
        self.uniform.append(integral_transform(p.probs, ratio, at, self.chance.random()))

    def tests(self, level: float) -> list[Tested]:
        """What came out, for those tests that have evidence."""
        found = []
        if self.uniform:
            found.append(uniformity(f"{self.name}: PIT", self.uniform, level))
            found.append(self.drift.test(f"{self.name}: likelihood drift"))
        if self.leak.samples:
            found.append(self.leak.test(f"{self.name}: draft leak"))
        return found


@dataclass(slots=True)
class Stages:
    """The stages of a ratio rule, each under its law given the stage before.

    Two tests each: χ² of the transform, which sees any difference, and a drift along the order in which a fault would
    push (surprise of the drafted token, number accepted, q over the law of the added token), which sees it sooner.
    """

    rule: str
    chance: np.random.Generator
    uniform: dict[Kind, list[float]] = field(default_factory=lambda: {kind: [] for kind in _STAGES})
    drift: dict[Kind, Drift] = field(default_factory=lambda: {kind: Drift() for kind in _STAGES})
    impossible: dict[Kind, int] = field(default_factory=dict)

    def add(self, tokens: Many[int], q: Many[Row], p: Many[Row], accepted: int, added: int) -> None:
        """One ruling: the draft, its rows, the target's rows (one more), tokens accepted, and the token added."""
        for token, row in zip(tokens, q, strict=True):
            self._add(Kind.DRAFT, Law(row.ids, row.probs), token, -np.log(row.probs))
        law = accepted_law(self.rule, tokens, q, p)
        self._add(Kind.ACCEPTANCE, law, accepted, law.ids.astype(np.float64))
        law = added_law(self.rule, tokens, q, p, accepted)
        draft = over(q[accepted], law.ids) if accepted < len(tokens) else np.zeros(len(law.ids))
        self._add(Kind.RESIDUAL, law, added, np.minimum(draft / np.maximum(law.probs, 1e-300), LEAK_CAP))

    def tests(self, level: float) -> list[Tested]:
        """What came out."""
        found = []
        for kind, name in _STAGES.items():
            if self.uniform[kind]:
                found.append(uniformity(f"rule: {name}, PIT", self.uniform[kind], level))
                found.append(self.drift[kind].test(f"rule: {name}, drift"))
        return found

    def _add(self, kind: Kind, law: Law, value: int, order: Floats) -> None:
        at = int(np.searchsorted(law.ids, value))
        if at >= len(law.ids) or law.ids[at] != value or law.probs[at] <= 0.0:
            self.impossible[kind] = self.impossible.get(kind, 0) + 1
            return
        self.uniform[kind].append(integral_transform(law.probs, order, at, self.chance.random()))
        self.drift[kind].add(law.probs, order, float(order[at]))


def distribution(
    runs: Many[tuple[Recorder, Replay]], rule: AcceptanceRule, resampled_tokens: int, check: Callable[[], None]
) -> Distribution:
    """Test the recorded runs above temperature 0, and the rule on their rows.

    Args:
        runs: Recorders with their replays.
        rule: The rule in use.
        resampled_tokens: Tokens to draw by resampling.
        check: Called now and then; raises to stop.
    """
    chance = np.random.default_rng(20)
    live = Stream("live", chance)
    chains: list[tuple[list[Row], list[Row] | None]] = []
    for recorder, replay in runs:
        if recorder.sequence.transform.sampling.temperature == 0.0:
            continue
        rows, q = recorder.emitted_rows, replay.draft_rows
        for i, (token, p) in enumerate(zip(recorder.sequence.emitted, rows, strict=True)):
            live.add(token, p, None if q is None else q[i])
        if len(rows) > LONGEST + 1:
            chains.append(([cut(row) for row in rows], None if q is None else [cut(row) for row in q]))

    stream = Stream("rule", chance)
    stages = Stages(rule.name, chance) if not rule.reproducible and any(q is not None for _, q in chains) else None
    if chains:
        resample(rule, chains, resampled_tokens, stream, stages, check)

    groups: list[Stream | Stages] = [live, stream]
    if stages is not None:
        groups.append(stages)
    count = sum(len(group.tests(LEVEL)) for group in groups)
    level = LEVEL / max(count, 1)
    tests = [test for group in groups for test in group.tests(level)]
    distance, misplaced = draft_row_distance(runs)
    problems = [problem for recorder, _ in runs for problem in recorder.problems] + misplaced
    problems += _problems(tests, level, live, stream, stages)
    return Distribution(
        rule.name, len(live.uniform), len(stream.uniform), level, tuple(tests), distance, tuple(problems)
    )


def resample(
    rule: AcceptanceRule,
    chains: Many[tuple[Many[Row], Many[Row] | None]],
    tokens: int,
    stream: Stream,
    stages: Stages | None,
    check: Callable[[], None],
) -> None:
    """Play the rule over chains of (target rows, draft rows) that do not depend on what precedes.

    Draft lengths vary; every third stream, and all where there are no draft rows, has one-hot drafts.
    """
    for number in range(-(-tokens // STREAM)):
        if number % 256 == 0:
            check()
        p, q = chains[number % len(chains)]
        noise = Noise(1_000_003 * (number + 1))
        length = min(STREAM, len(p) - LONGEST)
        start = (number * 7) % (len(p) - LONGEST - length + 1)
        done = 0
        while done < length:
            at = start + done
            bound = noise.for_round(at)
            count = (number + done) % (LONGEST + 1)
            rows: list[Row] | None = None
            if q is not None and number % 3:
                rows = list(q[at : at + count])
                drafted = [rule.draft_token(row, bound, at + i) for i, row in enumerate(rows)]
            else:
                drafted = [_second(row) for row in p[at : at + count]]
            ruling = rule.verify(drafted, rows, p[at:].__getitem__, bound, at)
            if stages is not None and rows:
                stages.add(drafted, rows, p[at : at + count + 1], ruling.accepted, ruling.tokens[-1])
            for i, token in enumerate(ruling.tokens[: length - done]):
                stream.add(token, p[at + i], None if q is None else q[at + i])
            done += len(ruling.tokens)


def draft_row_distance(runs: Many[tuple[Recorder, Replay]]) -> tuple[float | None, list[Problem]]:
    """Draft rows as the rule was given them against those of a fresh draft cache at the same and the next positions."""
    distances: dict[int, list[float]] = {-1: [], 0: [], 1: []}
    for recorder, replay in runs:
        fresh, first = replay.draft_rows, recorder.sequence.prompt_length
        if fresh is None:
            continue
        for decision in recorder.decisions:
            # The rows up to the first token that was not kept stand on the text itself.
            for i, row in enumerate((decision.rows or ())[: decision.ruling.accepted + 1]):
                for shift, found in distances.items():
                    if 0 <= (at := decision.position + i + shift - first) < len(fresh):
                        found.append(total_variation(row, fresh[at]))
    if not distances[0]:
        return None, []
    mean = {shift: float(np.mean(found)) for shift, found in distances.items() if found}
    nearest = min(mean, key=lambda shift: mean[shift])
    if mean[0] > 2 * mean[nearest] and mean[0] > FAR_ROW / 2:
        message = (
            f"the draft rows given to the acceptance rule fit the position {'after' if nearest > 0 else 'before'} "
            f"their own: mean total variation {mean[nearest]:.2f} there, {mean[0]:.2f} at their own"
        )
        return mean[0], [Problem("distribution", Kind.DRAFT_ROW, message)]
    if mean[0] > FAR_ROW:
        message = (
            f"the draft rows given to the acceptance rule are {mean[0]:.2f} in total variation from the draft model's"
        )
        return mean[0], [Problem("distribution", Kind.DRAFT_ROW, message)]
    return mean[0], []


def _problems(tests: Many[Tested], level: float, live: Stream, stream: Stream, stages: Stages | None) -> list[Problem]:
    kinds = {name: kind for kind, name in _STAGES.items()}
    problems = []
    for test in tests:
        if test.p_value < level:
            kind = kinds.get(test.name.partition(": ")[2].partition(",")[0], Kind.DISTRIBUTION)
            message = f"{test.name}: p = {test.p_value:.2g} over {test.samples} samples (level {level:.1g})"
            problems.append(Problem("distribution", kind, message))
    for group in (live, stream):
        if group.impossible:
            message = f"{group.name}: {group.impossible} emitted tokens have probability 0 under the target's row"
            problems.append(Problem("distribution", Kind.DISTRIBUTION, message))
    for kind, count in (stages.impossible if stages is not None else {}).items():
        message = f"rule: {count} outcomes are impossible under the law of the stage: {kind.words}"
        problems.append(Problem("distribution", kind, message))
    return problems


def integral_transform(probs: Floats, order: Floats, at: int, uniform: float) -> float:
    """F(y-) + U·p(y) with tokens ordered by `order`, ties by index: uniform on (0, 1) where y ~ probs."""
    before = (order < order[at]) | ((order == order[at]) & (np.arange(len(order)) < at))
    return float(probs[before].sum() + uniform * probs[at])


def over(row: Row, ids: Ids) -> Floats:
    """Probabilities float64 [k] of `ids` under a row; 0 where it does not hold them."""
    at = np.minimum(np.searchsorted(row.ids, ids), len(row.ids) - 1)
    return np.where(row.ids[at] == ids, row.probs[at], 0.0)


def cut(row: Row) -> Row:
    """The row's likeliest tokens, renormalised."""
    if len(row.ids) <= LIKELIEST:
        return row
    keep = np.sort(np.argpartition(row.probs, len(row.probs) - LIKELIEST)[-LIKELIEST:])
    probs = row.probs[keep]
    return Row(row.ids[keep].copy(), probs / probs.sum())


def total_variation(p: Row, q: Row) -> float:
    """½ Σ|p - q| = Σ(p - q)+."""
    return float(np.maximum(p.probs - over(q, p.ids), 0.0).sum())


def _second(row: Row) -> int:
    """A token that is often, not always, right."""
    best = np.argsort(-row.probs, kind="stable")
    return int(row.ids[best[min(1, len(best) - 1)]])
