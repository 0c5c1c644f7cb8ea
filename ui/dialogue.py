"""What goes on between a person and a model: the state of the chat, without its looks.

Commands come in from the application, events from the engine's thread. Both run in the application's own task, one
after the other, so the state here needs no locks. At most one answer is under way; whatever would start another one
stops it or waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_local.errors import SpecLocalError, UsageError
from spec_local.session.attachments import attached
from spec_local.session.conversation import Conversation
from spec_local.ui import events
from spec_local.ui.answers import Answers
from spec_local.ui.engine_thread import EngineThread
from spec_local.ui.live import Live
from spec_local.ui.models import Models
from spec_local.ui.scene import Scene
from spec_local.ui.stage import Stage

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.options import EngineOptions
    from spec_local.session.reply_options import ReplyOptions
    from spec_local.session.store import Store


class Dialogue:
    """See the module.

    Args:
        stage: The application.
        store: Where conversations live.
        engine_thread: The engine's thread.
        system: System message of new conversations.
    """

    def __init__(self, stage: Stage, store: Store, engine_thread: EngineThread, system: str = "") -> None:
        self._stage = stage
        self.store = store
        self.engine_thread = engine_thread
        self.base: Sampling | None = None
        """Sampling from the command line and the configuration."""
        self.base_reply: ReplyOptions | None = None
        """Thinking and the template's variables, from there too."""
        self.models = Models(stage, engine_thread)
        self.scene = Scene(stage, store, system)
        self.answers = Answers(stage, self.scene, engine_thread, self.models, self.regenerate)
        self.next_on = True
        """Whether the next turn speculates."""
        self.queued: str | None = None
        """A message that waits for the answer under way, or for the model."""

    @property
    def conversation(self) -> Conversation:
        """The conversation in view."""
        return self.scene.conversation

    @property
    def facts(self) -> events.EngineFacts | None:
        """What is loaded; None while nothing is."""
        return self.models.facts

    @property
    def current(self) -> Live | None:
        """The answer under way in the conversation in view."""
        return self.answers.current

    @property
    def busy(self) -> bool:
        """Something runs that Esc can stop."""
        return self.answers.under_way or self.models.busy

    # -- turns -----------------------------------------------------------------------------------------------------

    async def send(self, text: str) -> bool:
        """Ask something, or have it wait its turn. False where something waits already and the text has to stay in the
        input.

        Raises:
            UsageError: An attached file cannot be used, or there is no model and none is on its way.
        """
        files = attached(text)  # at once, even if it has to wait then: whoever wrote it is still here
        if self.current is not None or self.facts is None:
            if self.queued is not None:
                return False
            if self.current is None and not self.models.busy:
                self._require_engine()
            self.queued = text
            self._stage.refresh_state()
            return True
        question = self.conversation.ask(text, files)
        self.store.add_prompt(text)
        await self.scene.show_question(question)
        await self._answer(question.id)
        return True

    async def edit(self, message: int, text: str) -> None:
        """Ask another version of an earlier question, as a branch of its own."""
        self._require_engine()
        files = attached(text)
        await self.stop_and_wait()
        question = self.conversation.edit(message, text, files)
        self.store.add_prompt(text)
        await self.scene.show()
        await self._answer(question.id)

    async def regenerate(self, question: int | None = None) -> None:
        """Answer again; the answer that is there stays as a branch."""
        if question is None:
            asked = [m for m in self.conversation.path() if m.role == "user"]
            if not asked:
                raise UsageError("There is nothing to answer again yet.")
            question = asked[-1].id
        self._require_engine()
        await self.stop_and_wait()
        if question not in {m.id for m in self.conversation.path()}:
            return  # stopped before its first word: it went back to the input
        last = self.conversation.path()[-1]
        if last.id != question:
            self.conversation.rewind(question)
            await self.scene.show()
        await self._answer(question)

    async def compare(self) -> None:
        """Run the last answer again the other way, and say what that changes."""
        self._require_engine()
        self.answers.compare(self.base_reply)

    def take_back(self) -> bool:
        """Put a queued message back into the input; what runs goes on. False where none waited."""
        queued, self.queued = self.queued, None
        if queued is None:
            return False
        self._stage.give_back(queued)
        self._stage.refresh_state()
        return True

    def stop(self) -> bool:
        """Stop whatever runs; a queued message goes back to the input. False where nothing ran."""
        waited = self.take_back()
        running = self.busy
        if running:
            self.engine_thread.cancel()
        self._stage.refresh_state()
        return running or waited

    async def stop_and_wait(self) -> None:
        """Stop, and see the answers under way to their end."""
        self.stop()
        await self.answers.settle()

    # -- models ----------------------------------------------------------------------------------------------------

    def load(self, options: EngineOptions) -> None:
        """Load other models; an answer under way is stopped."""
        self.stop()
        self.models.load(options)

    def pull(self, name: str) -> None:
        """Fetch a model; an answer under way is stopped."""
        self.models.refuse_second_pull()
        self.stop()
        self.models.pull(name)

    # -- conversations ---------------------------------------------------------------------------------------------

    async def new(self) -> None:
        """Start an empty conversation."""
        await self._leave()
        await self.scene.turn_to(self.scene.blank())

    async def open(self, identity: int, message: int | None = None) -> None:
        """View a stored conversation, at the branch of `message` where one is given."""
        found = Conversation(self.store, identity)
        await self._leave()
        if message is not None:
            found.switch(message)
        await self.scene.turn_to(found)

    async def switch(self, message: int, step: int) -> None:
        """View the next or previous version of a message."""
        await self.stop_and_wait()
        versions = self.conversation.siblings(message)
        at = versions.index(message) + step
        if 0 <= at < len(versions):
            self.conversation.switch(versions[at])
            await self.scene.show()

    async def undo(self) -> None:
        """Take the last question back into the input."""
        await self.stop_and_wait()
        text = self.conversation.undo()
        await self.scene.show()
        self._stage.give_back(text)

    # -- events ----------------------------------------------------------------------------------------------------

    async def handle(self, event: events.EngineEvent) -> None:
        """Take an event of the engine's thread."""
        if isinstance(event, events.Started | events.Prefilling | events.Batch | events.Finished):
            await self.answers.handle(event)
            if isinstance(event, events.Batch):
                return  # more of an answer changes nothing else
            if isinstance(event, events.Finished) and self.current is None and self.facts is not None:
                await self._send_queued()
        else:
            self.models.handle(event)
            if not self.models.busy:
                await self._send_queued()
        self._stage.refresh_state()

    # -- small things ----------------------------------------------------------------------------------------------

    async def _answer(self, question: int) -> None:
        n_ctx = self.facts.n_ctx if self.facts else None
        await self.answers.begin(question, self.base, self.next_on, n_ctx, self.base_reply)

    async def _send_queued(self) -> None:
        """A message that waited goes out now, or back where there is no model for it."""
        text, self.queued = self.queued, None
        if text is None:
            return
        try:
            if self.facts is not None:
                await self.send(text)
            else:
                self._stage.give_back(text)
        except SpecLocalError as error:
            self._stage.give_back(text)
            self._stage.transcript.complain(error)

    async def _leave(self) -> None:
        """Stop what runs here; it is finished behind the scenes."""
        self.stop()
        await self.answers.leave()

    def _require_engine(self) -> None:
        if self.facts is None and self.models.busy:
            raise UsageError("The model is not there yet.", "Wait for it, or stop it with Esc.")
        if self.facts is None:
            raise UsageError("No model is loaded.", "F6 chooses one.")
