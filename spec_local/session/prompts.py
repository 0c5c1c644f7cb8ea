"""Prompts into token ids: a user's text, a conversation through the chat template, or raw text."""

from __future__ import annotations

from spec_local.errors import TemplateError, UsageError
from spec_local.llama.model import Model
from spec_local.session.generation import Request
from spec_local.session.no_system import without_system
from spec_local.session.template import ChatTemplate, Message
from spec_local.text_files import read_text_file


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
                source, name = read_text_file(origin, f"The chat template {origin}"), origin
            except UsageError as error:
                raise TemplateError(error.message, error.hint) from error
        bos, eos = (vocabulary.text([i], special=True) if i >= 0 else "" for i in (vocabulary.bos, vocabulary.eos))
        try:
            return ChatTemplate(source, bos, eos, name)
        except TemplateError as error:
            if origin is not None:
                raise
            self.broken = error
            return None

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
        template, blank = self._template, ""
        if asked := _behind_blank(messages):
            messages, blank = without_system(lambda turns: template.render(turns)[0], asked)
        text, notice = template.render(messages)
        notices = [n for n in (template.notice, notice, blank) if n]
        return self._vocabulary.tokenize(text, parse_special=True), notices


def _messages(request: Request) -> list[Message]:
    """The conversation; empty where nothing was asked."""
    if isinstance(request.prompt, str):
        asked = [Message(role="user", content=request.prompt)] if request.prompt.strip() else []
        if not asked:
            return []
    else:
        asked = list(request.prompt)
    return [*([] if request.system is None else [Message(role="system", content=request.system)]), *asked]


def _behind_blank(messages: list[Message]) -> list[Message]:
    """What follows blank system messages at the beginning; empty where there is none."""
    start = next((i for i, m in enumerate(messages) if m["role"] != "system" or m["content"].strip()), len(messages))
    return messages[start:] if start else []
