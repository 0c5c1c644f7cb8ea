"""A reply's parts: what was thought, what was answered, which tools were called.

A parser is fed text as it comes, in pieces of any length, and says at once what of it belongs to which part; only what
could still become a tag is held back. Text that merely looks like a tag stays text, and where a tag is a token of the
vocabulary, nothing but that token is the tag (`push_tag`). A block that was cut is still what it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import Literal

from spec_local.session.calls import Call, Tools, read
from spec_local.session.families import CHANNEL_TAGS, PYTHON_TAG, Calls, Thinking

Event = tuple[Literal["thinking", "answer"], str] | tuple[Literal["calls"], list[Call]]
"""A piece of text of one part, or whole calls."""


class State(Enum):
    """Where in a reply the parser is."""

    START = auto()
    """Nothing but whitespace came: a block of thinking may still open."""
    HEADER = auto()
    """In the header of a message of a channel."""
    THINKING = auto()
    GAP = auto()
    """Whitespace behind a block, which is part of nothing."""
    ANSWER = auto()
    CALL = auto()


class Parser:
    """The plain one, for unknown families: everything is the answer. Base of the others.

    Args:
        spelt: Tags that count where their text is read; the others come as tokens, through `push_tag`.
        tools: What may be called; without any, nothing is read as a call.
    """

    state = State.ANSWER

    def __init__(self, spelt: Collection[str] = (), tools: Tools = ()) -> None:
        self._spelt = frozenset(spelt)
        self._tools = tools
        self._held = ""
        self._space = ""
        """Whitespace that belongs to the part only if more of it follows."""
        self._body = ""
        """Text of the call that is being written."""
        self._events: list[Event] = []

    def push(self, text: str) -> list[Event]:
        """Take text that came; returns what became certain."""
        self._held += text
        while self._held:
            tags = [tag for tag in self._tags() if tag in self._spelt]
            found = min(((self._held.find(tag), -len(tag), tag) for tag in tags if tag in self._held), default=None)
            if found is None:
                break
            at, _, tag = found
            self._text(self._held[:at])
            self._held = self._held[at + len(tag) :]
            if tag in self._tags():
                self._enter(tag)
            else:  # the text before it changed what may come
                self._text(tag)
        longest = max((len(tag) for tag in self._tags() if tag in self._spelt), default=1) - 1
        keep = next(
            (
                n
                for n in range(min(longest, len(self._held)), 0, -1)
                if any(tag.startswith(self._held[-n:]) for tag in self._tags() if tag in self._spelt)
            ),
            0,
        )
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(certain) :]
        self._text(certain)
        return self._take()

    def push_tag(self, tag: str, text: str = "") -> list[Event]:
        """Take a tag that came as a token of its own.

        Args:
            tag: Its text.
            text: What is shown for it where it is no tag; empty for a control token.
        """
        self._text(self._held)
        self._held = ""
        if tag in self._tags():
            self._enter(tag)
        else:
            self._text(text)
        return self._take()

    def finish(self) -> list[Event]:
        """The reply has ended: what was held back is text of the part it is in."""
        self._text(self._held)
        self._held = ""
        self._end()
        return self._take()

    # -- what families differ in ---------------------------------------------------------------------------------

    def _tags(self) -> Sequence[str]:
        """Tags that mean something here."""
        return ()

    def _enter(self, tag: str) -> None:
        """A tag of `_tags` was read."""

    def _text(self, text: str) -> None:
        """Text that is no tag."""
        self._emit("answer", text)

    def _end(self) -> None:
        """The reply ends in this state."""
        self._release("answer")

    # -- parts -----------------------------------------------------------------------------------------------------

    def _emit(self, part: Literal["thinking", "answer"], text: str, *, trim: bool = False) -> None:
        """Text of a part; with `trim` whitespace at its end waits for what follows."""
        text = self._space + text
        self._space = ""
        if trim:
            kept = text.rstrip()
            self._space, text = text[len(kept) :], kept
        if text:
            self._events.append((part, text))

    def _release(self, part: Literal["thinking", "answer"]) -> None:
        self._emit(part, "")

    def _call(self, form: str, spelt: str, body: str) -> bool:
        """Calls that are complete; False, and text of the answer, where it is none."""
        calls = read(form, body, self._tools)
        if calls is None:
            self._emit("answer", spelt)
            return False
        self._space = ""
        self._events.append(("calls", calls))
        return True

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class TagParser(Parser):
    """Families that put tags around what is thought and called.

    Args:
        thinking: Its tags; None where nothing is thought.
        calls: Its tags; used where there are tools.
        opened: The prompt has opened the block of thinking.
        spelt, tools: As of `Parser`.
    """

    def __init__(
        self,
        thinking: Thinking | None,
        calls: Calls | None,
        opened: bool,
        spelt: Collection[str],
        tools: Tools,
    ) -> None:
        super().__init__(spelt, tools)
        self._thinking = thinking
        self._calls = calls if tools else None
        self._fresh = True
        """Nothing of this block came yet."""
        self._label = thinking.label if thinking else ""
        self._opening = ""
        """How the call that is being written began."""
        self.state = State.THINKING if opened else State.START

    def _tags(self) -> Sequence[str]:
        thinking, calls = self._thinking, self._calls
        if self.state is State.THINKING and thinking:
            return (thinking.close,)
        if self.state is State.CALL and calls:
            return (calls.close,) if calls.close else ()
        opening = [thinking.open] if self.state is State.START and thinking else []
        if calls:
            opening.append(calls.open or PYTHON_TAG)
        return opening

    def _enter(self, tag: str) -> None:
        if self.state is State.THINKING:
            self._space, self.state = "", State.GAP
        elif self.state is State.CALL:
            assert self._calls is not None
            called = self._call(self._calls.form, self._opening + self._body + tag, self._body)
            self.state = State.GAP if called else State.ANSWER
        elif self._thinking and self.state is State.START and tag == self._thinking.open:
            self._space, self.state = "", State.THINKING
        else:
            self._opening, self._body, self.state = tag, "", State.CALL

    def _text(self, text: str) -> None:
        if not text:
            return
        if self.state is State.CALL:
            self._body += text
        elif self.state is State.THINKING:
            self._thought(text)
        elif self.state is State.ANSWER:
            self._emit("answer", text, trim=self._calls is not None)
        elif self.state is State.GAP:
            if text := text.lstrip():
                self.state = State.ANSWER
                self._answer_begins(text)
        else:
            self._space += text
            if text.strip():
                begun, self._space, self.state = self._space, "", State.ANSWER
                self._answer_begins(begun)

    def _answer_begins(self, text: str) -> None:
        if self._calls and not self._calls.open and text.lstrip().startswith("{"):
            self._opening, self._body, self.state = "", text, State.CALL
        else:
            self._emit("answer", text, trim=self._calls is not None)

    def _thought(self, text: str) -> None:
        if self._fresh:
            self._space += text
            begun = self._space.lstrip()
            if self._label and self._label.startswith(begun) and begun != self._label:
                return
            begun = begun.removeprefix(self._label).lstrip() if self._label else begun
            self._space, self._label = "", ""
            if not begun:
                return
            self._fresh, text = False, begun
        self._emit("thinking", text, trim=True)

    def _end(self) -> None:
        if self.state is State.CALL:
            assert self._calls is not None
            self._call(self._calls.form, self._opening + self._body, self._body)
        elif self.state is State.THINKING:
            self._space = ""
        self._release("answer")


class ChannelParser(Parser):
    """gpt-oss: messages with a header each, which names a channel: analysis, commentary or final.

    Args:
        opened: The prompt has written the header of the answer.
        spelt, tools: As of `Parser`.
    """

    def __init__(self, opened: bool, spelt: Collection[str], tools: Tools) -> None:
        super().__init__(spelt, tools)
        self.state = State.ANSWER if opened else State.HEADER
        self._header = ""
        self._name = ""
        self._answered = False

    def _tags(self) -> Sequence[str]:
        return CHANNEL_TAGS

    def _enter(self, tag: str) -> None:
        if tag == "<|constrain|>":
            self._text(" ")
        elif tag == "<|message|>":
            if self.state is State.HEADER:
                self._begin()
        else:
            self._close()
            self._header += f" {tag} " if tag == "<|channel|>" else ""

    def _begin(self) -> None:
        words = self._header.split()
        channel = words[words.index("<|channel|>") + 1 :][:1] if "<|channel|>" in words else []
        to = [word.removeprefix("to=functions.") for word in words if word.startswith("to=functions.")]
        self._name, self._body, self._space = (to[0] if to else ""), "", ""
        if self._name and self._tools:
            self.state = State.CALL
        elif channel == ["analysis"]:
            self.state = State.THINKING
        else:
            self.state = State.ANSWER
            self._space = "\n\n" if self._answered else ""
        self._header = ""

    def _close(self) -> None:
        """A message ends here."""
        if self.state is State.CALL:
            body = f'{{"name": "{self._name}", "arguments": {self._body.strip() or "{}"}}}'
            self._call("json", self._body, body)
        elif self.state is State.HEADER:
            return
        elif self.state is State.ANSWER:
            self._release("answer")
        self._space, self._header, self.state = "", "", State.HEADER

    def _text(self, text: str) -> None:
        if self.state is State.HEADER:
            self._header += text
        elif self.state is State.CALL:
            self._body += text
        elif self.state is State.THINKING:
            self._emit("thinking", text, trim=True)
        elif text:
            self._answered = True
            self._emit("answer", text)

    def _end(self) -> None:
        if self.state is State.HEADER and "<|channel|>" not in self._header:
            self._emit("answer", self._header)  # a reply without a header
        elif self.state is State.THINKING:
            self._space = ""
        else:
            self._close()


def make_parser(
    thinking: Thinking | None,
    calls: Calls | None,
    *,
    opened: bool = False,
    spelt: Collection[str] = (),
    tools: Tools = (),
) -> Parser:
    """The parser of a family.

    Args:
        thinking, calls: What `families` says of the model.
        opened: The prompt ends inside the block of thinking, or for channels inside the answer.
        spelt: Tags that are no tokens of the vocabulary, so that their text counts.
        tools: What may be called.
    """
    if thinking is not None and thinking.channels:
        return ChannelParser(opened, spelt, tools)
    if thinking is not None or (calls is not None and tools):
        return TagParser(thinking, calls, opened, spelt, tools)
    return Parser(spelt, tools)
