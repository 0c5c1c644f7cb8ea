"""A scripted engine for the chat's tests: real rounds and results, tokens from a script, no model file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_local.errors import ContextFullError, SpecLocalError
from spec_local.sampling.params import Sampling
from spec_local.session.generation import Request
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.result import Piece, Result, Timings
from spec_local.speculation.round import Round


@dataclass
class Play:
    """One answer: its tokens, and how they come."""

    tokens: Sequence[str] = ("Hello", ",", " world", ".")
    pattern: Sequence[tuple[int, int]] = ((0, 0),)
    """(tested, accepted) of the rounds, over and over; (0, 0) is a plain round."""
    delay: float = 0.0
    """Seconds per round."""
    error: SpecLocalError | Exception | None = None
    """Raised after the tokens."""
    gate: threading.Event | None = None
    """Waited for after the first round."""
    thoughts: Sequence[str] = ()
    """Tokens of thinking, before the others."""


@dataclass
class ScriptedEngine:
    """Answers with the plays of its script, one after the other; the last one again and again."""

    plays: list[Play] = field(default_factory=lambda: [Play()])
    n_ctx: int = 4096
    notices: list[str] = field(default_factory=list)
    name: str = "scripted-target"

    def __post_init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.active = 0
        self.most_active = 0
        self.closed = False
        self.cancels = 0
        self._words: list[str] = []
        self._ids: dict[str, int] = {}
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self.threads: set[int] = set()

    # -- the protocol ----------------------------------------------------------------------------------------------

    @property
    def vocabulary(self) -> ScriptedEngine:
        return self

    def piece(self, token: int) -> bytes:
        return self._words[token].encode()

    def tokenize(self, request: Request) -> tuple[list[int], list[str]]:
        """A token per word, and four for each message."""
        messages = list(request.prompt) if not isinstance(request.prompt, str) else []
        words = sum(len(str(m["content"]).split()) + 4 for m in messages) + len((request.system or "").split())
        return [0] * words, []

    def complete(self, sampling: Sampling) -> tuple[Sampling, dict[str, str]]:
        return sampling.model_copy(update={"top_k": 20}), {"top_k": "model file"}

    def describe(self) -> dict[str, Any]:
        return {
            "target": self.name,
            "draft": "scripted-draft",
            "drafters": ["model", "text"],
            "n_ctx": self.n_ctx,
            "pad_width": 0,
        }

    def stream(
        self,
        prompt: Any,
        *,
        sampling: Sampling | None = None,
        system: str | None = None,
        raw: bool = False,
        speculate: bool = True,
        reply: ReplyOptions | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> ScriptedStream:
        tokens, _ = self.tokenize(Request(prompt, system=system))
        if len(tokens) >= self.n_ctx:
            raise ContextFullError(f"The prompt is {len(tokens)} tokens long.")
        play = self.plays[min(len(self.requests), len(self.plays) - 1)]
        self.requests.append(
            {
                "prompt": [dict(m) for m in prompt],
                "sampling": sampling,
                "system": system,
                "speculate": speculate,
                "reply": reply,
            }
        )
        self._stop.clear()
        return ScriptedStream(self, play, sampling or Sampling(), speculate, len(tokens), on_prefill)

    def cancel(self) -> None:
        self.cancels += 1
        self._stop.set()

    def close(self) -> None:
        assert self.active == 0
        self.closed = True

    # -- for the stream --------------------------------------------------------------------------------------------

    def token(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]

    def enter(self, step: int) -> None:
        with self._guard:
            self.active += step
            self.most_active = max(self.most_active, self.active)
            self.threads.add(threading.get_ident())


class ScriptedStream:
    """`Stream` over a play."""

    def __init__(
        self,
        engine: ScriptedEngine,
        play: Play,
        sampling: Sampling,
        speculate: bool,
        prompt_tokens: int,
        on_prefill: Callable[[int, int], None] | None,
    ) -> None:
        self._engine, self._play, self._sampling, self._speculate = engine, play, sampling, speculate
        self._prompt_tokens = prompt_tokens
        self._on_prefill = on_prefill
        self._rounds: list[Round] = []
        self._emitted: list[int] = []
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._finish = "cancelled"
        self.notices: tuple[str, ...] = ()
        self._seed = 1234 if sampling.seed is None else sampling.seed
        self._played = self._play_it()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        return next(self._played)

    def _play_it(self) -> Generator[Piece, None, None]:
        self._engine.enter(1)
        try:
            yield from self._pieces()
        finally:
            self._engine.enter(-1)

    def _pieces(self) -> Iterator[Piece]:
        play, engine = self._play, self._engine
        if self._on_prefill is not None:
            self._on_prefill(self._prompt_tokens - 1, self._prompt_tokens - 1)
        limit = self._sampling.max_tokens
        words = [*play.thoughts, *play.tokens][:limit]
        at = number = 0
        pattern = play.pattern if self._speculate else ((0, 0),)
        while at < len(words):
            if play.delay:
                engine._stop.wait(play.delay)
            if number == 1 and play.gate is not None:
                while not play.gate.wait(0.01) and not engine._stop.is_set():
                    pass
            if engine._stop.is_set():
                return
            tested, accepted = pattern[number % len(pattern)]
            number += 1
            count = min(accepted + 1, len(words) - at)
            chunk, start = words[at : at + count], at
            at += count
            ids = tuple(engine.token(word) for word in chunk)
            record = Round(
                source="text" if tested else "none",
                width=1 + tested,
                drafted=tested,
                tested=min(tested, count) if tested else 0,
                accepted=min(accepted, count),
                emitted=count,
                draft_s=0.0,
                verify_s=max(play.delay, 0.01),
                host_s=0.0,
                reason="text repeats" if tested else "plain decoding: nothing was offered",
                plain_s=max(play.delay, 0.01),
            )
            self._rounds.append(record)
            self._emitted += ids
            thought = max(0, min(len(play.thoughts) - start, len(chunk)))
            self._thoughts += chunk[:thought]
            self._text += chunk[thought:]
            yield Piece("".join(chunk[thought:]), ids, record, "".join(chunk[:thought]), (), thought)
        if play.error is not None:
            raise play.error
        self._finish = "length" if limit is not None and at >= limit else "stop"

    def close(self) -> None:
        self._played.close()

    @property
    def result(self) -> Result:
        return Result(
            text="".join(self._text),
            token_ids=tuple(self._emitted),
            finish_reason=self._finish,  # type: ignore[arg-type]
            limit="max_tokens" if self._finish == "length" else None,
            seed=self._seed,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=0,
            timings=Timings(0.1, 0.05, 0.06, 2.0 if self._thoughts else None),
            reasoning="".join(self._thoughts),
            reasoning_tokens=len(self._thoughts),
            rounds=tuple(self._rounds),
            speculation_state="on" if self._speculate else "off",
            speculation_reason="text repeats",
            acceptance_rule="coupled",
            sampling={
                n: {"value": v, "origin": "default"}
                for n, v in self._sampling.model_dump(mode="json").items()
                if n != "seed"
            },
            model=self._engine.describe(),
        )


def loader(engine: ScriptedEngine, delay: float = 0.0) -> Callable[[Any, Callable[[str, float], bool]], ScriptedEngine]:
    """A loader that gives this engine."""

    def load(_options: Any, progress: Callable[[str, float], bool]) -> ScriptedEngine:
        progress("loading target scripted.gguf", 0.5)
        time.sleep(delay)
        engine.closed = False
        return engine

    return load
