"""Plays one prompt under one arm over an engine that stays loaded, and keeps the records.

What is timed apart: reading the prompt into the target's cache (once for all arms), reading it into the draft's cache
(by every arm that uses the draft model, which starts cold each time), and decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass, replace

from spec_local.bench.arms import Arm
from spec_local.bench.curves import Clock, Curves
from spec_local.bench.workloads import BenchPrompt
from spec_local.drafting.draft import MODEL_SOURCE, TEXT_SOURCE
from spec_local.drafting.drafter import Drafter
from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.text import TextDrafter
from spec_local.errors import Aborted, BackendError
from spec_local.language_model import Chunk, LanguageModel, Logits, Memory
from spec_local.sampling.params import Sampling
from spec_local.session.engine import Engine
from spec_local.session.generation import Generation, Request
from spec_local.speculation.round import Round
from spec_local.speculation.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Played:
    """One answer."""

    tokens: tuple[int, ...]
    """Emitted ids."""
    rounds: tuple[Round, ...]
    """Its rounds, without the draft's reading of the prompt."""
    prefill_s: float
    """Seconds of reading the whole prompt into the target's cache, measured before the first arm of this prompt."""
    draft_prefill_s: float
    """Seconds of reading the prompt into the draft's cache; 0.0 where the draft model was not used."""
    ttft_s: float
    """Seconds from the request to the first tokens: both readings, as far as they came before, and the first round."""


class Player:
    """Plays arms over one engine.

    Args:
        engine: The engine; whoever made the player closes it afterwards.
        arms: The arms; each gets one controller, which learns from answer to answer as in a session.
        curves: What passes cost; where controllers start.
        clock: Seconds, monotonic.
        cancelled: Asked between rounds; True stops with `Aborted`.
    """

    def __init__(
        self,
        engine: Engine,
        arms: Many[Arm],
        curves: Curves,
        clock: Clock = time.perf_counter,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._cancelled = cancelled
        self._prefill_s = 0.0
        self.sequence: Sequence | None = None
        """The sequence behind the last answer, finished; kept apart, since it is large."""
        speculator = engine.speculator
        self._model: PromptTimed | None = None
        self._drafters: dict[str, Drafter] = {}
        if MODEL_SOURCE in speculator.drafters and engine.loaded.draft is not None:
            speculator.release(0)
            self._model = PromptTimed(engine.loaded.draft, clock)
            self._drafters[MODEL_SOURCE] = ModelDrafter(
                self._model, engine.loaded.draft.options.max_rows, engine.loaded.vocabulary_map
            )
        if TEXT_SOURCE in speculator.drafters:
            self._drafters[TEXT_SOURCE] = TextDrafter()
        longest = max(1, engine.options.longest_draft)
        costs = curves.profile().with_memory(engine.loaded.target.memory)
        self._controllers = {arm.name: arm.controller(costs, longest) for arm in arms}

    def read(self, prompt: BenchPrompt) -> float:
        """Read a prompt from nothing into the target's cache, where the arms will find it; returns the seconds."""
        self.engine.speculator.drafters = {}  # they read it when an arm wants it
        self.engine.speculator.release(0)
        generation = self.engine.prepare(self._request(prompt, Sampling(max_tokens=1)))
        self._play(generation)
        self._prefill_s = generation.prefill_s
        return self._prefill_s

    def play(self, arm: Arm, prompt: BenchPrompt, sampling: Sampling) -> Played:
        """Answer the prompt that was read last.

        Raises:
            Aborted: The person asked to stop.
            SpecLocalError: The answer could not be finished.
        """
        engine, speculator = self.engine, self.engine.speculator
        speculator.drafters = {source: self._drafters[source] for source in arm.sources}
        speculator.controller = self._controllers[arm.name]
        for drafter in self._drafters.values():  # what an earlier arm read or indexed is no gift to this one
            drafter.forget(0, 0)
        generation = engine.prepare(self._request(prompt, sampling))
        sequence = self.sequence = generation.sequence
        if self._model is not None:
            self._model.prompt_length = sequence.prompt_length
        sequence.reading.computed = sequence.prompt_length - 1  # `read` did it for all arms, but it is no gift either
        rounds: list[Round] = []
        ttft_s = 0.0
        draft_prefill_s = 0.0

        def heed() -> None:
            """What the last pass brought, with the reading of the prompt told from drafting."""
            nonlocal ttft_s, draft_prefill_s
            read_s = 0.0 if self._model is None else self._model.take_prompt_s()
            if len(sequence.rounds) > len(rounds):
                last = sequence.rounds[-1]
                rounds.append(replace(last, draft_s=max(0.0, last.draft_s - read_s)))
                ttft_s = ttft_s or self._prefill_s + draft_prefill_s + last.seconds
            draft_prefill_s += read_s

        self._play(generation, heed)
        heed()
        for source, reason in speculator.off.items():
            raise BackendError(f"The {source} drafter failed during the measurement: {reason}.")
        return Played(
            tuple(sequence.emitted),
            tuple(rounds),
            self._prefill_s,
            draft_prefill_s,
            ttft_s,
        )

    def _play(self, generation: Generation, heed: Callable[[], None] = lambda: None) -> None:
        def between() -> None:
            heed()
            if self._cancelled():
                raise Aborted("The measurement was stopped.")

        self.engine.loop.play(generation, between)
        if generation.sequence.finish == "cancelled":
            raise Aborted("The measurement was stopped.")

    def _request(self, prompt: BenchPrompt, sampling: Sampling) -> Request:
        return Request(prompt.prompt, sampling, prompt.system)


class PromptTimed:
    """A language model that reads the prompt in a pass of its own, so that its seconds can be told from drafting.

    Args:
        model: The draft model; only slot 0 is used.
        clock: Seconds, monotonic.
    """

    def __init__(self, model: LanguageModel, clock: Clock) -> None:
        self.prompt_length = 1
        """Tokens before the answer. The last one belongs to the first draft step, not to the prompt's reading."""
        self._model = model
        self._clock = clock
        self._prompt_s = 0.0

    def take_prompt_s(self) -> float:
        """Seconds spent reading the prompt since this was asked last."""
        seconds, self._prompt_s = self._prompt_s, 0.0
        return seconds

    @property
    def n_vocab(self) -> int:
        return self._model.n_vocab

    @property
    def n_ctx(self) -> int:
        return self._model.n_ctx

    @property
    def n_batch(self) -> int:
        return self._model.n_batch

    @property
    def memory(self) -> Memory:
        return self._model.memory

    def foothold(self, seq: int, length: int) -> int:
        return self._model.foothold(seq, length)

    def mark(self, seq: int, ahead: int | None = None) -> None:
        self._model.mark(seq, ahead)

    def decode(self, chunks: Many[Chunk]) -> list[Logits]:
        (chunk,) = chunks
        of_prompt = min(self.prompt_length - 1 - self._model.length(chunk.seq), len(chunk.tokens) - chunk.rows)
        if of_prompt <= 0:
            return self._model.decode(chunks)
        started = self._clock()
        nothing = self._model.decode([Chunk(chunk.seq, chunk.tokens[:of_prompt], 0)])
        self._prompt_s += self._clock() - started
        rest = chunk.tokens[of_prompt:]
        return self._model.decode([Chunk(chunk.seq, rest, chunk.rows)]) if rest else nothing

    def length(self, seq: int) -> int:
        return self._model.length(seq)

    def trim(self, seq: int, length: int) -> None:
        self._model.trim(seq, length)
