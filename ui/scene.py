"""The conversation in view, and its place on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_local.session.conversation import Conversation
from spec_local.session.store_records import StoredMessage
from spec_local.ui.figures import TurnFigures
from spec_local.ui.stage import Stage
from spec_local.ui.transcript import SHOWN_AT_FIRST
from spec_local.ui.turn_view import TurnView

if TYPE_CHECKING:
    from spec_local.session.store import Store


class Scene:
    """Shows one branch of one conversation; knows nothing of engines.

    Args:
        stage: The application.
        store: Where conversations live.
        system: System message of new conversations.
    """

    def __init__(self, stage: Stage, store: Store, system: str = "") -> None:
        self._stage = stage
        self.store = store
        self._system = system
        self.conversation = self.blank()

    def blank(self) -> Conversation:
        """A new conversation."""
        return Conversation(self.store, system=self._system)

    async def turn_to(self, conversation: Conversation) -> None:
        """View another conversation."""
        self.conversation = conversation
        await self.show()

    async def show(self, everything: bool = False) -> None:
        """Show the branch in view from the store."""
        path = self.conversation.path()
        hidden = 0 if everything else max(0, len(path) - SHOWN_AT_FIRST)
        views = [self._stored_view(message) for message in path[hidden:]]
        await self._stage.transcript.show_messages(views, hidden, lambda: self.show(everything=True))
        self.show_last_figures()
        self._stage.refresh_state()

    async def show_question(self, question: StoredMessage) -> None:
        """Add a question that was just asked."""
        path = self.conversation.path()
        shown = self._stage.transcript.turns
        if shown and len(path) > 1 and shown[-1].message.id != path[-2].id:
            await self.show()  # it took the place of a question without an answer
        else:
            await self._stage.transcript.add(self.view(question))

    def show_last_figures(self) -> None:
        """Put the figures of the last answer, which may be under way, into the panel."""
        answers = [view.figures for view in self._stage.transcript.turns if view.message.role == "assistant"]
        self._stage.show_figures(answers[-1] if answers else None)

    def view(self, message: StoredMessage) -> TurnView:
        """A view of a message, without figures."""
        versions = self.conversation.siblings(message.id)
        return TurnView(message, (versions.index(message.id) + 1, len(versions)))

    def _stored_view(self, message: StoredMessage) -> TurnView:
        view = self.view(message)
        if message.role == "assistant":
            view.figures = TurnFigures.of(message, self.store.rounds(message.id))
            view.tokens = self.store.tokens(message.id)
        return view
