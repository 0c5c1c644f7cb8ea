"""One stream of tokens: ids, sampling state, budget, ends, and the records of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any, Literal

from spec_local.errors import SpecLocalError
from spec_local.sampling.acceptance import AcceptanceRule
from spec_local.sampling.constraint import Constraint, Walk
from spec_local.sampling.logprobs import TokenLogprob
from spec_local.sampling.noise import Noise
from spec_local.sampling.transform import Transform
from spec_local.speculation.round import Round

Finish = Literal["stop", "length", "cancelled", "error"]
Limit = Literal["max_tokens", "context"]


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and emitted tokens of one stream.

    Between rounds the target's cache holds exactly `tokens[:-1]`, or a prefix of it where it came back to a mark.
    """

    slot: int
    """Its cache slot in every model."""
    tokens: list[int]
    """Prompt (at least one id), then everything emitted, an end token included."""
    transform: Transform
    """Makes target rows."""
    draft_transform: Transform
    """Makes draft rows; its vocabulary is what both models share."""
    noise: Noise
    rule: AcceptanceRule
    n_ctx: int
    """Prompt and emitted tokens together never exceed this."""
    max_tokens: int | None = None
    """Most tokens to emit; None: as many as the context holds."""
    end_ids: frozenset[int] = frozenset()
    on_token: Callable[[int], bool] | None = None
    """Told every emitted token but the end token, in order; True ends the stream there (a stop string is complete)."""
    speculate: bool = True
    """False: plain decoding for this stream."""
    top_logprobs: int | None = None
    """Keep the log-probability of every emitted token and of this many likeliest ones; None: of none."""
    state: Any = None
    """What the controller remembers of it; None before its first round."""
    constraint: Constraint | None = None
    """A grammar the answer follows; moved by emitted tokens only."""
    read_ahead: int = 0
    """Tokens of the prompt that were read together with other prompts, before this one's turn."""
    rounds: list[Round] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One entry per emitted token where `top_logprobs` asks for it."""
    finish: Finish | None = None
    limit: Limit | None = None
    """Which limit ended it, where `finish` is "length"."""
    error: SpecLocalError | None = None
    prompt_length: int = field(init=False)
    walk: Walk | None = field(init=False)
    """What the grammar admits from here on; None without one."""

    def __post_init__(self) -> None:
        assert self.tokens, "a sequence starts with at least one token"
        self.prompt_length = len(self.tokens)
        self.walk = None if self.constraint is None else Walk(self.constraint)
        self._check_limits()

    @property
    def emitted(self) -> list[int]:
        """Tokens emitted so far."""
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        room = self.n_ctx - len(self.tokens)
        if self.max_tokens is not None:
            room = min(room, self.prompt_length + self.max_tokens - len(self.tokens))
        return max(0, room)

    def emit(self, tokens: Tokens[int]) -> int:
        """Append tokens one by one until an end; what lies behind the end never becomes part of the stream.

        Returns:
            How many were taken.
        """
        for count, token in enumerate(tokens, 1):
            self.tokens.append(token)
            if self.constraint is not None and token not in self.end_ids:
                admitted = self.constraint.advance(token)
                assert admitted, "the row held a token that the grammar does not admit"
                self.walk = Walk(self.constraint)
            if token in self.end_ids or (self.on_token is not None and self.on_token(token)):
                self.finish = "stop"
            else:
                self._check_limits()
            if self.finish:
                return count
        return len(tokens)

    def cancel(self) -> None:
        """End the stream here, unless it has ended already."""
        self.finish = self.finish or "cancelled"

    def fail(self, error: SpecLocalError) -> None:
        """End the stream with an error, unless it has ended already."""
        if self.finish is None:
            self.finish, self.error = "error", error

    def _check_limits(self) -> None:
        if self.max_tokens is not None and len(self.tokens) - self.prompt_length >= self.max_tokens:
            self.finish, self.limit = "length", "max_tokens"
        elif len(self.tokens) >= self.n_ctx:
            self.finish, self.limit = "length", "context"
