"""Tokens in, whole characters out, stop strings cut before anybody sees them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from spec_local.session.calls import ToolCall


class TextStream:
    """Turns emitted tokens into text that may be shown.

    A character's bytes may come in several tokens, and a stop string too; what could still become either is held back.
    Where several stop strings match, the one that starts first in the text wins, however it was cut into tokens.

    Args:
        piece: Bytes of a token; empty for control tokens.
        stops: Strings that end the text; they are not part of it.
    """

    def __init__(self, piece: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._piece = piece
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._ready: list[str] = []
        self._shown: list[str] = []
        self.thinking_tokens = 0
        """Tokens of thinking, the tags around it included."""
        self.calls: list[ToolCall] = []
        """The calls of tools that are complete."""
        self.stopped = False
        """A stop string is complete; further tokens are refused."""

    def push(self, token: int) -> bool:
        """Take one token; True where it completes a stop string."""
        return self.add(self._decoder.decode(self._piece(token)))

    def add(self, text: str) -> bool:
        """Take text; True where it completes a stop string."""
        assert not self.stopped, "the text has ended"
        self._held += text
        if not self._stops:
            self._release(len(self._held))
            return False
        complete = self._first_complete()
        partial = self._first_partial()
        if complete is not None and (partial is None or complete <= partial):
            self._end_at(complete)
        else:
            self._release(min(at for at in (complete, partial, len(self._held)) if at is not None))
        return self.stopped

    @property
    def thinking(self) -> str:
        """What was thought before the answer: a plain text has no such part; see `reply_stream.ReplyStream`."""
        return ""

    def take_thinking(self) -> str:
        """What was thought since the last call."""
        return ""

    def take(self) -> str:
        """Text that became certain since the last call."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def finish(self) -> None:
        """The stream ended without a stop string: release what was held back; half a character is dropped."""
        if self.stopped:
            return
        complete = self._first_complete() if self._stops else None
        if complete is not None:
            self._end_at(complete)
        self._release(len(self._held))

    @property
    def text(self) -> str:
        """Everything released so far."""
        return "".join(self._shown)

    def _first_complete(self) -> int | None:
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        return min(found, default=None)

    def _first_partial(self) -> int | None:
        """Where the earliest suffix of the held text starts that could still grow into a stop string."""
        longest = max(map(len, self._stops)) - 1
        for at in range(max(0, len(self._held) - longest), len(self._held)):
            if any(stop.startswith(self._held[at:]) for stop in self._stops):
                return at
        return None

    def _end_at(self, at: int) -> None:
        self._held = self._held[:at]
        self._release(at)
        self.stopped = True

    def _release(self, count: int) -> None:
        text, self._held = self._held[:count], self._held[count:]
        if text:
            self._ready.append(text)
            self._shown.append(text)
