"""Engines for batches without model files: one that recites, and one that plays real rounds on toy models."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence as Many
from typing import Any

from spec_local.batch.requests import Recipe
from spec_local.errors import Aborted, BackendError, ContextFullError, UsageError
from spec_local.sampling import RULES, Noise, Transform
from spec_local.session.generation import Generation, Request
from spec_local.session.loop import Loop, Sink, Ticket
from spec_local.session.options import EngineOptions
from spec_local.session.result import Result, Timings
from spec_local.session.text_stream import TextStream
from spec_local.speculation.round import Round
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator

N_CTX = 4096
END = 0


def text_of(request: Request) -> str:
    """Everything a request says, as one text."""
    prompt = request.prompt
    body = prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt)
    return body if request.system is None else f"{request.system}\n{body}"


def recited(request: Request) -> str:
    """What `ScriptedEngine` answers."""
    return f"“{text_of(request)}” heißt {len(text_of(request))} ✓"


def finished(generation: Generation, model: str = "scripted") -> Result:
    sequence = generation.sequence
    assert sequence.finish is not None
    return Result(
        text=generation.stream.text,
        token_ids=tuple(sequence.emitted),
        finish_reason=sequence.finish,
        limit=sequence.limit,
        seed=generation.seed,
        prompt_tokens=sequence.prompt_length,
        cached_tokens=generation.cached_tokens,
        timings=Timings(0.0, generation.prefill_s, generation.ttft_s),
        rounds=tuple(sequence.rounds),
        speculation_state="on",
        speculation_reason="scripted",
        acceptance_rule=sequence.rule.name,
        sampling={},
        model={"target": model},
    )


class _Engine:
    """What both have of the real one."""

    notices: Many[str] = ()
    loop: Loop

    def __init__(self) -> None:
        self.options = EngineOptions()
        self.cancelled = False
        """A pass was stopped."""
        self.stopped = False
        """Passes are stopped now."""
        self.steps: list[list[int]] = []
        """Slots of every step."""
        self.closed = False

    def describe(self) -> dict[str, Any]:
        return {"target": "scripted", "target_path": "/no/such/file", "draft": None}

    def submit(self, request: Request, sink: Sink) -> Ticket:
        return self.loop.submit(self.prepare(request), sink)

    def result(self, generation: Generation) -> Result:
        return finished(generation)

    def prepare(self, request: Request) -> Generation:
        raise NotImplementedError

    def abort(self, stop: bool) -> None:
        self.stopped = stop
        self.cancelled |= stop

    def cancel(self) -> None:
        self.loop.cancel()

    def close(self) -> None:
        self.loop.close()
        self.closed = True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ScriptedEngine(_Engine):
    """Recites `recited(request)`, its bytes being the tokens, `per_step` of them in every step.

    A prompt that contains "EXPLODE" fails every step it takes part in, "REFUSE" cannot be prepared, "DEFECT" raises
    what no engine should, "FOREVER" never ends, "SLOWPREFILL" prefills until it is stopped.

    Args:
        per_step: Tokens in one step.
        delay_s: Seconds of one step.
    """

    def __init__(self, per_step: int = 8, delay_s: float = 0.0, slots: int = 8) -> None:
        super().__init__()
        self.per_step = per_step
        self.delay_s = delay_s
        self.broken = False
        """Every step fails."""
        self.loop = Loop(self, slots, self.abort)

    def prepare(self, request: Request) -> Generation:
        text = text_of(request)
        tokens = list(text.encode())
        if "REFUSE" in text:
            raise UsageError("The prompt was refused.")
        if "DEFECT" in text:
            raise KeyError("a defect")
        if len(tokens) >= N_CTX:
            raise ContextFullError(f"The prompt is {len(tokens)} tokens long; the context holds {N_CTX}.")
        sampling = request.sampling
        stream = TextStream(lambda token: bytes([token]), sampling.stop)
        sequence = Sequence(
            slot=-1,
            tokens=tokens,
            transform=Transform(sampling, 256, frozenset({END}), len(tokens)),
            draft_transform=Transform(sampling, 256, frozenset({END}), len(tokens)),
            noise=Noise(0),
            rule=RULES["coupled"],
            n_ctx=2 * N_CTX,
            max_tokens=sampling.max_tokens,
            end_ids=frozenset({END}),
            on_token=stream.push,
        )
        sequence.reading.done = "SLOWPREFILL" not in text
        sequence.state = text, recited(request).encode()
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        return Generation(request, sequence, stream, seed, {})

    def shared(self, slot: int, tokens: Many[int]) -> int:
        return 0

    def held(self, slot: int) -> int:
        return 0

    def step(self, sequences: Many[Sequence]) -> None:
        time.sleep(self.delay_s)
        if self.stopped:
            raise Aborted("A pass was stopped.")
        self.steps.append([sequence.slot for sequence in sequences])
        if self.broken or any("EXPLODE" in sequence.state[0] for sequence in sequences):
            raise BackendError("The pass failed.")
        for sequence in sequences:
            text, answer = sequence.state
            if not sequence.reading.done:
                time.sleep(0.001)
                continue
            done = len(sequence.emitted)
            tokens = [*answer, END][done : done + self.per_step]
            if "FOREVER" in text:
                tokens = list(b"....")
            emitted = sequence.emit(tokens)
            sequence.rounds.append(
                Round(
                    "model",
                    len(tokens),
                    len(tokens),
                    len(tokens),
                    emitted - 1,
                    emitted,
                    0.001,
                    0.002,
                    0.0,
                    "",
                    len(sequences),
                )
            )


class ToyEngine(_Engine):
    """Real sequences and real rounds over toy models; a character of the prompt is a token.

    Args:
        speculator: Over models of `n_vocab` tokens.
        n_vocab: Entries of their rows.
        rule: Acceptance rule.
    """

    def __init__(self, speculator: Speculator, n_vocab: int, rule: str = "coupled", slots: int = 8) -> None:
        super().__init__()
        self.loop = Loop(self, slots, self.abort)
        self.speculator = speculator
        self.n_vocab = n_vocab
        self.rule = rule

    def prepare(self, request: Request) -> Generation:
        tokens = [ord(c) % (self.n_vocab - 1) + 1 for c in text_of(request)]
        sampling = request.sampling
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        stream = TextStream(lambda token: bytes([96 + token]), sampling.stop)
        transform = Transform(sampling, self.n_vocab, frozenset({END}), len(tokens))
        sequence = Sequence(
            slot=-1,
            tokens=tokens,
            transform=transform,
            draft_transform=transform,
            noise=Noise(seed, tokens),
            rule=RULES[self.rule],
            n_ctx=self.speculator.target.n_ctx,
            max_tokens=sampling.max_tokens,
            end_ids=frozenset({END}),
            on_token=stream.push,
        )
        return Generation(request, sequence, stream, seed, {})

    def shared(self, slot: int, tokens: Many[int]) -> int:
        return self.speculator.shared(slot, tokens)

    def held(self, slot: int) -> int:
        return self.speculator.held(slot)

    def step(self, sequences: Many[Sequence]) -> None:
        self.steps.append([sequence.slot for sequence in sequences])
        self.speculator.step(sequences)


def recipe(**values: Any) -> Recipe:
    """A recipe over the scripted model."""
    return Recipe(model={"target": "scripted"}, **values)
