"""A conversation as text: turns and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spec_local.errors import UsageError
from spec_local.session.attachments import Attachment
from spec_local.session.store import AnswerWriter, Store
from spec_local.session.store_records import StoredConversation, StoredMessage

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.reply_options import ReplyOptions

NO_SYSTEM = " "
"""Kept as the system message of a conversation that is to have none: a blank one, where an empty one was never set."""
_TITLE_LENGTH = 60
REPLY_SETTINGS = ("thinking", "thinking_budget", "template_args")
"""What may be set beside sampling."""


class Conversation:
    """One conversation in a store, seen along one branch. Nothing is written before its first message.

    Args:
        store: Where it lives.
        identity: Id of a stored conversation; None for a new one.
        system: System message of a new one; `NO_SYSTEM` for none, not even the template's own.
        settings: Sampling values of a new one.
    """

    def __init__(
        self, store: Store, identity: int | None = None, *, system: str = "", settings: dict[str, Any] | None = None
    ) -> None:
        self.store = store
        self._system = system
        self._settings = dict(settings or {})
        self._stored: StoredConversation | None = None
        self._messages: dict[int, StoredMessage] = {}
        self.first_kept: int | None = None
        """Id of the oldest message that still went into the last prompt; None while all did."""
        if identity is not None:
            self._stored = store.conversation(identity)
            self.refresh()

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def id(self) -> int | None:
        """Its id in the store; None before the first message."""
        return self._stored.id if self._stored else None

    @property
    def title(self) -> str:
        """Chosen by the person, or the start of the first message; empty while there is none."""
        return self._stored.title if self._stored else ""

    @property
    def system(self) -> str:
        """The system message; empty: what the template has; `NO_SYSTEM`: none."""
        return self._stored.system if self._stored else self._system

    @property
    def settings(self) -> dict[str, Any]:
        """Sampling values the person set for this conversation."""
        return dict(self._stored.settings if self._stored else self._settings)

    @property
    def head(self) -> int | None:
        """Id of the last message of the branch in view."""
        return self._stored.head if self._stored else None

    def path(self, end: int | None = None) -> list[StoredMessage]:
        """The messages from the first one to `end` (None: the head)."""
        found = []
        at = self.head if end is None else end
        while at is not None and at in self._messages:
            found.append(self._messages[at])
            at = self._messages[at].parent
        return found[::-1]

    def tree(self) -> list[int]:
        """All messages of all branches, in order of writing."""
        return sorted(self._messages)

    def has(self, identity: int) -> bool:
        """Whether a message is in this conversation."""
        return identity in self._messages

    def message(self, identity: int) -> StoredMessage:
        """One message of the tree."""
        return self._messages[identity]

    def siblings(self, identity: int) -> list[int]:
        """The branches at this message, itself among them, in order of writing."""
        message = self._messages[identity]
        return [m.id for m in self._messages.values() if m.parent == message.parent and m.role == message.role]

    def children(self, identity: int) -> list[int]:
        """The messages that follow this one, in order of writing."""
        return [m.id for m in self._messages.values() if m.parent == identity]

    def turns(self, end: int | None = None) -> list[StoredMessage]:
        """What a prompt up to `end` is made of: roles alternate, beginning with the person.

        A question that was never answered has no place before another one, nor has an answer that failed without a
        word: whoever asks again starts anew from before it (see `ask`).
        """
        found: list[StoredMessage] = []
        for message in self.path(end):
            if found and found[-1].role == message.role == "user":
                found.pop()
            found.append(message)
        return found

    def refresh(self) -> None:
        """Read the conversation again: another program may have written to it."""
        if self._stored is not None:
            self._stored = self.store.conversation(self._stored.id)
            self._messages = {m.id: m for m in self.store.messages(self._stored.id)}

    # -- what a person does ----------------------------------------------------------------------------------------

    def ask(self, text: str, attachments: Sequence[Attachment] = ()) -> StoredMessage:
        """Add a message at the head; it takes the place of a question there that has no answer, as another branch."""
        parent = self.head
        while parent is not None and self._messages[parent].role == "user":
            parent = self._messages[parent].parent
        return self._add_question(parent, text, attachments)

    def edit(self, identity: int, text: str, attachments: Sequence[Attachment] = ()) -> StoredMessage:
        """Write another version of a message of the person's, as a new branch; the old one stays beside it."""
        old = self._messages[identity]
        if old.role != "user":
            raise UsageError("Only your own messages can be edited.")
        return self._add_question(old.parent, text, attachments)

    def begin_answer(self, question: int) -> AnswerWriter:
        """Start an answer to a message; one that is there already stays beside it as another branch."""
        assert self._stored is not None and self._messages[question].role == "user"
        writer = self.store.begin_answer(self._stored.id, question)
        self.refresh()
        return writer

    def switch(self, identity: int) -> None:
        """View the branch of this message, down to what was written last below it."""
        at = identity
        children: dict[int | None, list[int]] = {}
        for message in self._messages.values():
            children.setdefault(message.parent, []).append(message.id)
        while at in children:
            at = max(children[at])
        self._change(head=at)

    def rewind(self, identity: int) -> None:
        """View the branch only up to this message, for another one to follow it."""
        self._change(head=identity)

    def undo(self) -> str:
        """Step back to before the last question; the rest stays as a branch. Returns the question's text."""
        last = next((m for m in reversed(self.path()) if m.role == "user"), None)
        if last is None:
            raise UsageError("There is no message to take back.")
        self._change(head=last.parent)
        return last.text

    def withdraw(self, question: int) -> None:
        """Remove a question that was refused or stopped before an answer began, with what hangs on it."""
        self.store.delete_message(question)
        self.refresh()

    def rename(self, title: str) -> None:
        """Give it a title of the person's choice."""
        self._change(title=" ".join(title.split())[:200])

    def set_system(self, text: str) -> None:
        """Change the system message, from the next answer on."""
        self._change(system=text)

    def set_sampling(self, name: str, value: Any) -> None:
        """Set one value of sampling or thinking (None: the default). Raises `UsageError` where it cannot be."""
        from spec_local.sampling.params import Sampling

        settings = {k: v for k, v in self.settings.items() if k != name}
        if value is not None:
            settings[name] = value
        elif name not in Sampling.model_fields and name not in REPLY_SETTINGS:
            Sampling.parse({name: None})
        of_sampling, of_reply = _parted(settings)
        Sampling.parse(of_sampling)
        _reply(of_reply)
        self._change(settings=settings)

    def sampling(self, base: Sampling | None = None) -> Sampling:
        """Its sampling: what the person set, over `base`."""
        from spec_local.sampling.params import Sampling

        values = (base or Sampling()).model_dump(include=(base or Sampling()).model_fields_set)
        return Sampling.parse({**values, **_parted(self.settings)[0]})

    def reply(self, base: ReplyOptions | None = None) -> ReplyOptions:
        """Thinking and the template's variables: what the person set, over `base`."""
        values = {} if base is None else base.model_dump(include=base.model_fields_set)
        return _reply({**values, **_parted(self.settings)[1]})

    # -- writing ---------------------------------------------------------------------------------------------------

    def _add_question(self, parent: int | None, text: str, attachments: Sequence[Attachment]) -> StoredMessage:
        if self._stored is None:
            self._stored = self.store.create(self._system, self._settings)
        message = self.store.add_question(self._stored.id, parent, text, attachments)
        if not self._stored.title:
            self.store.change(self._stored.id, title=title_of(text))
        self.refresh()
        return message

    def _change(self, **values: Any) -> None:
        if self._stored is None:
            if "title" in values or "head" in values:
                self._stored = self.store.create(self._system, self._settings)
            else:
                self._system = values.get("system", self._system)
                self._settings = values.get("settings", self._settings)
                return
        self.store.change(self._stored.id, **values)
        self.refresh()


def _parted(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of sampling, and those of the reply."""
    of_reply = {name: value for name, value in settings.items() if name in REPLY_SETTINGS}
    return {name: value for name, value in settings.items() if name not in of_reply}, of_reply


def _reply(values: dict[str, Any]) -> ReplyOptions:
    from spec_local.session.reply_options import ReplyOptions

    return ReplyOptions.parse(values)


def title_of(text: str) -> str:
    """The first line of a message, cut at a word."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    if len(line) <= _TITLE_LENGTH:
        return line
    cut = line[:_TITLE_LENGTH].rpartition(" ")[0]
    return f"{cut or line[:_TITLE_LENGTH]}…"
