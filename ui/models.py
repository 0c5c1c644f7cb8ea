"""Loading and fetching models from within the chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spec_local.errors import ModelError, SpecLocalError, UsageError, WorkerError
from spec_local.models_manifest import show_bytes
from spec_local.ui import events
from spec_local.ui.engine_thread import EngineThread, Job, Load, Pull
from spec_local.ui.stage import Stage
from spec_local.ui.transcript import Notice

if TYPE_CHECKING:
    from spec_local.session.options import EngineOptions


class Models:
    """What is loaded, and what is being loaded or fetched.

    Args:
        stage: The application.
        engine_thread: The engine's thread.
    """

    def __init__(self, stage: Stage, engine_thread: EngineThread) -> None:
        self._stage = stage
        self._engine_thread = engine_thread
        self.facts: events.EngineFacts | None = None
        """What is loaded; None while nothing is."""
        self.options: EngineOptions | None = None
        """What was asked to be loaded last."""
        self.doing = ""
        """What goes on, for people; empty while nothing does."""
        self._job: Job | None = None
        self._pulling: Notice | None = None
        self._said: set[str] = set()

    @property
    def busy(self) -> bool:
        """Something is being loaded or fetched."""
        return self._job is not None

    def load(self, options: EngineOptions) -> None:
        """Replace what is loaded."""
        self.options, self.facts, self.doing = options, None, "loading"
        self._submit(Load(options))

    def pull(self, name: str) -> None:
        """Fetch a model; then load what was asked for last, if nothing is loaded."""
        self.refuse_second_pull()
        self.doing = f"fetching {name}"
        self._submit(Pull(name))
        self._pulling = self._stage.transcript.note(f"Fetching {name} …", "Esc stops; what is there is kept.")

    def refuse_second_pull(self) -> None:
        """Raise `UsageError` while a model is being fetched."""
        if isinstance(self._job, Pull):
            raise UsageError(f"{self._job.name} is being fetched already.", "Esc stops that.")

    def handle(self, event: events.EngineEvent) -> None:
        """Take an event about models."""
        if isinstance(event, events.Loading):
            self.doing = event.what if event.fraction >= 1.0 else f"{event.what} {event.fraction:.0%}"
        elif isinstance(event, events.Loaded):
            self.facts, self.options, self.doing, self._job = event.facts, event.options, "", None
            for notice in event.facts.notices:
                self.say_once(notice)
        elif isinstance(event, events.LoadFailed):
            self._load_failed(event)
        elif isinstance(event, events.Pulling):
            self._pulling_on(event)
        elif isinstance(event, events.Pulled):
            self._pulled(event)

    def without_workers(self, error: SpecLocalError | None) -> list[tuple[str, Callable[[], Any]]]:
        """The way on where a worker failed and the model may run here."""
        options = self.options
        if not isinstance(error, WorkerError) or options is None or not options.rpc:
            return []
        return [("Go on without workers", lambda: self.load(options.without_workers()))]

    def say_once(self, notice: str) -> None:
        """Show a notice, unless it was shown before."""
        if notice not in self._said:
            self._said.add(notice)
            self._stage.transcript.note(notice)

    def _submit(self, job: Job) -> None:
        self._job = job
        self._stage.transcript.settle_offers()
        self._engine_thread.submit(job)
        self._stage.refresh_state()

    def _load_failed(self, event: events.LoadFailed) -> None:
        self.doing, self._job = "", None
        error, name = event.error, getattr(event.error, "name", None)
        choose: tuple[str, Callable[[], Any]] = ("Choose a model", self._stage.pick_model)
        again: tuple[str, Callable[[], Any]] = ("Try again", lambda: self.load(event.options))
        if isinstance(error, ModelError) and isinstance(name, str):  # nothing went wrong: it only is not here yet
            size = getattr(error, "bytes", None)
            fetch = f"Fetch {name}" + (f" ({show_bytes(size)})" if size else "")
            notice = Notice(error.message, "Once it is here, everything works offline.")
            self._stage.transcript.offer(notice, [(fetch, lambda: self.pull(name)), choose, again])
        else:
            choices = [again, choose, *self.without_workers(error)]
            self._stage.transcript.offer(Notice(error.message, error.hint, "error"), choices)

    def _pulling_on(self, event: events.Pulling) -> None:
        share = f" {event.done / event.total:.0%}" if event.total else ""
        self.doing = f"fetching {event.name}{share}"
        if self._pulling is not None:
            of = f" of {show_bytes(event.total)} ({share.strip()})" if event.total else ""
            self._pulling.say(f"{event.what}: {show_bytes(event.done)}{of}", self._pulling.hint)

    def _pulled(self, event: events.Pulled) -> None:
        notice, self._pulling, self._job, self.doing = self._pulling, None, None, ""
        if event.error is not None:
            if notice is not None:
                notice.remove()
            failed = Notice(event.error.message, event.error.hint, "error")
            choices = [("Go on fetching", lambda: self.pull(event.name)), ("Choose a model", self._stage.pick_model)]
            self._stage.transcript.offer(failed, choices)
            return
        if notice is not None:
            notice.say(f"{event.name} is here now.")
        if self.facts is None and self.options is not None:
            self.load(self.options)
