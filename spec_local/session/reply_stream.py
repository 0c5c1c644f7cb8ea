"""Tokens in, parts of the reply out; stop strings hold for the answer alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from spec_local.llama.vocabulary import Vocabulary
from spec_local.session.calls import ToolCall, Tools
from spec_local.session.families import CHANNEL_TAGS, PYTHON_TAG, Calls, Thinking
from spec_local.session.reply import Event, State, make_parser
from spec_local.session.text_stream import TextStream


@dataclass(frozen=True, slots=True)
class Opening:
    """How a prompt leaves the reply to begin, and how it will be written."""

    thinking: Thinking | None = None
    calls: Calls | None = None
    tools: Tools = ()
    opened: bool = False
    """The prompt ends inside the block of thinking; of channels, inside the answer."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag that may mean something in the reply."""
        tags = [self.thinking.open, self.thinking.close] if self.thinking and not self.thinking.channels else []
        tags += CHANNEL_TAGS if self.thinking and self.thinking.channels else ()
        if self.calls and self.tools:
            tags += [self.calls.open or PYTHON_TAG, *([self.calls.close] if self.calls.close else [])]
        return tuple(tags)


class ReplyStream(TextStream):
    """Sorts emitted tokens into the parts of a reply.

    Args:
        vocabulary: Of the target.
        opening: How the reply begins.
        stops: Strings that end the answer; they are not part of it.
        salt: Makes the ids of calls differ from one reply to the next.
    """

    def __init__(
        self, vocabulary: Vocabulary, opening: Opening = Opening(), stops: Sequence[str] = (), salt: str = ""
    ) -> None:
        control, defined = vocabulary.marked if opening.tags else ({}, {})
        self._tag_of = {(control | defined)[tag]: tag for tag in opening.tags if tag in control or tag in defined}
        spelt = [tag for tag in opening.tags if tag not in self._tag_of.values()]
        # Forms with tags inside a call are read from its text, so there control tokens must have one.
        self._inner = frozenset(control.values()) if opening.calls and opening.tools else frozenset()
        self._parser = make_parser(
            opening.thinking, opening.calls, opened=opening.opened, spelt=spelt, tools=opening.tools
        )
        super().__init__(vocabulary.piece, stops)
        self._vocabulary = vocabulary
        self._salt = salt
        self._thoughts: list[str] = []
        self._fresh_thoughts: list[str] = []
        self._finished = False

    @property
    def state(self) -> State:
        """Where in the reply the last token was."""
        return self._parser.state

    @property
    def thinking(self) -> str:
        """What was thought so far."""
        return "".join(self._thoughts)

    def push(self, token: int) -> bool:
        """Take one token; True where it completes a stop string."""
        before = self._parser.state
        tag = self._tag_of.get(token)
        if tag is not None:
            self._sort(self._parser.push(self._decoder.decode(b"", True)))
            self._decoder.reset()
            self._sort(self._parser.push_tag(tag, self._vocabulary.piece(token).decode("utf-8", "replace")))
        else:
            inside = token in self._inner and before is State.CALL
            self._sort(self._parser.push(self._decoder.decode(self._vocabulary.piece(token, special=inside))))
        after = self._parser.state
        self.thinking_tokens += State.THINKING in (before, after) or (after is State.HEADER and bool(self._thoughts))
        return self.stopped

    def take_thinking(self) -> str:
        """What was thought since the last call."""
        text = "".join(self._fresh_thoughts)
        self._fresh_thoughts.clear()
        return text

    def finish(self) -> None:
        """The reply ended: release what was held back; harmless when done twice."""
        if self._finished:
            return
        self._finished = True
        if not self.stopped:
            self._sort(self._parser.finish())
        super().finish()

    def _sort(self, events: Sequence[Event]) -> None:
        for event in events:
            if event[0] == "thinking":
                self._thoughts.append(event[1])
                self._fresh_thoughts.append(event[1])
            elif event[0] == "answer":
                if not self.stopped:
                    self.add(event[1])
            else:
                for name, arguments in event[1]:
                    seed = f"{self._salt}:{len(self.calls)}:{name}"
                    self.calls.append(ToolCall(sha256(seed.encode()).hexdigest()[:9], name, arguments))
