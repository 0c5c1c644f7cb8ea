"""What may come where in a reply: thinking is free, up to its budget; a schema or a call holds for what follows it.

`ReplyConstraint` is a constraint like any other to the layers below: a state moved by emitted tokens, forked for
drafted paths. So the draft is masked too, and what closes a block is a free draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import numpy as np

from spec_local.errors import UsageError
from spec_local.llama.vocabulary import Vocabulary
from spec_local.sampling.constraint import Constraint, Mask
from spec_local.session.families import Thinking
from spec_local.session.generation import Request
from spec_local.session.reply_stream import Opening
from spec_local.session.structured import Structures
from spec_local.session.tool_grammar import call_grammar, can_constrain

_FINAL = b"final"
_CLOSE_CHANNEL = "<|end|><|start|>assistant<|channel|>final<|message|>"
_OPEN_FINAL = "<|channel|>final<|message|>"


def reply_constraint(
    structures: Structures, vocabulary: Vocabulary, request: Request, opening: Opening, source: str
) -> Constraint | None:
    """What a request asks of its reply, or None where it asks for nothing.

    Args:
        structures: Of the vocabulary.
        vocabulary: Of the target.
        request: Its structure, its tools, its budget.
        opening: How the reply begins.
        source: Of the chat template.

    Raises:
        UsageError: A call is demanded that cannot be, or beside a schema.
    """
    options, tools, calls = request.reply, opening.tools, opening.calls
    tokens = {**vocabulary.marked[0], **vocabulary.marked[1]}
    start = None if request.structure is None else structures.start(request.structure)
    inner: Constraint | None = start
    demanded = options.demanded
    if demanded:
        if inner is not None:
            raise UsageError("A reply that must call a tool cannot follow a schema or grammar too.")
        if calls is None or not can_constrain(calls):
            raise UsageError(
                "This model cannot be made to call a tool: the form of its calls has no grammar here.",
                "Set tool_choice to auto.",
            )
        inner = structures.start(call_grammar(calls, demanded, tokens, source))
    strict = [tool for tool in tools if tool["function"].get("strict")]
    if inner is None and strict and calls is not None and can_constrain(calls) and calls.open in tokens:
        after = call_grammar(calls, tools, tokens, source, opened=True)
        inner = CallConstraint(vocabulary.size, tokens[calls.open], lambda: structures.start(after))
    budget = options.thinking_budget
    thinking = opening.thinking
    if thinking is None or (thinking.channels and opening.opened) or (inner is None and budget is None):
        return inner
    return ReplyConstraint(_Plan(vocabulary, thinking, budget), inner, opened=opening.opened)


class CallConstraint:
    """Everything is admitted, until a call begins; that follows its grammar.

    Args:
        n_vocab: Size of the vocabulary.
        opening: The token that begins a call.
        start: Makes the constraint of what follows it, its closing tag included.
    """

    def __init__(self, n_vocab: int, opening: int, start: Callable[[], Constraint]) -> None:
        self._free = _all(n_vocab)
        self._opening = opening
        self._start = start
        self._call: Constraint | None = None

    def allowed(self) -> Mask:
        return self._free if self._call is None else self._call.allowed()

    def advance(self, token: int) -> bool:
        if self._call is None:
            self._call = self._start() if token == self._opening else None
            return True
        return self._call.advance(token)

    def fork(self) -> CallConstraint:
        copy = CallConstraint(len(self._free), self._opening, self._start)
        copy._call = None if self._call is None else self._call.fork()
        return copy

    def legal(self, tokens: Sequence[int]) -> int:
        return _legal(self.fork(), tokens)

    def forced(self, limit: int) -> list[int]:
        return [] if self._call is None else self._call.forced(limit)


class _Phase(Enum):
    START = auto()
    """Nothing but whitespace came; the model may open a block of thinking."""
    THINKING = auto()
    CLOSING = auto()
    """Tokens that are certain: what closes the block, and what stands before the answer."""
    ANSWER = auto()


class _Plan:
    """What does not change along a reply.

    Args:
        vocabulary: Of the target.
        thinking: The family.
        budget: Most tokens of thinking.
    """

    def __init__(self, vocabulary: Vocabulary, thinking: Thinking, budget: int | None) -> None:
        self.vocabulary = vocabulary
        self.thinking = thinking
        self.budget = budget
        tokens = {**vocabulary.marked[0], **vocabulary.marked[1]}
        self.close = thinking.close.encode()
        self.open = thinking.open.encode()
        self.close_id = tokens.get(thinking.close)
        self.open_id = tokens.get(thinking.open)
        self.channel_id, self.message_id = tokens.get("<|channel|>"), tokens.get("<|message|>")
        self.end_id = tokens.get("<|end|>")
        self.free = _all(vocabulary.size)
        self.open_ended = self.free.copy()
        self.open_ended[list(vocabulary.end_ids)] = False
        self.open_ended.flags.writeable = False

    def spell(self, text: str) -> tuple[int, ...]:
        """Tokens of a text of tags."""
        return tuple(self.vocabulary.tokenize_inside(text, parse_special=True))

    @cached_property
    def gap(self) -> tuple[int, ...]:
        """What the model writes between its thoughts and its answer."""
        return self.spell(self.thinking.gap)

    @cached_property
    def tails(self) -> list[tuple[int, bytes]]:
        """Tokens that hold the last character of the closing tag with more than whitespace behind it."""
        last = self.close[-1:]
        found = []
        for token in range(self.vocabulary.size):
            piece = self.vocabulary.piece(token)
            if last in piece and piece.partition(last)[2].strip():
                found.append((token, piece))
        return found


@dataclass(slots=True)
class _State:
    phase: _Phase
    tail: bytes = b""
    """The last bytes of thinking: the closing tag may end in the next token."""
    count: int = 0
    """Tokens of thinking."""
    certain: tuple[int, ...] = ()
    header: bytes | None = None
    """Of channels: the name of the channel, while it is being written."""
    message: bool = False
    """Of channels: inside a message."""


class ReplyConstraint:
    """A block of thinking, then what `inner` admits.

    Args:
        plan: What does not change.
        inner: The constraint of the answer; None where only the budget matters.
        opened: The prompt ends inside the block.
    """

    def __init__(self, plan: _Plan, inner: Constraint | None, *, opened: bool, state: _State | None = None) -> None:
        self._plan = plan
        self._inner = inner
        if state is None:
            thinks = opened or plan.thinking.channels
            state = _State(_Phase.THINKING if thinks else _Phase.START)
            if state.phase is _Phase.START and inner is not None and plan.open_id is None:
                state.phase = _Phase.ANSWER  # a tag of several tokens cannot be told from the answer's first ones
            self._state = state
            self._spend()
        self._state = state

    def allowed(self) -> Mask:
        state, plan, inner = self._state, self._plan, self._inner
        if state.phase is _Phase.CLOSING:
            mask = np.zeros(len(plan.free), np.bool_)
            mask[state.certain[0]] = True
        elif state.phase is _Phase.ANSWER:
            return plan.free if inner is None else inner.allowed()
        elif state.phase is _Phase.THINKING:
            if inner is None:
                return plan.free
            barred = self._spoiling()
            if not barred:
                return plan.open_ended
            mask = plan.open_ended.copy()
            mask[barred] = False
        elif inner is None:
            return plan.free
        else:
            mask = inner.allowed().copy()
            if plan.open_id is not None:
                mask[plan.open_id] = True
        mask.flags.writeable = False
        return mask

    def advance(self, token: int) -> bool:
        state = self._state
        if state.phase is _Phase.CLOSING:
            if token != state.certain[0]:
                return False
            state.certain = state.certain[1:]
            if not state.certain:
                state.phase = _Phase.ANSWER
            return True
        if state.phase is _Phase.START and not self._opens(token):
            return True
        if state.phase is _Phase.ANSWER:
            return self._inner is None or self._inner.advance(token)
        if state.phase is _Phase.THINKING:
            return self._think(token)
        state.phase, state.tail = _Phase.THINKING, b""
        self._spend()
        return True

    def fork(self) -> ReplyConstraint:
        state = self._state
        copied = _State(state.phase, state.tail, state.count, state.certain, state.header, state.message)
        inner = None if self._inner is None else self._inner.fork()
        return ReplyConstraint(self._plan, inner, opened=False, state=copied)

    def legal(self, tokens: Sequence[int]) -> int:
        if self._state.phase is _Phase.ANSWER:
            return len(tokens) if self._inner is None else self._inner.legal(tokens)
        return _legal(self.fork(), tokens)

    def forced(self, limit: int) -> list[int]:
        if self._state.phase is _Phase.CLOSING:
            return list(self._state.certain[:limit])
        return self._inner.forced(limit) if self._state.phase is _Phase.ANSWER and self._inner is not None else []

    # -- steps -----------------------------------------------------------------------------------------------------

    def _opens(self, token: int) -> bool:
        """Whether a token at the start opens the block; where it begins the answer, that is noted."""
        state, plan = self._state, self._plan
        if token == plan.open_id:
            return True
        text = (state.tail + plan.vocabulary.piece(token)).lstrip()
        if self._inner is None and plan.open_id is None:
            if text.startswith(plan.open):
                return True
            if plan.open.startswith(text):
                state.tail = text
                return False
        elif self._inner is None and not text:
            return False
        state.phase = _Phase.ANSWER
        return self._inner is not None

    def _think(self, token: int) -> bool:
        state, plan = self._state, self._plan
        if self._inner is not None and token in plan.vocabulary.end_ids:
            return False
        state.count += 1
        piece = plan.vocabulary.piece(token)
        if plan.thinking.channels:
            return self._channel(token, piece)
        rest = b""
        if plan.close_id is not None:
            closed = token == plan.close_id
        else:
            _, tag, rest = (state.tail + piece).partition(plan.close)
            closed = bool(tag)
        state.tail = (state.tail + piece)[-max(len(plan.close), 4) :]
        if not closed:
            self._spend()
            return True
        state.phase = _Phase.ANSWER
        if self._inner is not None:
            if rest.strip():
                return False
            if not rest and plan.gap:
                state.phase, state.certain = _Phase.CLOSING, plan.gap
        return True

    def _channel(self, token: int, piece: bytes) -> bool:
        state, plan = self._state, self._plan
        if token == plan.channel_id:
            state.header = b""
        elif token == plan.message_id:
            name, state.header, state.message = (state.header or b"").split(), None, True
            if name[:1] == [_FINAL]:
                state.phase = _Phase.ANSWER
                return True
        elif state.header is not None:
            state.header += piece
        if token == plan.end_id:
            state.message = False
        self._spend()
        return True

    def _spend(self) -> None:
        """Close the block where the budget is used up; never in the middle of a character or of a header."""
        state, plan = self._state, self._plan
        if state.phase is not _Phase.THINKING or plan.budget is None or state.count < plan.budget:
            return
        if plan.thinking.channels:
            if state.header is None and state.message:
                state.certain = plan.spell(_CLOSE_CHANNEL)
            elif state.count == 0:
                state.certain = plan.spell(_OPEN_FINAL)
            else:
                return
        elif _ends_whole(state.tail):
            line_end = "\n" if plan.thinking.gap else ""
            state.certain = plan.spell(f"{line_end}{plan.thinking.close}{plan.thinking.gap}")
        else:
            return
        state.phase = _Phase.CLOSING

    def _spoiling(self) -> list[int]:
        """Tokens that would end the block with the beginning of an answer behind it, which no grammar could see."""
        plan, tail = self._plan, self._state.tail
        if plan.close_id is not None or plan.thinking.channels:
            return []
        if not any(tail.endswith(plan.close[:n]) for n in range(1, len(plan.close))):
            return [token for token, piece in plan.tails if plan.close in piece]
        return [token for token, piece in plan.tails if (tail + piece).partition(plan.close)[2].strip()]


def _all(n_vocab: int) -> Mask:
    mask = np.ones(n_vocab, np.bool_)
    mask.flags.writeable = False
    return mask


def _legal(constraint: Constraint, tokens: Sequence[int]) -> int:
    """How many of `tokens` this constraint takes; it is moved."""
    for count, token in enumerate(tokens):
        if not constraint.advance(token):
            return count
    return len(tokens)


def _ends_whole(data: bytes) -> bool:
    """Whether these bytes do not end inside a character."""
    for back, byte in enumerate(reversed(data[-4:]), 1):
        if byte & 0xC0 != 0x80:
            return back >= (1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return True
