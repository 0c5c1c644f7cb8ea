"""What goes on between a person and a model: the state of the chat, without its looks.

Commands come in from the application, events from the engine's thread. Both run in the application's own task, one
after the other, so the state here needs no locks. At most one answer is under way; whatever would start another one
stops it or waits for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spec_local.errors import SpecLocalError, UsageError
from spec_local.session.attachments import attached
from spec_local.session.conversation import Conversation
from spec_local.session.store_records import StoredMessage
from spec_local.ui import events
from spec_local.ui.figures import TurnFigures
from spec_local.ui.live import Live
from spec_local.ui.models import Models
from spec_local.ui.stage import Stage
from spec_local.ui.transcript import SHOWN_AT_FIRST, Notice, Offer
from spec_local.ui.turn_view import TurnView
from spec_local.ui.worker import Answer, EngineWorker

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.options import EngineOptions
    from spec_local.session.store import Store


class Dialogue:
    """See the module.

    Args:
        stage: The application.
        store: Where conversations live.
        worker: The engine's thread.
        system: System message of new conversations.
    """

    def __init__(self, stage: Stage, store: Store, worker: EngineWorker, system: str = "") -> None:
        self._stage = stage
        self.store = store
        self.worker = worker
        self.base: Sampling | None = None
        """Sampling from the command line and the configuration."""
        self._system = system
        self.conversation = Conversation(store, system=system)
        self.models = Models(stage, worker)
        self.next_on = True
        """Whether the next turn speculates."""
        self.queued: str | None = None
        """A message that waits for the answer under way, or for the model."""
        self._live: dict[int, Live] = {}
        self._numbers = itertools.count(-1, -1)

    @property
    def facts(self) -> events.EngineFacts | None:
        """What is loaded; None while nothing is."""
        return self.models.facts

    def load(self, options: EngineOptions) -> None:
        """Load other models; an answer under way is stopped."""
        self.stop()
        self.models.load(options)

    def pull(self, name: str) -> None:
        """Fetch a model; an answer under way is stopped."""
        self.models.refuse_second_pull()
        self.stop()
        self.models.pull(name)

    @property
    def current(self) -> Live | None:
        """The answer under way in the conversation in view."""
        return next((live for live in self._live.values() if live.conversation is self.conversation), None)

    @property
    def busy(self) -> bool:
        """Something runs that Esc can stop."""
        return bool(self._live) or self.models.busy

    # -- turns -----------------------------------------------------------------------------------------------------

    async def send(self, text: str) -> bool:
        """Ask something. False where the text has to stay in the input.

        Raises:
            UsageError: An attached file cannot be used.
        """
        if self.current is not None or self.facts is None:
            if self.queued is not None:
                return False
            self.queued = text
            self._stage.refresh_state()
            return True
        files = attached(text)
        question = self.conversation.ask(text, files)
        self.store.add_prompt(text)
        await self._show_question(question)
        await self.answer(question.id)
        return True

    async def edit(self, message: int, text: str) -> None:
        """Ask another version of an earlier question, as a branch of its own."""
        files = attached(text)
        await self.stop_and_wait()
        question = self.conversation.edit(message, text, files)
        await self.show()
        await self.answer(question.id)

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
            await self.show()
        await self.answer(question)

    async def answer(self, question: int) -> None:
        """Begin an answer to a stored question."""
        conversation = self.conversation
        writer = conversation.begin_answer(question)
        message = conversation.message(writer.message)
        view = TurnView(message, self._branch(message))
        view.waiting = "…"
        view.figures = TurnFigures(speculate=self.next_on, n_ctx=self.facts.n_ctx if self.facts else None)
        job = Answer(
            key=writer.message,
            turns=conversation.turns(question),
            system=conversation.system,
            sampling=conversation.sampling(self.base),
            speculate=self.next_on,
            writer=writer,
            first=self._first(conversation.turns(question)),
        )
        self._live[job.key] = Live(job, question, view.figures, view, conversation, time.monotonic())
        await self._stage.transcript.add(view)
        self.worker.submit(job)
        self._stage.show_figures(view.figures)
        self._stage.refresh_state()

    async def compare(self) -> None:
        """Run the last answer again the other way, and say what that changes."""
        self._require_engine()
        if self._live:
            raise UsageError("An answer is under way.", "Wait for it, or stop it with Esc.")
        answer = next((m for m in reversed(self.conversation.path()) if m.role == "assistant" and m.result), None)
        if answer is None or answer.parent is None:
            raise UsageError("There is no answer to compare yet.")
        from spec_local.ui.comparison import Comparison

        comparison = Comparison.of(answer, self.store.rounds(answer.id))
        turns = self.conversation.turns(answer.parent)
        job = Answer(
            key=next(self._numbers),
            turns=turns,
            system=self.conversation.system,
            sampling=comparison.sampling,
            speculate=comparison.other_way,
            writer=None,
            first=self._first(turns),
        )
        notice = self._stage.transcript.note(comparison.progress(0))
        figures = TurnFigures(speculate=comparison.other_way)
        self._live[job.key] = Live(
            job, answer.parent, figures, None, self.conversation, time.monotonic(), comparison, notice
        )
        self.worker.submit(job)
        self._stage.refresh_state()

    def stop(self) -> bool:
        """Stop whatever runs; a queued message goes back to the input. False where nothing ran."""
        queued, self.queued = self.queued, None
        if queued is not None:
            self._stage.give_back(queued)
        running = self.busy
        if running:
            self.worker.cancel()
        self._stage.refresh_state()
        return running or queued is not None

    async def stop_and_wait(self) -> None:
        """Stop, and see the answers under way to their end."""
        self.stop()
        for live in list(self._live.values()):
            await self._settle(live)

    # -- conversations ---------------------------------------------------------------------------------------------

    async def new(self) -> None:
        """Start an empty conversation."""
        await self._leave()
        self.conversation = Conversation(self.store, system=self._system)
        await self.show()

    async def open(self, identity: int, message: int | None = None) -> None:
        """View a stored conversation, at the branch of `message` where one is given."""
        found = Conversation(self.store, identity)
        await self._leave()
        self.conversation = found
        if message is not None:
            found.switch(message)
        await self.show()

    async def switch(self, message: int, step: int) -> None:
        """View the next or previous version of a message."""
        await self.stop_and_wait()
        versions = self.conversation.siblings(message)
        at = versions.index(message) + step
        if 0 <= at < len(versions):
            self.conversation.switch(versions[at])
            await self.show()

    async def undo(self) -> None:
        """Take the last question back into the input."""
        await self.stop_and_wait()
        text = self.conversation.undo()
        await self.show()
        self._stage.give_back(text)

    async def show(self, everything: bool = False) -> None:
        """Show the branch in view from the store."""
        path = self.conversation.path()
        hidden = 0 if everything else max(0, len(path) - SHOWN_AT_FIRST)
        views = [self._view(message) for message in path[hidden:]]
        await self._stage.transcript.show_messages(views, hidden, lambda: self.show(everything=True))
        self.show_last_figures()
        self._stage.refresh_state()

    def show_last_figures(self) -> None:
        """Put the figures of the answer under way, or else of the last one, into the panel."""
        live = self.current
        answers = [view.figures for view in self._stage.transcript.turns if view.message.role == "assistant"]
        self._stage.show_figures(live.figures if live is not None else answers[-1] if answers else None)

    # -- events ----------------------------------------------------------------------------------------------------

    async def handle(self, event: events.WorkerEvent) -> None:
        """Take an event of the engine's thread."""
        if isinstance(event, events.Batch):
            self._batch(event)
        elif isinstance(event, events.Prefilling):
            self._prefilling(event)
        elif isinstance(event, events.Started):
            self._started(event)
        elif isinstance(event, events.Finished):
            await self._finished(event)
        else:
            self.models.handle(event)
            await self._models_changed()
        self._stage.refresh_state()

    async def _models_changed(self) -> None:
        """A queued message goes out when there is a model for it, and back where there will be none."""
        if self.models.busy or self.queued is None:
            return
        queued, self.queued = self.queued, None
        if self.facts is not None:
            await self._send_queued(queued)
        else:
            self._stage.give_back(queued)

    def _started(self, event: events.Started) -> None:
        if (live := self._live.get(event.answer)) is None:
            return
        live.figures.prompt_tokens = event.prompt_tokens
        if event.first > live.job.first or (event.first and live.conversation.first_kept is None):
            live.conversation.first_kept = live.job.turns[event.first].id
            if live.view is not None and live.conversation is self.conversation:
                text = f"The {event.first} oldest messages no longer fit the context and are left out from here on."
                self._stage.transcript.mount(
                    Notice(text, "The system message stays; a larger --n-ctx holds more."), before=live.view
                )
        for notice in event.notices:
            self.models.say_once(notice)

    def _prefilling(self, event: events.Prefilling) -> None:
        if (live := self._live.get(event.answer)) is None:
            return
        live.figures.prefilling = (event.done, event.total)
        if live.view is not None and not live.view.text:
            live.view.waiting = f"reading the prompt, {event.done} of {event.total} tokens"
            live.view.draw()
        self._show_current(live)

    def _batch(self, event: events.Batch) -> None:
        if (live := self._live.get(event.answer)) is None:
            return
        if live.figures.ttft_s is None:
            live.figures.ttft_s = time.monotonic() - live.started
        if live.view is not None:
            live.view.feed(event.text, event.tokens, event.rounds)
        else:
            live.figures.rounds += event.rounds
            if live.comparison is not None and live.notice is not None:
                live.notice.say(live.comparison.progress(sum(r.emitted for r in live.figures.rounds)))
        self._show_current(live)

    async def _finished(self, event: events.Finished) -> None:
        if (live := self._live.get(event.answer)) is None:
            self._late(event)
            return
        await self._settle(live, event)
        if self.current is None and self.queued is not None and self.facts is not None:
            queued, self.queued = self.queued, None
            await self._send_queued(queued)

    def _late(self, event: events.Finished) -> None:
        """The true end of an answer that something else took the place of."""
        if event.message is not None and event.message.conversation == self.conversation.id:
            self.conversation.refresh()
            if (view := self._stage.transcript.turn(event.message.id)) is not None:
                view.finish(event.message)

    async def _settle(self, live: Live, event: events.Finished | None = None) -> None:
        """Give an answer its last looks. Without an event (it was stopped, and something else must begin) it gets them
        from what is there; the thread writes the same to the store."""
        del self._live[live.job.key]
        seen = live.conversation is self.conversation
        if event is not None and event.result is not None:
            live.figures.finish(event.result)
        if live.comparison is not None:
            result, error = (event.result, event.error) if event is not None else (None, None)
            if live.notice is not None:
                live.notice.say(*live.comparison.outcome(result, error))
            if seen:
                self.show_last_figures()
            return
        assert live.view is not None
        message = live.last_state(event)
        if not message.text and (event is None or event.refused or message.state == "stopped"):
            await self._take_back(live, event.error if event else None, seen)
            return
        live.conversation.refresh()
        live.view.finish(message)
        for note in event.notes if event else ():
            self._stage.transcript.note(note, kind="warning")
        if seen:
            if event is not None and event.error is not None:
                self._offer_more(event.error)
            self._stage.show_figures(live.figures)

    async def _take_back(self, live: Live, error: SpecLocalError | None, seen: bool) -> None:
        """No word of an answer came: the answer goes, and its question too unless it has others."""
        conversation, question = live.conversation, live.conversation.message(live.question).text
        self.store.delete_message(live.job.key)
        conversation.refresh()
        others = conversation.children(live.question)
        if others:
            conversation.switch(live.question)
        else:
            conversation.withdraw(live.question)
        if not seen:
            return
        await self.show()
        if not others:
            self._stage.give_back(question)
        if error is not None:
            self._stage.transcript.complain(error)
        elif not others:
            self._stage.transcript.note("Stopped before the first word; your message is back in the input.")

    # -- small things ----------------------------------------------------------------------------------------------

    async def _send_queued(self, text: str) -> None:
        try:
            await self.send(text)
        except SpecLocalError as error:
            self._stage.give_back(text)
            self._stage.transcript.complain(error)

    async def _leave(self) -> None:
        """Stop what runs here; it is finished behind the scenes."""
        self.stop()
        for live in list(self._live.values()):
            if live.view is not None:
                await self._settle(live)

    async def _show_question(self, question: StoredMessage) -> None:
        path = self.conversation.path()
        shown = self._stage.transcript.turns
        if shown and len(path) > 1 and shown[-1].message.id != path[-2].id:
            await self.show()  # it took the place of a question without an answer
        else:
            await self._stage.transcript.add(TurnView(question, self._branch(question)))

    def _view(self, message: StoredMessage) -> TurnView:
        view = TurnView(message, self._branch(message))
        if message.role == "assistant":
            view.figures = TurnFigures.of(message, self.store.rounds(message.id))
            view.tokens = self.store.tokens(message.id)
        return view

    def _branch(self, message: StoredMessage) -> tuple[int, int]:
        versions = self.conversation.siblings(message.id)
        return versions.index(message.id) + 1, len(versions)

    def _first(self, turns: list[StoredMessage]) -> int:
        """Index of the oldest turn that the last prompt held."""
        kept = self.conversation.first_kept
        return next((i for i, turn in enumerate(turns) if turn.id == kept), 0)

    def _show_current(self, live: Live) -> None:
        if live.conversation is self.conversation:
            self._stage.show_figures(live.figures)

    def _offer_more(self, error: SpecLocalError) -> None:
        """Ways on after an answer that failed."""
        choices: list[tuple[str, Callable[[], Any]]] = [("Try again", self.regenerate)]
        choices.append(("Choose a model", self._stage.pick_model))
        choices += self.models.without_workers(error)
        self._stage.transcript.mount(Offer(Notice("The conversation can go on."), choices))

    def _require_engine(self) -> None:
        if self.facts is None:
            raise UsageError("No model is loaded yet.", "/model chooses one.")
