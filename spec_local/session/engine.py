"""`Engine`: one target with its drafters, ready to answer. The façade of the Python API.

    import spec_local

    with spec_local.load() as engine:
        stream = engine.stream("Write a haiku about rivers")
        for piece in stream:
            print(piece.text, end="", flush=True)
        print(stream.result.statistics.tokens_per_pass)

An engine may be used from any thread: requests go to its loop (`session.loop`), which alone calls llama.cpp.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from spec_local.drafting.draft import GRAMMAR_SOURCE
from spec_local.errors import ContextFullError, UsageError
from spec_local.sampling import RULES, Noise, Sampling, Transform
from spec_local.session.assembly import make_controller, make_drafters
from spec_local.session.costs import forget_stale
from spec_local.session.generation import Generation, Prompt, Request
from spec_local.session.loading import Loaded, LoadProgress, load_models
from spec_local.session.loop import Loop, Sink, Ticket
from spec_local.session.memory import MemoryPlan
from spec_local.session.numerics import numerics
from spec_local.session.options import EngineOptions
from spec_local.session.prompts import Prompts
from spec_local.session.reply_constraint import reply_constraint
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.reply_stream import ReplyStream
from spec_local.session.result import Result, Timings, spell
from spec_local.session.stream import Stream
from spec_local.session.structured import Structure, Structures, outcome
from spec_local.speculation.policy import AdaptiveController
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator


def load(
    target: str | Path | None = None,
    *,
    draft: str | Path = "auto",
    options: EngineOptions | None = None,
    progress: LoadProgress | None = None,
) -> Engine:
    """Load a target and its draft.

    Args:
        target: Catalogue name or path of a GGUF file; None: the default pair.
        draft: Name or path, or "auto", "text", "none".
        options: Everything else; its own `target` and `draft` give way to these arguments.
        progress: Called with (what, fraction) while loading; return False to cancel.

    Raises:
        ModelError: A model cannot be found or used.
        BackendError: llama.cpp cannot run here.
        Aborted: `progress` said so.
    """
    chosen = {"draft": str(draft)} if draft != "auto" or options is None else {}
    if target is not None:
        chosen["target"] = str(target)
    options = (options or EngineOptions()).model_copy(update=chosen)
    loaded = load_models(options, progress)
    try:
        return Engine(loaded, progress)
    except BaseException:
        loaded.close()
        raise


class Engine:
    """Answers requests; see the module. Made by `load`."""

    def __init__(self, loaded: Loaded, progress: LoadProgress | None = None) -> None:
        self.options = options = loaded.options
        self._loaded = loaded
        self._target = loaded.target
        self.vocabulary = loaded.target.model.vocabulary
        self.end_ids = self.vocabulary.end_ids
        """Ids that end an answer."""
        self.n_ctx = loaded.target.n_ctx
        """Tokens one sequence can hold, prompt and answer together."""
        self.notices = list(loaded.notices)
        """What a person should know about how this engine was loaded."""
        self._structures = Structures(self.vocabulary)
        self._prompts = Prompts(loaded.target.model, options.chat_template)
        if self._prompts.broken is not None:
            self.notices.append(str(self._prompts.broken))
        drafters, self._off = make_drafters(loaded, self.notices)
        sources = [source for source in drafters if source != GRAMMAR_SOURCE]
        draft = loaded.draft
        self._description: dict[str, Any] = {
            "target": loaded.target_name,
            "target_path": str(loaded.target.model.path),
            "target_description": loaded.target.model.description,
            "draft": loaded.draft_name,
            "draft_path": None if draft is None else str(draft.model.path),
            "drafters": sources,
            "n_ctx": self.n_ctx,
            "pad_width": options.pad_width,
            "kernels": loaded.kernels.as_dict(),
            "caches": {
                "target": self._target.memory.kind.value,
                "draft": None if draft is None else draft.memory.kind.value,
            },
            **({"workers": [worker.endpoint for worker in loaded.workers]} if loaded.host is not None else {}),
        }
        self._speculator = Speculator(
            self._target, drafters, make_controller(loaded, sources, progress), max_rows=options.max_rows
        )
        self.loop = Loop(self._speculator, options.parallel, self._abort)
        """Answers the requests; whoever measures or checks may drive it by its `step` until the first `stream`."""
        self.numerics = numerics(loaded, options.longest_draft if drafters else 0, progress)
        """How far the numbers of wide passes are from those of one-row passes here."""

    # -- requests --------------------------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        system: str | None = None,
        raw: bool = False,
        speculate: bool = True,
        structure: Structure | None = None,
        reply: ReplyOptions | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Stream:
        """Answer `prompt`, piece by piece.

        Args:
            prompt: A user's text, a list of messages, or with `raw` the exact text to continue.
            sampling: How to draw; fields not set follow the model's recommendation.
            system: A system message.
            raw: Use no chat template.
            speculate: False for plain decoding.
            structure: A schema or grammar the answer follows, made by `structured.json_schema` or `structured.gbnf`.
            reply: Thinking, tools, and what the template is told.
            on_prefill: Called with (tokens done, tokens to do), in the thread that iterates.

        Raises:
            UsageError: The prompt is empty or does not fit the context.
            TemplateError: The chat template refuses the conversation.
        """
        options = reply or ReplyOptions()
        generation = self.prepare(Request(prompt, sampling or Sampling(), system, raw, speculate, structure, options))
        generation.sequence.live = True
        return Stream(self.loop, generation, self.result, on_prefill)

    def generate(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        system: str | None = None,
        raw: bool = False,
        speculate: bool = True,
        structure: Structure | None = None,
        reply: ReplyOptions | None = None,
    ) -> Result:
        """The same as `stream`, whole."""
        how = {"sampling": sampling, "system": system, "raw": raw, "speculate": speculate, "structure": structure}
        stream = self.stream(prompt, reply=reply, **how)  # type: ignore[arg-type]
        for _ in stream:
            pass
        return stream.result

    def cancel(self) -> None:
        """Stop everything that was asked for, within one pass: it ends as "cancelled"."""
        self.loop.cancel()

    # -- parts of a request, for callers that run several at once ----------------------------------------------------

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """Check and tokenise a request, and hand it to the loop; its events go to `sink`. Raises as `stream`."""
        return self.loop.submit(self.prepare(request), sink)

    def prepare(self, request: Request) -> Generation:
        """Check and tokenise a request; nothing is computed yet. Raises as `stream`."""
        self.loop.require_open()
        reading = self._prompts.read(request)
        tokens, notices = reading.tokens, reading.notices
        if not tokens:
            raise UsageError("The prompt is empty.", "Give a text with --prompt, --file or standard input.")
        if len(tokens) >= self.n_ctx:
            raise ContextFullError(
                f"The prompt is {len(tokens)} tokens long; the context holds {self.n_ctx}, the answer included.",
                "Shorten the prompt or use a larger --n-ctx.",
            )
        sampling, origins = self.complete(request.sampling, request.reply.thinking)
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        stream = ReplyStream(self.vocabulary, reading.opening, sampling.stop, f"{seed}:{len(tokens)}")
        constraint = reply_constraint(self._structures, self.vocabulary, request, reading.opening, self._prompts.source)
        ends = self.end_ids
        sequence = Sequence(
            slot=-1,
            tokens=tokens,
            transform=Transform(sampling, self._target.n_vocab, ends, len(tokens)),
            draft_transform=Transform(sampling.for_draft(), self._target.n_vocab, ends, len(tokens)),
            noise=Noise(seed, tokens),
            rule=RULES[self.options.acceptance],
            n_ctx=self.n_ctx,
            max_tokens=sampling.max_tokens,
            end_ids=ends,
            on_token=stream.push,
            speculate=request.speculate,
            top_logprobs=sampling.logprobs,
            constraint=constraint,
        )
        return Generation(request, sequence, stream, seed, origins, notices)

    def result(self, generation: Generation) -> Result:
        """What a finished generation amounts to."""
        sequence = generation.sequence
        assert sequence.finish is not None, "the generation is still running"
        generation.stream.finish()
        state, reason = self._speculation_state(generation)
        values = sequence.transform.sampling.model_dump(mode="json")
        return Result(
            text=generation.stream.text,
            token_ids=tuple(sequence.emitted),
            finish_reason=sequence.finish,
            limit=sequence.limit,
            seed=generation.seed,
            prompt_tokens=sequence.prompt_length,
            cached_tokens=generation.cached_tokens,
            timings=Timings(self._loaded.load_s, generation.prefill_s, generation.ttft_s, generation.thinking_s),
            rounds=tuple(sequence.rounds),
            speculation_state=state,
            speculation_reason=reason,
            acceptance_rule=sequence.rule.name,
            sampling={
                name: {"value": value, "origin": generation.sampling_origins.get(name, "default")}
                for name, value in values.items()
                if name != "seed"
            },
            model=self.describe(),
            structure=None
            if generation.request.structure is None
            else outcome(sequence.constraint, sequence.emitted, self.end_ids),
            notices=(*self.notices, *generation.notices),
            reasoning=generation.stream.thinking,
            reasoning_tokens=generation.stream.thinking_tokens,
            tool_calls=tuple(generation.stream.calls),
            logprobs=None
            if sequence.top_logprobs is None
            else tuple(spell(entry, self.vocabulary) for entry in sequence.logprobs),
        )

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> Loaded:
        """The models and their contexts, for measurements and checks; whoever uses them leaves the caches as found."""
        return self._loaded

    @property
    def memory(self) -> MemoryPlan:
        """What the models were estimated to take, and what was free."""
        return self._loaded.memory

    @property
    def speculator(self) -> Speculator:
        """Plays the rounds. Its drafters and its controller may be exchanged between two answers."""
        return self._speculator

    def tokenize(self, request: Request) -> tuple[list[int], list[str]]:
        """Token ids of a request's whole prompt, and notices about how they came about.

        Raises:
            UsageError: A raw prompt is no text.
            TemplateError: The chat template refuses the conversation.
        """
        return self._prompts.tokenize(request)

    def complete(self, sampling: Sampling, thinking: str = "auto") -> tuple[Sampling, dict[str, str]]:
        """Fill fields that were not set from the model's recommendation; returns where each value came from."""
        origins = dict.fromkeys(sampling.model_fields_set, "request")
        update: dict[str, object] = {}
        own = {**self._loaded.recommended, **(self._loaded.unthinking if thinking == "off" else {})}
        for name, (value, origin) in own.items():
            if name not in origins and name in Sampling.model_fields:
                update[name] = value
                origins[name] = origin
        return sampling.model_copy(update=update), origins

    def describe(self) -> dict[str, Any]:
        """What is loaded, for JSON."""
        memory = self._loaded.memory.as_dict()
        return {**self._description, "memory_estimate": memory, "numerics": self.numerics.as_dict()}

    # -- life ------------------------------------------------------------------------------------------------------

    def _abort(self, stop: bool) -> None:
        for context in self._loaded.contexts:
            context.abort(stop)

    def close(self) -> None:
        """Free all memory, after stopping a pass that runs in another thread; harmless when done twice."""
        self.loop.close()
        self._loaded.close()
        if isinstance(controller := self._speculator.controller, AdaptiveController):
            forget_stale(controller.costs)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _speculation_state(self, generation: Generation) -> tuple[str, str]:
        given_up = "; ".join(f"{source}: {reason}" for source, reason in self._speculator.off.items())
        if not generation.request.speculate:
            return "off", "switched off for this request"
        if not self._speculator.drafters.keys() - {GRAMMAR_SOURCE}:
            return "off", given_up or self._off
        rounds = generation.sequence.rounds
        return "on", (rounds[-1].reason if rounds else "nothing was generated") + (f" ({given_up})" if given_up else "")
