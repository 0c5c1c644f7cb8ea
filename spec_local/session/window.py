"""What of a conversation fits the context.

What a prompt shares with the last one stays in the models' caches by itself: an engine keeps what its slot holds. So
this module only has to keep prompts stable: it drops old turns seldom and several at once, because dropping one
changes everything behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spec_local.errors import ContextFullError
from spec_local.session.messages import Message
from spec_local.session.store_records import StoredMessage

Turns = list[Message]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a conversation that goes into a prompt."""

    first: int
    """Index of the first turn that is kept; the ones before it were dropped."""
    tokens: int
    """Length of the prompt."""


def fit(
    turns: Sequence[StoredMessage],
    count: Callable[[Turns], int],
    n_ctx: int,
    reserve: int,
    first: int = 0,
) -> Window:
    """Choose the newest turns that leave room for an answer; the last question is always among them.

    Where turns must go, the oldest questions go with their answers until half of the context is free, so that the
    following prompts can grow at their end, behind a prefix the caches know, instead of losing one turn each.

    Args:
        turns: Alternating, a question last.
        count: Tokens of a prompt made of these turns, template and system message included.
        n_ctx: Tokens a context holds.
        reserve: Tokens to leave for the answer.
        first: Turns dropped before, which stay dropped.

    Raises:
        ContextFullError: The last question alone is too long; the message says how long it is.
    """
    messages = [Message(role=turn.role, content=turn.prompt_text) for turn in turns]
    starts = [i for i, turn in enumerate(turns) if turn.role == "user"]
    first = max((i for i in starts if i <= first), default=0)
    tokens = count(messages[first:])
    if tokens + reserve <= n_ctx:
        return Window(first, tokens)
    fitting: Window | None = None
    for start in [i for i in starts if i > first]:
        tokens = count(messages[start:])
        if tokens + reserve <= n_ctx:
            fitting = fitting or Window(start, tokens)
            if tokens <= n_ctx // 2:
                return Window(start, tokens)
    if fitting is not None:
        return fitting
    if tokens > n_ctx - min(reserve, n_ctx // 8) - 1:
        raise ContextFullError(
            f"This message is too long: its prompt would be {tokens} tokens, and the context holds {n_ctx}, "
            "the answer included.",
            "Shorten it, or start with a larger --n-ctx.",
        )
    return Window(starts[-1], tokens)


def reserve_for(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens to leave for an answer: what was asked for, at most a quarter of the context."""
    return min(n_ctx // 4, max_tokens if max_tokens is not None else n_ctx)
