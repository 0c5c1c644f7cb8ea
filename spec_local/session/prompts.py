"""Prompts into token ids: a user's text, a conversation through the chat template, or raw text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spec_local.errors import TemplateError, UsageError
from spec_local.llama.model import Model
from spec_local.session.families import TAGS
from spec_local.session.generation import Request
from spec_local.session.messages import Message, normalise
from spec_local.session.shield import Markers, Stretch
from spec_local.session.template import ChatTemplate


class Prompts:
    """Reads requests for one model.

    Args:
        model: Whose vocabulary and chat template it is.
        origin: File of a chat template to use instead of the model's own.

    Raises:
        TemplateError: That file cannot be read, or its template is broken.
    """

    def __init__(self, model: Model, origin: str | None = None) -> None:
        self._vocabulary = model.vocabulary
        self.broken: TemplateError | None = None
        """What is wrong with the model's own template: noticed now, and refused when it is needed."""
        self._template = self._load(model, origin)

    def _load(self, model: Model, origin: str | None) -> ChatTemplate | None:
        vocabulary, source, name = self._vocabulary, model.chat_template(), model.path.name
        if origin is not None:
            try:
                source, name = Path(origin).expanduser().read_text(encoding="utf-8"), origin
            except (OSError, UnicodeError) as error:
                raise TemplateError(f"The chat template {origin} cannot be read: {error}.") from error
        bos, eos = (vocabulary.text([i], special=True) if i >= 0 else "" for i in (vocabulary.bos, vocabulary.eos))
        try:
            return ChatTemplate(source, bos, eos, name, self._markers(source or ""))
        except TemplateError as error:
            if origin is not None:
                raise
            self.broken = error
            return None

    def _markers(self, source: str) -> Markers:
        control, defined = self._vocabulary.marked
        return Markers(control, [text for text in defined if text.strip() and (text in source or text in TAGS)])

    def tokenize(self, request: Request) -> tuple[list[int], list[str]]:
        """Token ids of a request's whole prompt, and notices about how they came about.

        Raises:
            UsageError: A raw prompt is no text.
            TemplateError: The chat template refuses the conversation.
        """
        if request.raw:
            if not isinstance(request.prompt, str):
                raise UsageError("A raw prompt is one text, not a list of messages.", "Leave --raw out.")
            return self._vocabulary.tokenize(request.prompt, parse_special=True), []
        messages = _messages(request)
        if not messages:
            return [], []
        if self._template is None:
            assert self.broken is not None
            raise self.broken
        rendered = self._template.render(messages)
        notices = [n for n in (self._template.notice, rendered.notice) if n]
        return self._ids(rendered.stretches), notices

    def _ids(self, stretches: Sequence[Stretch]) -> list[int]:
        """Token ids of a prompt: what the template wrote with its control tokens, what content says without."""
        tokens: list[int] = []
        for i, stretch in enumerate(stretches):
            read = self._vocabulary.tokenize_inside if stretch.joined else self._vocabulary.tokenize
            how = {} if stretch.joined else {"add_special": i == 0}
            tokens += read(stretch.text, parse_special=stretch.special, **how)
        return tokens


def _messages(request: Request) -> list[Message]:
    """The conversation; empty where nothing was asked."""
    if isinstance(request.prompt, str):
        asked = [Message(role="user", content=request.prompt)] if request.prompt.strip() else []
        if not asked:
            return []
    else:
        asked = normalise(request.prompt)
    return [*([Message(role="system", content=request.system)] if request.system else []), *asked]
