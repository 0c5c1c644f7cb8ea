"""An engine for measurements: real rounds over toy models whose passes take a known time on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Many
from types import SimpleNamespace
from typing import Any

from toy_model import Table, ToyModel

from spec_local.drafting.drafter import Drafter
from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.text import TextDrafter
from spec_local.drafting.vocabulary_map import VocabularyMap
from spec_local.errors import Aborted
from spec_local.language_model import Chunk, Logits
from spec_local.sampling import RULES, Noise, Transform
from spec_local.session.generation import Generation, Request
from spec_local.session.loop import Loop
from spec_local.session.options import EngineOptions
from spec_local.session.text_stream import TextStream
from spec_local.speculation.controller import FixedController
from spec_local.speculation.cost import Curve
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator

N_VOCAB = 24
END = 0
TARGET_S = {1: 0.100, 2: 0.110, 4: 0.130, 8: 0.170, 16: 0.250}
DRAFT_S = {1: 0.010, 16: 0.040}


class Clock:
    """Seconds that pass only where something takes them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TimedModel(ToyModel):
    """A toy model whose pass over n tokens takes `curve` seconds."""

    def __init__(self, table: Table, clock: Clock, seconds: Mapping[int, float], max_rows: int) -> None:
        super().__init__(table, table.n_vocab, n_ctx=512, n_batch=64)
        self.options = SimpleNamespace(max_rows=max_rows)
        self.width: Callable[[int], int] = int
        self.curve = Curve(seconds)
        self.stopped = False
        self._clock = clock

    def decode(self, chunks: Many[Chunk]) -> list[Logits]:
        if self.stopped:
            raise Aborted("stopped")
        self._clock.now += self.curve.seconds(sum(len(chunk.tokens) for chunk in chunks))
        return super().decode(chunks)


class TimedEngine:
    """What a measurement uses of the real engine.

    Args:
        sources: Drafters there are.
        rule: Acceptance rule.
        noise: How far the draft's logits are from the target's: 0.0 always agrees.
        target_s: Seconds of a target pass by rows.
        draft_s: Seconds of a draft pass by rows.
    """

    def __init__(
        self,
        sources: Many[str] = ("model", "text"),
        rule: str = "coupled",
        noise: float = 0.4,
        target_s: Mapping[int, float] = TARGET_S,
        draft_s: Mapping[int, float] = DRAFT_S,
    ) -> None:
        self.clock = Clock()
        self.options = EngineOptions(acceptance=rule, threads=1)
        self.n_ctx = 512
        self.notices: list[str] = []
        self.cancelled = False
        self.closed = False
        self.prepared: list[Request] = []
        table = Table(N_VOCAB, seed=1, scale=2.0)
        draft_table = Table(N_VOCAB, seed=2, scale=noise, near=table)
        target = TimedModel(table, self.clock, target_s, self.options.max_rows)
        self.draft_table = draft_table
        draft = TimedModel(draft_table, self.clock, draft_s, 1) if "model" in sources else None
        vocabulary = None if draft is None else VocabularyMap(N_VOCAB, N_VOCAB)
        self.loaded = SimpleNamespace(target=target, draft=draft, vocabulary_map=vocabulary)
        drafters: dict[str, Drafter] = {} if draft is None else {"model": ModelDrafter(draft)}
        if "text" in sources:
            drafters["text"] = TextDrafter()
        self.speculator = Speculator(target, drafters, FixedController((), 0), clock=self.clock)
        self.loop = Loop(self, 1, self._abort, self.clock)

    def tokenize(self, request: Request) -> tuple[list[int], list[str]]:
        assert isinstance(request.prompt, str)
        return [ord(c) % (N_VOCAB - 1) + 1 for c in f"{request.system or ''}{request.prompt}"], []

    def prepare(self, request: Request) -> Generation:
        self.prepared.append(request)
        tokens, _ = self.tokenize(request)
        sampling = request.sampling
        stream = TextStream(lambda token: bytes([96 + token]), sampling.stop)
        transform = Transform(sampling, N_VOCAB, frozenset({END}), len(tokens))
        sequence = Sequence(
            slot=-1,
            tokens=tokens,
            transform=transform,
            draft_transform=transform,
            noise=Noise(sampling.seed or 0),
            rule=RULES[self.options.acceptance],
            n_ctx=self.n_ctx,
            max_tokens=sampling.max_tokens,
            end_ids=frozenset({END}),
            on_token=stream.push,
        )
        return Generation(request, sequence, stream, 0, {})

    def step(self, sequences: Many[Sequence]) -> None:
        self.speculator.step(sequences)

    def shared(self, slot: int, tokens: Many[int]) -> int:
        return self.speculator.shared(slot, tokens)

    def held(self, slot: int) -> int:
        return self.speculator.held(slot)

    def _abort(self, stop: bool) -> None:
        for model in (self.loaded.target, self.loaded.draft):
            if model is not None:
                model.stopped = stop

    def describe(self) -> dict[str, Any]:
        return {"target": "toy", "draft": "toy-draft" if self.loaded.draft else None}

    def cancel(self) -> None:
        self.cancelled = True
        self.loop.cancel()

    def close(self) -> None:
        self.closed = True
