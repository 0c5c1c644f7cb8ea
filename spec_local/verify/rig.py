"""Further contexts over an engine's own weights: padded, for replays, for fresh caches. Nothing is loaded twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence as Many
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from types import TracebackType

from spec_local.drafting.drafter import Drafter
from spec_local.drafting.model import ModelDrafter
from spec_local.errors import Aborted
from spec_local.language_model import Chunk
from spec_local.llama.model_context import ModelContext
from spec_local.sampling.params import Sampling
from spec_local.session.engine import Engine
from spec_local.session.generation import Request
from spec_local.speculation.controller import Controller, FixedController
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator
from spec_local.verify.recording import Recorder

ROWS = 8
"""Rows of the widest pass in replays of the draft model."""
_MOST_ROWS = 32
"""The same for the target, whose widest pass is as wide as drafts may be long."""


class Rig:
    """An engine to be checked, with the contexts that checks need.

    Args:
        engine: The engine; its caches are empty again when a check is done.
        n_ctx: Tokens the further contexts hold.
        pad_width: Rows of every pass of the padded context.
        cancelled: Asked between rounds; True stops with `Aborted`.
    """

    def __init__(self, engine: Engine, n_ctx: int, pad_width: int, cancelled: Callable[[], bool]) -> None:
        self.engine = engine
        self.n_ctx = min(n_ctx, engine.n_ctx)
        self.pad_width = pad_width
        self.widest = max(ROWS, min(engine.options.longest_draft + 1, _MOST_ROWS))
        """Rows of the widest target pass in replays."""
        self.vocabulary = engine.vocabulary
        self.cancelled = cancelled
        self._undo = ExitStack()
        self._prompt = ""

    # -- contexts, made when first needed ----------------------------------------------------------------------------

    @cached_property
    def padded_target(self) -> ModelContext:
        """The target, evaluating every pass with `pad_width` rows."""
        return self._context(self.engine.loaded.target, rows=self.pad_width, pad_width=self.pad_width)

    @cached_property
    def padded(self) -> Speculator:
        """Plays rounds over `padded_target`; its drafters and controller are set for each run."""
        return Speculator(self.padded_target, {}, FixedController((), 0), max_rows=self.pad_width)

    @cached_property
    def padded_draft(self) -> ModelDrafter | None:
        """The draft model for padded runs; None where there is none."""
        draft = self.engine.loaded.draft
        vocabulary = self.engine.loaded.vocabulary_map
        return None if draft is None else ModelDrafter(self._context(draft, rows=1), vocabulary=vocabulary)

    @cached_property
    def single(self) -> ModelContext:
        """The target, for evaluating one token at a time."""
        return self._context(self.engine.loaded.target, rows=self.widest)

    @cached_property
    def wide(self) -> ModelContext:
        """The target, for evaluating many tokens at a time."""
        return self._context(self.engine.loaded.target, rows=self.widest)

    @cached_property
    def draft(self) -> ModelContext | None:
        """The draft model with a cache of its own; None where there is none."""
        draft = self.engine.loaded.draft
        return None if draft is None else self._context(draft, rows=ROWS)

    def _context(self, like: ModelContext, rows: int, pad_width: int = 0) -> ModelContext:
        options = replace(like.options, n_ctx=self.n_ctx, n_seq=1, max_rows=rows, pad_width=pad_width)
        return self._undo.enter_context(_closing(like.sibling(options)))

    # -- runs ----------------------------------------------------------------------------------------------------------

    def play_padded(self, prompt: str, sampling: Sampling, drafters: Mapping[str, Drafter], length: int) -> Sequence:
        """One answer in padded passes, drafted by the first of `drafters` that offers something."""
        sequence = self.engine.prepare(Request(prompt, sampling)).sequence
        sequence.slot = 0
        speculator = self.padded
        speculator.drafters = dict(drafters)
        speculator.controller = FixedController(list(drafters), length)
        while sequence.finish is None:
            self.check_cancelled()
            speculator.step([sequence])
        if sequence.error is not None:
            raise sequence.error
        return sequence

    def play(
        self,
        prompt: str,
        sampling: Sampling,
        controller: Controller | None,
        drafters: Mapping[str, Drafter] | None = None,
    ) -> Recorder:
        """One ordinary answer of the engine, recorded; `controller` and `drafters` None leave it the engine's own.

        The prompt is prefilled whole, as replays do it, unless it is the last answer's prompt again: then it is not
        prefilled at all, as in an ordinary second answer.
        """
        engine = self.engine
        generation = engine.prepare(Request(prompt, sampling))
        if prompt != self._prompt:
            engine.speculator.release(0)
        self._prompt = prompt
        recorder = Recorder(generation.sequence)
        with _controlled(engine.speculator, controller, drafters):
            engine.loop.play(generation, self.check_cancelled)
        return recorder

    def start_over(self) -> None:
        """Empty the engine's caches after a run that broke off."""
        loaded = self.engine.loaded
        for context in (loaded.target, loaded.draft):
            if context is not None:
                context.trim(0, 0)
        self.engine.speculator.release(0)
        self._prompt = ""

    def check_cancelled(self) -> None:
        """Raise `Aborted` where the person asked to stop."""
        if self.cancelled():
            raise Aborted("The check was stopped.")

    def text(self, token: int) -> str:
        """A token as Python would write it."""
        return repr(self.vocabulary.text([token], special=True))

    def close(self) -> None:
        """Free the further contexts; the engine stays."""
        self._undo.close()

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def feed(context: ModelContext, tokens: Many[int]) -> None:
    """Append tokens to slot 0 as a prefill does: in whole batches, no logits."""
    for start in range(0, len(tokens), context.n_batch):
        context.decode([Chunk(0, tokens[start : start + context.n_batch], 0)])


@contextmanager
def _closing(context: ModelContext) -> Iterator[ModelContext]:
    try:
        yield context
    finally:
        context.close()


@contextmanager
def _controlled(
    speculator: Speculator, controller: Controller | None, drafters: Mapping[str, Drafter] | None
) -> Iterator[None]:
    own, others = speculator.controller, speculator.drafters
    speculator.controller = controller or own
    speculator.drafters = others if drafters is None else dict(drafters)
    try:
        yield
    finally:
        speculator.controller, speculator.drafters = own, others
