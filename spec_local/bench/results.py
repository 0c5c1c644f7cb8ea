"""From runs to figures. Every rate comes from `summarise`; here only medians, ratios and means are taken of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_local.bench.arms import PLAIN, Arm
from spec_local.bench.curves import Curves
from spec_local.bench.player import Played
from spec_local.speculation.round import Round
from spec_local.speculation.statistics import Statistics, summarise


@dataclass(frozen=True, slots=True)
class Run:
    """One measured answer."""

    arm: str
    workload: str
    prompt: str
    temperature: float
    repeat: int
    """0 for the first repeat that counts; warm-up runs are not kept."""
    played: Played

    @property
    def key(self) -> tuple[float, str, str, int]:
        """What runs of different arms have in common when they answered the same thing one after the other."""
        return self.temperature, self.workload, self.prompt, self.repeat


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the repeats."""

    median: float
    """Median over the repeats; over all workloads, the geometric mean of their medians."""
    values: tuple[float, ...]
    """One per repeat, in order; at least one."""

    @property
    def least(self) -> float:
        return min(self.values)

    @property
    def most(self) -> float:
        return max(self.values)

    @property
    def factor(self) -> float:
        """How many times the least the most is."""
        return self.most / self.least

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return {"median": self.median, "min": self.least, "max": self.most, "values": list(self.values)}


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm at one temperature, on one workload or on all."""

    statistics: Statistics
    """Of all rounds of all repeats together."""
    tokens_per_s: Spread
    """Decode speed, reading of prompts excluded."""
    ratio: Spread
    """Speed / speed of plain decoding on the same prompts in the same repeat; 1.0 for plain. Over all workloads: their
    geometric mean."""
    answer_ratio: Spread
    """The same for whole answers: both readings of the prompt and decoding, plain's seconds / this arm's."""
    ttft_s: float
    """Median seconds to the first tokens."""
    prefill_s: float
    """Median seconds of reading a prompt into the target's cache."""
    draft_prefill_s: float
    """Median seconds of reading it into the draft's cache; 0.0 where the draft model was not used."""
    same_text: tuple[int, int]
    """(answers that are plain's, token by token; answers compared)."""

    @property
    def drafting_share(self) -> float:
        """About the most that drafting can have slowed this down: the drafter's share of the time, and a whole plain
        pass for each tested token, which is more than any row of a pass costs."""
        s = self.statistics
        return s.draft_s / s.decode_s + s.tested / s.emitted

    def as_dict(self) -> dict[str, Any]:
        """JSON; what does not exist is left out."""
        return {
            "tokens_per_s": self.tokens_per_s.as_dict(),
            "ratio": self.ratio.as_dict(),
            "answer_ratio": self.answer_ratio.as_dict(),
            "prefill_s": self.prefill_s,
            **({"draft_prefill_s": self.draft_prefill_s} if self.draft_prefill_s else {}),
            "ttft_s": self.ttft_s,
            "same_text": {"same": self.same_text[0], "compared": self.same_text[1]},
            "statistics": self.statistics.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the traces say about one kind of text at one temperature."""

    oracle: float
    """Speed of a policy that knows every outcome beforehand, with the measured costs, in units of plain decoding."""
    agreement: float | None
    """Share of positions at which the draft model's own token is the text's; None without a draft model."""
    tokens: int
    """Positions looked at."""

    def as_dict(self) -> dict[str, Any]:
        """JSON; what does not exist is left out."""
        return {
            "oracle_ratio": self.oracle,
            **({} if self.agreement is None else {"agreement": self.agreement}),
            "tokens": self.tokens,
        }


@dataclass(frozen=True, slots=True)
class Cell:
    """Which figures: arm, temperature, workload (None: all of them)."""

    arm: str
    temperature: float
    workload: str | None = None


@dataclass(slots=True)
class Results:
    """Everything that was measured, in the order of arms, temperatures and workloads as they were played."""

    arms: tuple[Arm, ...]
    temperatures: tuple[float, ...]
    workloads: tuple[tuple[str, str], ...]
    """(name, title)."""
    curves: Curves
    figures: dict[Cell, Figures] = field(default_factory=dict)
    ceilings: dict[tuple[float, str], Ceiling] = field(default_factory=dict)
    """By temperature and workload; none where acceptance depends on the policy."""
    what_if: dict[str, float] = field(default_factory=dict)
    """Speed against plain of the adaptive controller on the recorded traces, if something were different."""
    plain_repeats: Spread | None = None
    """Plain decoding's tokens/s over the repeats of one and the same answer: of the answer that swung more than half of
    them did. None where nothing was repeated."""
    repeats: int = 0
    """Repeats begun."""
    complete: bool = True
    """False where the measurement was stopped before its end."""

    def arm(self, name: str) -> Arm:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def get(self, arm: str, temperature: float, workload: str | None = None) -> Figures | None:
        """Figures, or None where nothing was measured."""
        return self.figures.get(Cell(arm, temperature, workload))

    def oracle(self, temperature: float) -> float | None:
        """Geometric mean of the oracle's ratio over the workloads; None without traces."""
        known = [c.oracle for (t, _), c in self.ceilings.items() if t == temperature]
        return geometric_mean(known) if known else None


def collect(
    arms: Sequence[Arm],
    temperatures: Sequence[float],
    workloads: Sequence[tuple[str, str]],
    curves: Curves,
    runs: Sequence[Run],
    complete: bool = True,
) -> Results:
    """All figures of these runs."""
    results = Results(tuple(arms), tuple(temperatures), tuple(workloads), curves, complete=complete)
    results.repeats = max((run.repeat + 1 for run in runs), default=0)
    plain = {run.key: run for run in runs if run.arm == PLAIN}
    results.plain_repeats = _plain_repeats(plain.values())
    for arm in arms:
        for temperature in temperatures:
            mine = [r for r in runs if r.arm == arm.name and r.temperature == temperature and r.key in plain]
            by_workload = {name: [r for r in mine if r.workload == name] for name, _ in workloads}
            present = {name: group for name, group in by_workload.items() if group}
            for name, group in present.items():
                results.figures[Cell(arm.name, temperature, name)] = _figures([group], plain)
            if present:
                results.figures[Cell(arm.name, temperature)] = _figures(list(present.values()), plain)
    return results


def _plain_repeats(runs: Iterable[Run]) -> Spread | None:
    """How steady the machine was. Other prompts and temperatures give other answers, so only repeats are compared."""
    answers: dict[tuple[float, str, str], list[float]] = {}
    for run in runs:
        answers.setdefault((run.temperature, run.workload, run.prompt), []).append(_speed([run]))
    swings = []
    for speeds in answers.values():
        if len(speeds) > 1:
            # From four repeats on without the outermost: else more repeats, which steady a median, would only widen it.
            outer = len(speeds) // 4
            inner = sorted(speeds)[outer : len(speeds) - outer]
            swings.append(Spread(statistics.median(inner), tuple(inner)))
    return sorted(swings, key=lambda swing: swing.factor)[len(swings) // 2] if swings else None


def _figures(groups: Sequence[Sequence[Run]], plain: dict[tuple[float, str, str, int], Run]) -> Figures:
    """Figures of one arm's runs, grouped by workload."""
    runs = [run for group in groups for run in group]
    repeats = sorted({run.repeat for run in runs})

    def of(group: Iterable[Run], repeat: int) -> list[Run]:
        return [run for run in group if run.repeat == repeat]

    def over_repeats(value: Callable[[list[Run], list[Run]], float]) -> Spread:
        """Spread of value(runs, plain's runs of the same prompts): by workload first, then their geometric mean."""
        by_group = [
            {repeat: value(part, [plain[r.key] for r in part]) for repeat in repeats if (part := of(group, repeat))}
            for group in groups
        ]
        middle = geometric_mean([statistics.median(found.values()) for found in by_group])
        each = [geometric_mean([found[repeat] for found in by_group if repeat in found]) for repeat in repeats]
        return Spread(middle, tuple(each))

    base = [plain[run.key] for run in runs]
    speeds = tuple(_speed(of(runs, repeat)) for repeat in repeats)
    return Figures(
        statistics=summarise(_rounds(runs)),
        tokens_per_s=Spread(statistics.median(speeds), speeds),
        ratio=over_repeats(lambda mine, its: _speed(mine) / _speed(its)),
        answer_ratio=over_repeats(lambda mine, its: _answer_speed(mine) / _answer_speed(its)),
        ttft_s=statistics.median(run.played.ttft_s for run in runs),
        prefill_s=statistics.median(run.played.prefill_s for run in runs),
        draft_prefill_s=statistics.median(run.played.draft_prefill_s for run in runs),
        same_text=(sum(r.played.tokens == b.played.tokens for r, b in zip(runs, base, strict=True)), len(runs)),
    )


def _rounds(runs: Iterable[Run]) -> list[Round]:
    return [r for run in runs for r in run.played.rounds]


def _speed(runs: Iterable[Run]) -> float:
    """Decoded tokens per second."""
    speed = summarise(_rounds(runs)).tokens_per_s
    assert speed is not None, "a run has rounds, and they took time"
    return speed


def _answer_speed(runs: Sequence[Run]) -> float:
    """Tokens per second with the reading of the prompts counted in."""
    figures = summarise(_rounds(runs))
    return figures.emitted / (figures.decode_s + sum(r.played.prefill_s + r.played.draft_prefill_s for r in runs))


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm; of at least one positive number."""
    return math.exp(sum(math.log(value) for value in values) / len(values))
