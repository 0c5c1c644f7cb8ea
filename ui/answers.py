"""Answers under way: from the job for the engine's thread to their last looks on the screen.

An answer belongs to the conversation it was asked in; it is shown while that one is in view and finished behind the
scenes otherwise.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from spec_local.errors import SpecLocalError, UsageError
from spec_local.ui import events
from spec_local.ui.engine_thread import Answer, EngineThread
from spec_local.ui.figures import TurnFigures
from spec_local.ui.live import Live
from spec_local.ui.models import Models
from spec_local.ui.scene import Scene
from spec_local.ui.stage import Stage
from spec_local.ui.transcript import Notice

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.reply_options import ReplyOptions
    from spec_local.session.store_records import StoredMessage

AnswerEvent = events.Started | events.Prefilling | events.Batch | events.Finished


class Answers:
    """See the module.

    Args:
        stage: The application.
        scene: The conversation in view.
        engine_thread: The engine's thread.
        models: The models, which know what to say about an engine, and the ways on after an error.
        regenerate: Answers the last question again.
    """

    def __init__(
        self,
        stage: Stage,
        scene: Scene,
        engine_thread: EngineThread,
        models: Models,
        regenerate: Callable[[], object],
    ) -> None:
        self._stage = stage
        self._scene = scene
        self._engine_thread = engine_thread
        self._models = models
        self._regenerate = regenerate
        self._live: dict[int, Live] = {}
        self._numbers = itertools.count(-1, -1)

    @property
    def under_way(self) -> bool:
        """There is at least one, in whatever conversation."""
        return bool(self._live)

    @property
    def current(self) -> Live | None:
        """The answer under way in the conversation in view."""
        return next((live for live in self._live.values() if self._seen(live)), None)

    # -- beginning -------------------------------------------------------------------------------------------------

    async def begin(
        self,
        question: int,
        base: Sampling | None,
        speculate: bool,
        n_ctx: int | None,
        base_reply: ReplyOptions | None = None,
    ) -> None:
        """Begin an answer to a stored question of the conversation in view.

        Args:
            question: Id of the question.
            base: Sampling where the conversation sets none.
            speculate: Whether this answer speculates.
            n_ctx: Tokens a context holds.
            base_reply: Thinking and the template's variables where the conversation sets none.
        """
        conversation = self._scene.conversation
        writer = conversation.begin_answer(question)
        view = self._scene.view(conversation.message(writer.message))
        view.waiting = "…"
        view.figures = TurnFigures(speculate=speculate, n_ctx=n_ctx)
        turns = conversation.turns(question)
        job = Answer(
            key=writer.message,
            turns=turns,
            system=conversation.system,
            sampling=conversation.sampling(base),
            speculate=speculate,
            writer=writer,
            reply=conversation.reply(base_reply),
            first=self._first(turns),
        )
        self._live[job.key] = Live(job, question, view.figures, view, conversation, time.monotonic())
        self._stage.transcript.settle_offers()
        await self._stage.transcript.add(view)
        self._engine_thread.submit(job)
        self._stage.show_figures(view.figures)
        self._stage.refresh_state()

    def compare(self, base_reply: ReplyOptions | None = None) -> None:
        """Run the last answer again the other way, and say what that changes."""
        if self._live:
            raise UsageError("An answer is under way.", "Wait for it, or stop it with Esc.")
        conversation = self._scene.conversation
        answer = next((m for m in reversed(conversation.path()) if m.role == "assistant" and m.result), None)
        if answer is None or answer.parent is None:
            raise UsageError("There is no answer to compare yet.")
        from spec_local.ui.comparison import Comparison

        comparison = Comparison.of(answer, self._scene.store.rounds(answer.id))
        turns = conversation.turns(answer.parent)
        job = Answer(
            key=next(self._numbers),
            turns=turns,
            system=conversation.system,
            sampling=comparison.sampling,
            speculate=comparison.other_way,
            writer=None,
            reply=conversation.reply(base_reply),
            first=self._first(turns),
        )
        notice = self._stage.transcript.note(comparison.progress(0))
        figures = TurnFigures(speculate=comparison.other_way)
        self._live[job.key] = Live(
            job, answer.parent, figures, None, conversation, time.monotonic(), comparison, notice
        )
        self._engine_thread.submit(job)
        self._stage.refresh_state()

    # -- ending ----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """See all to their end now, because something else must begin; they have been cancelled."""
        for live in list(self._live.values()):
            await self._settle(live)

    async def leave(self) -> None:
        """The same for those with a place on the screen, which is about to go; comparisons end by themselves."""
        for live in list(self._live.values()):
            if live.view is not None:
                await self._settle(live)

    # -- events ----------------------------------------------------------------------------------------------------

    async def handle(self, event: AnswerEvent) -> None:
        """Take an event of the engine's thread."""
        live = self._live.get(event.answer)
        if live is None:
            if isinstance(event, events.Finished):
                self._late(event)
        elif isinstance(event, events.Batch):
            self._batch(live, event)
        elif isinstance(event, events.Prefilling):
            self._prefilling(live, event)
        elif isinstance(event, events.Started):
            self._started(live, event)
        else:
            await self._settle(live, event)

    def _started(self, live: Live, event: events.Started) -> None:
        live.figures.prompt_tokens = event.prompt_tokens
        if event.first > live.job.first or (event.first and live.conversation.first_kept is None):
            live.conversation.first_kept = live.job.turns[event.first].id
            if live.view is not None and self._seen(live):
                text = f"The {event.first} oldest messages no longer fit the context and are left out from here on."
                self._stage.transcript.mount(
                    Notice(text, "The system message stays; a larger --n-ctx holds more."), before=live.view
                )
        for notice in event.notices:
            self._models.say_once(notice)

    def _prefilling(self, live: Live, event: events.Prefilling) -> None:
        live.figures.prefilling = (event.done, event.total)
        if live.view is not None and not live.view.text:
            live.view.waiting = f"reading the prompt, {event.done} of {event.total} tokens"
            live.view.draw()
        self._show_figures(live)

    def _batch(self, live: Live, event: events.Batch) -> None:
        if live.figures.ttft_s is None:
            live.figures.ttft_s = time.monotonic() - live.started
        if live.view is not None:
            live.view.feed(event.text, event.tokens, event.rounds, event.thinking, event.thinking_tokens)
        else:
            live.figures.rounds += event.rounds
            if live.comparison is not None and live.notice is not None:
                live.notice.say(live.comparison.progress(live.figures.statistics.emitted))
        self._show_figures(live)

    def _late(self, event: events.Finished) -> None:
        """The true end of an answer that something else took the place of."""
        conversation = self._scene.conversation
        if event.message is not None and event.message.conversation == conversation.id:
            conversation.refresh()
            if (view := self._stage.transcript.turn(event.message.id)) is not None:
                view.finish(event.message)

    async def _settle(self, live: Live, event: events.Finished | None = None) -> None:
        """Give an answer its last looks. Without an event (it was stopped, and something else must begin) it gets them
        from what is there; the thread writes the same to the store."""
        del self._live[live.job.key]
        seen = self._seen(live)
        if event is not None and event.result is not None:
            live.figures.finish(event.result)
        if live.comparison is not None:
            result, error = (event.result, event.error) if event is not None else (None, None)
            if live.notice is not None:
                live.notice.say(*live.comparison.outcome(result, error))
            if seen:
                self._scene.show_last_figures()
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
        self._scene.store.delete_message(live.job.key)
        conversation.refresh()
        others = conversation.children(live.question)
        if others:
            conversation.switch(live.question)
        else:
            conversation.withdraw(live.question)
        if not seen:
            return
        await self._scene.show()
        if not others:
            self._stage.give_back(question)
        if error is not None:
            self._stage.transcript.complain(error)
        elif not others:
            self._stage.transcript.note("Stopped before the first word; your message is back in the input.")

    def _offer_more(self, error: SpecLocalError) -> None:
        """Ways on after an answer that failed."""
        choices = [("Try again", self._regenerate), ("Choose a model", self._stage.pick_model)]
        choices += self._models.without_workers(error)
        self._stage.transcript.offer(Notice("The conversation can go on."), choices)

    # -- small things ----------------------------------------------------------------------------------------------

    def _seen(self, live: Live) -> bool:
        return live.conversation is self._scene.conversation

    def _show_figures(self, live: Live) -> None:
        if self._seen(live):
            self._stage.show_figures(live.figures)

    def _first(self, turns: list[StoredMessage]) -> int:
        """Index of the oldest turn that the last prompt held."""
        kept = self._scene.conversation.first_kept
        return next((i for i, turn in enumerate(turns) if turn.id == kept), 0)
