"""What an answer brings goes to the store first and then to the screen: at once for the first token, and in batches
after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spec_local.errors import SpecLocalError
from spec_local.session.provenance import TokenText
from spec_local.session.store_records import State
from spec_local.speculation.round import Round
from spec_local.ui import events

if TYPE_CHECKING:
    from spec_local.session.result import Piece, Result
    from spec_local.session.store import AnswerWriter
    from spec_local.ui.engine_thread import Answer

FLUSH_S = 0.04
"""Between batches. A piece is not held back where waiting for the next one would make it older than this."""


class Recorder:
    """Collects the pieces of one answer, saves them and shows them, in batches."""

    def __init__(self, job: Answer, post: Callable[[events.EngineEvent], object], clock: Callable[[], float]) -> None:
        self._job = job
        self._post = post
        self._clock = clock
        self._text: list[str] = []
        self._tokens: list[TokenText] = []
        self._rounds: list[Round] = []
        self._thinking: list[str] = []
        self._thinking_tokens = 0
        self._thinks = self._answers = False
        self._flushed = -FLUSH_S
        self._seen = False
        self._notes: list[str] = []

    def take(self, piece: Piece, tokens: list[TokenText]) -> None:
        """Add one piece; flush where it is time."""
        self._text.append(piece.text)
        self._thinking.append(piece.thinking)
        self._thinking_tokens += piece.thinking_tokens
        self._tokens += self._of_answer(piece, tokens)
        pass_s = 0.0
        if piece.round is not None:
            self._rounds.append(piece.round)
            pass_s = min(piece.round.seconds, FLUSH_S)
        if not self._seen or self._clock() + pass_s - self._flushed >= FLUSH_S:
            self.flush()

    def _of_answer(self, piece: Piece, tokens: list[TokenText]) -> list[TokenText]:
        """The tokens that are part of the answer: neither thinking nor what stands between it and the answer."""
        self._thinks = self._thinks or piece.thinking_tokens > 0
        self._answers = self._answers or bool(piece.text)
        if not self._thinks:
            return tokens
        tokens = tokens[piece.thinking_tokens :]
        return tokens if self._answers else [token for token in tokens if token.text.strip()]

    def flush(self) -> None:
        """Save and show what was collected."""
        if not self._rounds and not any(self._text):
            return
        self._seen = True
        text, tokens, rounds = "".join(self._text), tuple(self._tokens), tuple(self._rounds)
        thinking, count = "".join(self._thinking), self._thinking_tokens
        self._thinking_tokens = 0
        for collected in (self._text, self._tokens, self._rounds, self._thinking):
            collected.clear()
        self._save(lambda writer: writer.append(text, tokens, rounds))
        self._post(events.Batch(self._job.key, text, tokens, rounds, thinking, count))
        self._flushed = self._clock()

    def end(self, result: Result | None, error: SpecLocalError | None = None, refused: bool = False) -> None:
        """Save and show the rest, and give the answer its last state."""
        self.flush()
        stopped = error is None and (result is None or result.finish_reason == "cancelled")
        state: State = "failed" if error is not None else "stopped" if stopped else "done"
        values = None if result is None else result.as_dict()
        message = self._save(lambda writer: writer.finish(state, values, str(error or "")))
        self._post(events.Finished(self._job.key, message, result, error, refused, tuple(self._notes)))

    def _save(self, write: Callable[[AnswerWriter], Any]) -> Any:
        """An answer that cannot be saved goes on, and says so."""
        if self._job.writer is None:
            return None
        try:
            return write(self._job.writer)
        except SpecLocalError as error:
            self._job.writer = None
            self._notes.append(f"This answer is not saved. {error}")
            return None
