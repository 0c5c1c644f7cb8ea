"""The measurement: every arm answers every prompt, one after the other, in one process, on one loaded engine.

The arms take turns at each prompt, in an order that moves on from prompt to prompt, so that a machine that slows down
or wakes up meets all of them alike. Every answer has the same number of tokens: no end token may come earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from spec_local.bench.arms import LENGTHS, PLAIN, Arm, make_arms
from spec_local.bench.ceiling import ceiling, what_if
from spec_local.bench.curves import Clock, Curves, measure_curves
from spec_local.bench.player import Player
from spec_local.bench.results import Results, Run, collect
from spec_local.bench.trace_recording import draft_rows, record_trace, traceable
from spec_local.bench.traces import Trace
from spec_local.bench.workloads import BenchPrompt, Workload, count_prompts, prompts_used
from spec_local.errors import Aborted, UsageError
from spec_local.language_model import LanguageModel
from spec_local.sampling.params import Sampling
from spec_local.session.engine import Engine
from spec_local.session.generation import Request
from spec_local.speculation.sequence import Sequence as TokenSequence
from spec_local.words import counted

WARM_UP_TOKENS = 8
"""Tokens every arm answers before anything counts: pages are touched, threads run, kernels are chosen."""
ONE_REPEAT, FEWEST_TOKENS = 0.6, 12
"""Share of the time before a deadline that one repeat may take, and the tokens an answer has at least for that."""
PREFILL_ROW = 0.1
"""Seconds per prompt token in units of a one-row pass, for estimates of how long it will take."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What is measured."""

    workloads: tuple[Workload, ...]
    temperatures: tuple[float, ...] = (0.0, 0.8)
    lengths: tuple[int, ...] = LENGTHS
    """Fixed draft lengths."""
    alone: bool = True
    """Let every source work alone, too."""
    tokens: int = 64
    """Tokens of every answer."""
    repeats: int = 3
    seed: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    """Everything about sampling but temperature, seed and length."""
    minutes: float | None = 15.0
    """Prompts per workload are chosen so that it takes about this long; None takes all of them."""
    deadline_s: float | None = None
    """No repeat is begun that would probably end later than this after the start."""
    curve_repeats: int = 3
    given: int = 0
    """Prompts that `workloads` were chosen from, where those are not all of them."""

    def sampling_at(self, temperature: float) -> Sampling:
        """How answers at this temperature are drawn: all of them `tokens` long."""
        return self.sampling.model_copy(
            update={
                "temperature": temperature,
                "seed": self.seed,
                "max_tokens": self.tokens,
                "min_tokens": self.tokens,
                "stop": (),
                "logprobs": None,
            }
        )


def quick(settings: BenchSettings) -> BenchSettings:
    """The same in less than a minute on two cores: the shortest prompts of three kinds of text, three arms, T = 0."""
    typical = [w for w in settings.workloads if w.name in ("code", "edit", "chat")]
    chosen = [*typical, *(w for w in settings.workloads if w not in typical)][:3]
    short = [replace(w, prompts=(min(w.prompts, key=lambda p: len(str(p.prompt))),)) for w in chosen]
    return replace(
        settings,
        workloads=tuple(short),
        temperatures=settings.temperatures[:1],
        lengths=settings.lengths[1:2] or settings.lengths,
        alone=False,
        tokens=min(settings.tokens, 32),
        minutes=None,
        deadline_s=45.0,
        curve_repeats=2,
        given=max(settings.given, count_prompts(settings.workloads)),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """How far it is."""

    done: int
    """Answers given."""
    total: int
    """Answers to give."""
    what: str
    """What comes next."""


class Bench:
    """One measurement; `steps` carries it out, `results` may be asked for at any time after its first answer.

    Args:
        engine: A loaded engine with adaptive draft length; it is not used by anybody else meanwhile.
        settings: What to measure.
        clock: Seconds, monotonic.
        cancelled: Asked between rounds; True ends the measurement with what it has.

    Raises:
        UsageError: A prompt does not fit the context with its answer.
    """

    def __init__(
        self,
        engine: Engine,
        settings: BenchSettings,
        clock: Clock = time.perf_counter,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.runs: list[Run] = []
        self.traces: list[Trace] = []
        self.finished = False
        self.given = max(settings.given, count_prompts(settings.workloads))
        """Prompts there were to choose from."""
        self.plan = ""
        """How much will be measured and how long it should take, in words; empty until that is known."""
        self._clock = clock
        self._cancelled = cancelled
        self._curves: Curves | None = None
        self.sources = tuple(engine.speculator.drafters)
        self.arms = make_arms(self.sources, settings.lengths, settings.alone)
        for workload in settings.workloads:
            for prompt in workload.prompts:
                self._check_room(prompt)

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """What is measured; fewer prompts than at first where time is short."""
        return self.settings.workloads

    def steps(self) -> Iterator[Step]:
        """Measure; yields before every answer. Ends early, without an error, where it was cancelled."""
        started = self._clock()
        try:
            yield Step(0, 1, "what a pass costs")
            curves = self._curves = measure_curves(self.engine, self.settings.curve_repeats, self._clock)
            self._fit_to_time(curves)
            self.plan = self._plan(curves)
            with draft_rows(self.engine) as model:
                player = Player(self.engine, self.arms, curves, self._clock, self._cancelled)
                yield Step(0, self._total, "warming up")
                self._warm_up(player)
                yield from self._repeats(player, model, started)
            self.finished = True
        except Aborted:
            return

    def results(self) -> Results | None:
        """The figures so far; None before the first answer of plain decoding."""
        if self._curves is None or not self.runs:
            return None
        titles = [(w.name, w.title) for w in self.workloads]
        results = collect(self.arms, self.settings.temperatures, titles, self._curves, self.runs, self.finished)
        groups: dict[tuple[float, str], list[Trace]] = {}
        for trace in self.traces:
            groups.setdefault((trace.temperature, trace.kind), []).append(trace)
        for key, traces in groups.items():
            results.ceilings[key] = ceiling(traces, self._curves, self.sources)
        if self.traces and self.sources:
            results.what_if = what_if(self.traces, self._curves, self.sources)
        return results

    # -- the loop --------------------------------------------------------------------------------------------------

    def _repeats(self, player: Player, model: LanguageModel | None, started: float) -> Iterator[Step]:
        done = 0
        for repeat in range(self.settings.repeats):
            begun = self._clock()
            turn = repeat
            for workload in self.workloads:
                for prompt in workload.prompts:
                    yield Step(done, self._total, f"{workload.title}: reading the prompt")
                    player.read(prompt)
                    for temperature in self.settings.temperatures:
                        for arm in _rotated(self.arms, turn):
                            yield Step(done, self._total, _label(workload, arm, temperature, repeat))
                            played = player.play(arm, prompt, self.settings.sampling_at(temperature))
                            self.runs.append(Run(arm.name, workload.name, prompt.name, temperature, repeat, played))
                            done += 1
                            if arm.name == PLAIN and repeat == 0 and player.sequence is not None:
                                self._trace(model, player.sequence, f"{workload.name}/{prompt.name}", workload.name)
                        turn += 1
            now = self._clock()
            if self.settings.deadline_s is not None and (now - started) + (now - begun) > self.settings.deadline_s:
                return

    def _trace(self, model: LanguageModel | None, sequence: TokenSequence, name: str, kind: str) -> None:
        if self.sources and traceable(sequence) and len(sequence.emitted) > 1:
            self.traces.append(record_trace(model, sequence, name, kind))

    def _warm_up(self, player: Player) -> None:
        prompt = self.workloads[0].prompts[0]
        player.read(prompt)
        sampling = self.settings.sampling_at(self.settings.temperatures[0])
        few = min(WARM_UP_TOKENS, self.settings.tokens)
        for arm in self.arms:
            player.play(arm, prompt, sampling.model_copy(update={"max_tokens": few, "min_tokens": few}))

    # -- how much --------------------------------------------------------------------------------------------------

    @property
    def _total(self) -> int:
        return count_prompts(self.workloads) * len(self.arms) * len(self.settings.temperatures) * self.settings.repeats

    def estimate_s(self, curves: Curves) -> float:
        """About how many seconds the answers will take if no arm is faster or slower than plain decoding."""
        answers = self._total * self.settings.tokens * curves.target[1]
        lengths = [self._length(p) for w in self.workloads for p in w.prompts]
        reading = sum(lengths) * self.settings.repeats * PREFILL_ROW * curves.target[1]
        drafted = sum(arm.speculates for arm in self.arms) * len(self.settings.temperatures)
        return answers + reading * (1 + (curves.step or 0.0) * drafted)

    def _fit_to_time(self, curves: Curves) -> None:
        """Take fewer prompts of each workload, or shorter answers before a deadline, where it would take too long."""
        deadline_s = self.settings.deadline_s
        if deadline_s is not None:
            once = self.estimate_s(curves) / self.settings.repeats
            fitting = int(self.settings.tokens * ONE_REPEAT * deadline_s / once)
            tokens = min(self.settings.tokens, max(fitting, FEWEST_TOKENS))
            self.settings = replace(self.settings, tokens=tokens)
        minutes = self.settings.minutes
        if minutes is None:
            return
        everything = self.settings.workloads
        most = max(len(w.prompts) for w in everything)
        for count in range(most, 0, -1):
            self.settings = replace(self.settings, workloads=tuple(w.first(count) for w in everything))
            if self.estimate_s(curves) <= 60 * minutes:
                return

    def _plan(self, curves: Curves) -> str:
        prompts = prompts_used(count_prompts(self.workloads), self.given)
        temperatures, repeats = len(self.settings.temperatures), counted(self.settings.repeats, "repeat")
        if self.settings.deadline_s is not None and self.settings.repeats > 1:
            repeats = f"at most {repeats}"  # the deadline may come first
        seconds = self.estimate_s(curves)
        if self.settings.deadline_s is not None:
            seconds = min(seconds, self.settings.deadline_s)
        time_words = f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
        return (
            f"{prompts} × {counted(len(self.arms), 'arm')} × {counted(temperatures, 'temperature')} × {repeats} of "
            f"{self.settings.tokens} tokens: about {time_words}"
        )

    def _length(self, prompt: BenchPrompt) -> int:
        return len(self.engine.tokenize(Request(prompt.prompt, system=prompt.system))[0])

    def _check_room(self, prompt: BenchPrompt) -> None:
        length = self._length(prompt)
        if length + self.settings.tokens > self.engine.n_ctx:
            raise UsageError(
                f"The prompt {prompt.name!r} and an answer of {self.settings.tokens} tokens need "
                f"{length + self.settings.tokens} tokens; the context holds {self.engine.n_ctx}.",
                "Use a larger --n-ctx, or shorter prompts.",
            )


def _rotated(arms: Sequence[Arm], turn: int) -> list[Arm]:
    at = turn % len(arms)
    return [*arms[at:], *arms[:at]]


def _label(workload: Workload, arm: Arm, temperature: float, repeat: int) -> str:
    return f"{workload.title}, {arm.name}, temperature {temperature:g}, repeat {repeat + 1}"
