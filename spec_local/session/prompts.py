"""Prompts into token ids: a user's text, a conversation through the chat template, or raw text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spec_local.errors import TemplateError, UsageError
from spec_local.llama.model import Model
from spec_local.session.families import TAGS, Thinking, calls_of, thinking_of
from spec_local.session.generation import Request
from spec_local.session.messages import Message, normalise
from spec_local.session.no_system import without_system
from spec_local.session.reply_stream import Opening
from spec_local.session.shield import Markers, Stretch
from spec_local.session.template import ChatTemplate, Rendered
from spec_local.session.thinking import ending, variables
from spec_local.text_files import read_text_file


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt as a model reads it."""

    tokens: list[int]
    notices: list[str] = field(default_factory=list)
    """How the tokens came about, for the person."""
    opening: Opening = field(default_factory=Opening)
    """How the reply begins and will be written."""


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
        control, defined = self._vocabulary.marked
        self.source = self._template.source if self._template else ""
        """Of the chat template."""
        self._thinking = thinking_of(self.source, control.keys() | defined.keys())
        self._calls = calls_of(self.source)

    def _load(self, model: Model, origin: str | None) -> ChatTemplate | None:
        vocabulary, source, name = self._vocabulary, model.chat_template(), model.path.name
        if origin is not None:
            try:
                source, name = read_text_file(origin, f"The chat template {origin}"), origin
            except UsageError as error:
                raise TemplateError(error.message, error.hint) from error
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

    def read(self, request: Request) -> Reading:
        """A request's whole prompt as token ids, and how the reply will begin.

        Raises:
            UsageError: A raw prompt is no text, or a message has no usable role or content.
            TemplateError: The chat template refuses the conversation, or has no place for tools.
        """
        if request.raw:
            if not isinstance(request.prompt, str):
                raise UsageError("A raw prompt is one text, not a list of messages.", "Leave --raw out.")
            return Reading(self._vocabulary.tokenize(request.prompt, parse_special=True))
        messages, options = _messages(request), request.reply
        if not messages:
            return Reading([])
        template, thinking, calls = self._template, self._thinking, self._calls
        if template is None:
            assert self.broken is not None
            raise self.broken
        if options.offered and not template.asks_for("tools"):
            raise TemplateError(
                "This model's chat template has no place for tools.",
                "Use a model that calls tools, or supply another template with --chat-template FILE.",
            )

        def render(turns: Sequence[Message]) -> Rendered:
            answers = [without_thoughts(message, thinking) for message in turns]
            return template.render(answers, tools=options.offered, arguments=variables(template, options))

        blank = ""
        if asked := _behind_blank(messages):
            messages, blank = without_system(lambda turns: render(turns).text, asked)
        rendered = render(messages)
        text, opened = "", False
        if messages[-1]["role"] != "assistant":
            text, opened = ending(rendered.covered, template, thinking, options)
        stretches = [*rendered.stretches, *([Stretch(text, joined=True)] if text else [])]
        if len(stretches) > 1 and text and stretches[-2].special and not stretches[-2].joined:
            stretches[-2:] = [replace(stretches[-2], text=stretches[-2].text + text)]
        notices = [n for n in (template.notice, rendered.notice, blank) if n]
        if thinking is None and (options.thinking == "on" or options.thinking_budget is not None):
            notices.append("This model's template says nothing of thinking, so it cannot be switched on or bounded.")
        if options.offered and calls is None:
            notices.append("How this model writes calls of tools is not known here: they stay text of the answer.")
        return Reading(self._ids(stretches), notices, Opening(thinking, calls, options.offered, opened))

    def tokenize(self, request: Request) -> tuple[list[int], list[str]]:
        """Token ids of a request's whole prompt, and notices about how they came about. Raises as `read`."""
        reading = self.read(request)
        return reading.tokens, reading.notices

    def _ids(self, stretches: Sequence[Stretch]) -> list[int]:
        """Token ids of a prompt: what the template wrote with its control tokens, what content says without."""
        tokens: list[int] = []
        for i, stretch in enumerate(stretches):
            read = self._vocabulary.tokenize_inside if stretch.joined else self._vocabulary.tokenize
            how = {} if stretch.joined else {"add_special": i == 0}
            tokens += read(stretch.text, parse_special=stretch.special, **how)
        return tokens


def without_thoughts(message: Message, thinking: Thinking | None) -> Message:
    """An assistant's message that still has its block of thinking before the answer, with the two apart: what of the
    thoughts goes into a prompt is the template's choice."""
    if message["role"] != "assistant" or thinking is None or thinking.channels or "reasoning_content" in message:
        return message
    text = message["content"].lstrip()
    if not text.startswith(thinking.open) or thinking.close not in text:
        return message
    thought, _, answer = text.removeprefix(thinking.open).partition(thinking.close)
    thought = thought.lstrip().removeprefix(thinking.label).strip() if thinking.label else thought.strip()
    return {**message, "content": answer.lstrip(), "reasoning_content": thought}


def _messages(request: Request) -> list[Message]:
    """The conversation; empty where nothing was asked."""
    if isinstance(request.prompt, str):
        asked = [Message(role="user", content=request.prompt)] if request.prompt.strip() else []
        if not asked:
            return []
    else:
        asked = normalise(request.prompt)
    return [*([] if request.system is None else [Message(role="system", content=request.system)]), *asked]


def _behind_blank(messages: list[Message]) -> list[Message]:
    """What follows blank system messages at the beginning; empty where there is none."""
    start = next((i for i, m in enumerate(messages) if m["role"] != "system" or m["content"].strip()), len(messages))
    return messages[start:] if start else []
