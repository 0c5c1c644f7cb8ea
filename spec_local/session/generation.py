"""One request on its way: prompt, sequence, text, the times it took, and the events it gives off."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence as Many
from dataclasses import dataclass, field

from spec_local.sampling.params import Sampling
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.result import Piece
from spec_local.session.structured import Structure
from spec_local.session.text_stream import TextStream
from spec_local.speculation.sequence import Sequence

Prompt = str | Many[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of an engine."""

    prompt: Prompt
    """A user's text, a whole conversation, or with `raw` the exact text to continue."""
    sampling: Sampling = field(default_factory=Sampling)
    system: str | None = None
    """A system message put before the conversation; a blank one asks for none, not even the template's own."""
    raw: bool = False
    """No chat template."""
    speculate: bool = True
    """False: plain decoding."""
    structure: Structure | None = None
    """A schema or grammar the answer follows."""
    reply: ReplyOptions = field(default_factory=ReplyOptions)
    """Thinking, tools, and what the template is told."""


@dataclass(slots=True, eq=False)
class Generation:
    """A request with its sequence and text. Made by `Engine.prepare`, moved by the loop."""

    request: Request
    sequence: Sequence
    stream: TextStream
    seed: int
    sampling_origins: dict[str, str]
    notices: list[str] = field(default_factory=list)
    ttft_s: float | None = None
    thinking_s: float | None = None
    """From the first token to the end of thinking."""
    started: float = field(default_factory=time.perf_counter)
    _taken: int = 0
    """Emitted tokens already handed out in pieces."""
    _thought: int = 0
    """Tokens of thinking already handed out."""
    _called: int = 0
    """Calls of tools already handed out."""

    @property
    def finished(self) -> bool:
        """Nothing more will be emitted."""
        return self.sequence.finish is not None

    @property
    def untold(self) -> int:
        """Emitted tokens that were in no piece yet."""
        return len(self.sequence.tokens) - self.sequence.prompt_length - self._taken

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the target did not have to compute."""
        reading = self.sequence.reading
        return self.sequence.prompt_length - 1 - max(reading.computed, reading.lacking) if reading.begun else 0

    @property
    def prefill_s(self) -> float:
        """Seconds of bringing the prompt into the caches: its share of the passes that read it."""
        return self.sequence.reading.seconds

    def piece(self) -> Piece:
        """What the last pass added."""
        tokens = self.sequence.emitted[self._taken :]
        self._taken += len(tokens)
        if tokens and self.ttft_s is None:
            self.ttft_s = time.perf_counter() - self.started
        if self.finished:
            self.stream.finish()
        rounds = self.sequence.rounds
        thought = self.stream.thinking_tokens - self._thought
        self._thought += thought
        if thought and self.ttft_s is not None:
            self.thinking_s = time.perf_counter() - self.started - self.ttft_s
        last = rounds[-1] if rounds and tokens else None
        calls = tuple(self.stream.calls[self._called :])
        self._called += len(calls)
        return Piece(self.stream.take(), tuple(tokens), last, self.stream.take_thinking(), calls, thought)


@dataclass(frozen=True, slots=True)
class Progress:
    """A part of the prompt was read."""

    done: int
    """Tokens computed so far."""
    total: int
    """Tokens to compute; what the cache held is no part of it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request; `generation.sequence.finish` says how it ended."""

    generation: Generation


Event = Progress | Piece | Finished
