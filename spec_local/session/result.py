"""What a generation gives back: pieces while it runs, a `Result` at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from spec_local.llama.vocabulary import Vocabulary
from spec_local.sampling.logprobs import TokenLogprob
from spec_local.session.calls import ToolCall
from spec_local.speculation.round import Round
from spec_local.speculation.sequence import Finish, Limit
from spec_local.speculation.statistics import Statistics, summarise


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round added to the answer."""

    text: str
    """Whole characters; empty while a character or a possible stop string is incomplete."""
    tokens: tuple[int, ...]
    """The ids behind the round; the first `round.accepted` of them came from the draft."""
    round: Round | None
    """The record of the round; None for text released at the end."""
    thinking: str = ""
    """What was thought; it comes before the answer."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of tools that are complete."""
    thinking_tokens: int = 0
    """How many of `tokens`, the first ones, belong to what was thought."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall times of one request, in seconds."""

    load_s: float
    """Loading the models; spent once per engine."""
    prefill_s: float
    """Bringing the prompt into the caches."""
    ttft_s: float | None
    """From the request to the first token; None where none came."""
    thinking_s: float | None = None
    """From the first token to the end of thinking; None where nothing was thought."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation. `as_dict` is the object `generate --json` prints."""

    text: str
    token_ids: tuple[int, ...]
    """Every emitted token, an end token included."""
    finish_reason: Finish
    limit: Limit | None
    """Which limit ended it, where `finish_reason` is "length"."""
    seed: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were in the cache already."""
    timings: Timings
    rounds: tuple[Round, ...]
    speculation_state: str
    """on or off."""
    speculation_reason: str
    acceptance_rule: str
    sampling: dict[str, Any]
    """Every sampling value with its origin: {name: {"value", "origin"}}."""
    model: dict[str, Any]
    structure: Literal["complete", "cut"] | None = None
    """Whether the schema or grammar was followed to its end; None where there was none."""
    notices: tuple[str, ...] = ()
    reasoning: str = ""
    """What was thought before the answer."""
    reasoning_tokens: int = 0
    """Tokens of it, the tags around it included."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tools that are to be called."""
    logprobs: tuple[dict[str, Any], ...] | None = None
    """One entry per token where they were asked for, as `spell` makes them."""
    statistics: Statistics = field(init=False)
    """Figures of `rounds`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistics", summarise(self.rounds))

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of the command line, plain types only."""
        figures = self.statistics.as_dict()
        keep: tuple[str, ...] = (
            "sources",
            "rounds",
            "drafted",
            "tested",
            "accepted",
            "skipped",
            "acceptance_rate",
            "tokens_per_pass",
        )
        keep += ("per_position", "plain_tokens_per_s_estimate", "speedup_estimate")
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "tool_calls": [call.as_dict() for call in self.tool_calls],
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "limit": self.limit,
            **({} if self.structure is None else {"structure": self.structure}),
            "seed": self.seed,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": len(self.token_ids),
                "reasoning_tokens": self.reasoning_tokens,
            },
            "timings": {
                "load_s": self.timings.load_s,
                "prefill_s": self.timings.prefill_s,
                "ttft_s": self.timings.ttft_s,
                "thinking_s": self.timings.thinking_s,
                "decode_s": self.statistics.decode_s,
                "decode_tokens_per_s": self.statistics.tokens_per_s,
                "draft_s": self.statistics.draft_s,
                "verify_s": self.statistics.verify_s,
                "host_s": self.statistics.host_s,
            },
            "speculation": {
                "state": self.speculation_state,
                "reason": self.speculation_reason,
                "acceptance_rule": self.acceptance_rule,
                **{name: figures[name] for name in keep if name in figures},
            },
            "sampling": self.sampling,
            "model": self.model,
            "notices": list(self.notices),
            **({} if self.logprobs is None else {"logprobs": list(self.logprobs)}),
        }

    def summary(self) -> str:
        """One line for `--stats`."""
        s, parts = self.statistics, []
        parts.append(f"{len(self.token_ids)} tokens in {s.rounds} passes")
        if s.tokens_per_pass is not None:
            parts[-1] += f" ({s.tokens_per_pass:.2f} per pass)"
        if s.acceptance_rate is not None:
            parts.append(f"{s.acceptance_rate:.0%} of {s.tested} tested tokens accepted")
        if s.tokens_per_s is not None:
            parts.append(f"{s.tokens_per_s:.1f} tokens/s")
        if s.speedup_estimate is not None and s.tested:
            parts.append(f"about {s.speedup_estimate:.2f}× plain decoding")
        cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
        parts.append(f"prefill {self.prompt_tokens} tokens{cached} in {self.timings.prefill_s:.2f} s")
        parts.append(f"speculation {self.speculation_state} ({self.speculation_reason})")
        return "; ".join(parts)


def spell(entry: TokenLogprob, vocabulary: Vocabulary) -> dict[str, Any]:
    """A token's log-probabilities for JSON: {"token", "text", "logprob", "top": [{"token", "text", "logprob"}, ...]}.

    Where a token's bytes are no text by themselves (a part of a character), "bytes" lists them beside the text.
    """
    top = [_spell(token, logprob, vocabulary) for token, logprob in entry.top]
    return {**_spell(entry.token, entry.logprob, vocabulary), "top": top}


def _spell(token: int, logprob: float, vocabulary: Vocabulary) -> dict[str, Any]:
    piece = vocabulary.piece(token, special=True)
    try:
        return {"token": token, "text": piece.decode("utf-8"), "logprob": logprob}
    except UnicodeDecodeError:
        return {"token": token, "text": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": logprob}
