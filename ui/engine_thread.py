"""The engine's thread: commands in, batched events out.

llama.cpp is called from this thread alone, so commands wait for each other by nature: there are never two decodes at
once. What it computes goes through a `Recorder` to the store and to the screen; it never waits for the screen.
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from spec_local.errors import Aborted, BackendError, ContextFullError, SpecLocalError, UsageError, WorkerError
from spec_local.session.messages import Message
from spec_local.session.provenance import ProvenanceDecoder
from spec_local.session.store_records import StoredMessage
from spec_local.session.window import Turns, fit, reserve_for
from spec_local.ui import events
from spec_local.ui.recorder import Recorder

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.generation import Progress, Prompt, Request
    from spec_local.session.options import EngineOptions
    from spec_local.session.reply_options import ReplyOptions
    from spec_local.session.result import Piece, Result
    from spec_local.session.store import AnswerWriter

_PROGRESS_S = 0.05
_SWITCH_S = 0.0005
_M_ARENA_MAX = -8


class Vocabulary(Protocol):
    """The part of an engine's vocabulary that a chat needs."""

    def piece(self, token: int) -> bytes: ...


class AnswerStream(Protocol):
    """`Stream`, as a chat uses it."""

    @property
    def result(self) -> Result: ...
    @property
    def notices(self) -> tuple[str, ...]: ...
    def __iter__(self) -> Iterator[Piece]: ...
    def close(self) -> None: ...


class ChatEngine(Protocol):
    """`Engine`, as a chat uses it. Tests put a scripted one in its place."""

    n_ctx: int
    notices: list[str]

    @property
    def vocabulary(self) -> Vocabulary: ...
    def tokenize(self, request: Request) -> tuple[list[int], list[str]]: ...
    def complete(self, sampling: Sampling) -> tuple[Sampling, dict[str, str]]: ...
    def describe(self) -> dict[str, Any]: ...
    def stream(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        system: str | None = None,
        raw: bool = False,
        speculate: bool = True,
        reply: ReplyOptions | None = None,
        on_prefill: Progress | None = None,
    ) -> AnswerStream: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """A command that can be cancelled."""

    cancelled: threading.Event = field(default_factory=threading.Event, init=False)


@dataclass(slots=True, eq=False)
class Load(Job):
    """Replace the engine by one with these options."""

    options: EngineOptions


@dataclass(slots=True, eq=False)
class Pull(Job):
    """Fetch a model or pair."""

    name: str


@dataclass(slots=True, eq=False)
class Answer(Job):
    """Answer the last of these turns."""

    key: int
    """Names the answer in every event; the id of its message, or a number below zero for one that is not stored."""
    turns: Sequence[StoredMessage]
    system: str
    sampling: Sampling
    speculate: bool
    writer: AnswerWriter | None
    reply: ReplyOptions
    first: int = 0
    """Turns that earlier prompts dropped."""


Loader = Callable[["EngineOptions", Callable[[str, float], bool]], ChatEngine]
Puller = Callable[[str, Callable[[int, int, str], None]], object]


def load_engine(options: EngineOptions, progress: Callable[[str, float], bool]) -> ChatEngine:
    """The real thing. Imports here and not above: the screen must be there before llama.cpp is."""
    from spec_local.session.engine import load

    return load(options=options, progress=progress)


def pull_model(name: str, progress: Callable[[int, int, str], None]) -> object:
    """Fetch through the catalogue."""
    from spec_local.models_manifest import pull

    return pull(name, progress=progress)


class _Cancelled(Exception):
    """Leaves a download that was cancelled."""


class EngineThread:
    """Owns the engine and the thread it runs in.

    Args:
        post: Takes an event, in the engine's thread; must not block.
        loader: Makes an engine.
        puller: Fetches a model.
    """

    def __init__(
        self,
        post: Callable[[events.EngineEvent], object],
        loader: Loader = load_engine,
        puller: Puller = pull_model,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._loader = loader
        self._puller = puller
        self._clock = clock
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._open: list[Job] = []
        """Submitted and not finished."""
        self._guard = threading.Lock()
        """Held while `_engine` or `_open` change, and by `cancel`, which may come at any moment."""
        self._engine: ChatEngine | None = None
        self._options: EngineOptions | None = None
        """What was loaded last; loaded again where it was lost with a worker."""
        self._thread = threading.Thread(target=self._run, name="spec-local engine", daemon=True)

    def start(self) -> None:
        """Begin to take commands."""
        # This thread takes the interpreter lock back after each call of llama.cpp. While the screen is drawn that takes
        # a whole switch interval, 5 ms by default, a few times for each token.
        sys.setswitchinterval(_SWITCH_S)
        _share_one_heap()
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a command."""
        with self._guard:
            self._open.append(job)
        self._jobs.put(job)

    def cancel(self) -> None:
        """Stop everything that runs or waits, within one pass. May be called from any thread, at any time."""
        with self._guard:
            for job in self._open:
                job.cancelled.set()
            if self._engine is not None:
                self._engine.cancel()

    def close(self, timeout: float = 10.0) -> bool:
        """Stop, free the engine and end the thread; False where it did not end in time."""
        self.cancel()
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, Answer):
                    self._answer(job)
                elif isinstance(job, Load):
                    self._load(job)
                elif isinstance(job, Pull):
                    self._pull(job)
            finally:
                with self._guard:
                    self._open.remove(job)
        self._free()

    def _free(self) -> None:
        with self._guard:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _load(self, job: Load) -> None:
        self._free()
        self._options = None
        try:
            self._post(events.Loaded(job.options, self._make(job.options, job)))
        except Exception as error:
            stopped = UsageError("Loading was stopped.", "/model chooses a model and loads it.")
            self._post(events.LoadFailed(job.options, stopped if job.cancelled.is_set() else as_sentence(error)))

    def _make(self, options: EngineOptions, job: Job) -> events.EngineFacts:
        """Load an engine for `job`, to be used from now on; what keeps it from that is raised."""
        from spec_local.sampling.params import Sampling

        last = 0.0

        def progress(what: str, fraction: float) -> bool:
            nonlocal last
            if fraction >= 1.0 or self._clock() - last >= _PROGRESS_S:
                last = self._clock()
                self._post(events.Loading(what, fraction))
            return not job.cancelled.is_set()

        engine: ChatEngine | None = None
        try:
            if job.cancelled.is_set():
                raise Aborted("Stopped.")
            engine = self._loader(options, progress)
            sampling, origins = engine.complete(Sampling())
            facts = events.EngineFacts(engine.describe(), engine.n_ctx, tuple(engine.notices), sampling, origins)
        except BaseException:
            if engine is not None:
                engine.close()
            raise
        with self._guard:
            self._engine, self._options = engine, options
        return facts

    def _load_again(self, job: Answer) -> None:
        """Load what was lost with a worker, with the workers there are now.

        Raises:
            BackendError: Nothing was loaded before, or, as a `WorkerError`, the worker is still missing.
        """
        if self._options is None:
            raise BackendError("There is no model to answer with.", "/model chooses one.")
        try:
            facts = self._make(self._options, job)
        except BaseException:
            self._post(events.Loading("", 1.0))  # nothing goes on any more
            raise
        self._post(events.Loaded(self._options, facts))

    def _pull(self, job: Pull) -> None:
        last = 0.0

        def progress(done: int, total: int, what: str) -> None:
            nonlocal last
            if job.cancelled.is_set():
                raise _Cancelled
            if self._clock() - last >= _PROGRESS_S:
                last = self._clock()
                self._post(events.Pulling(job.name, what, done, total))

        error: SpecLocalError | None = None
        try:
            self._puller(job.name, progress)
        except _Cancelled:
            error = UsageError(f"Fetching {job.name} was stopped.", "What is there is kept; /pull goes on with it.")
        except Exception as failure:
            error = as_sentence(failure)
        self._post(events.Pulled(job.name, error))

    def _answer(self, job: Answer) -> None:
        recorder = Recorder(job, self._post, self._clock)
        stream: AnswerStream | None = None
        try:
            if self._engine is None and not job.cancelled.is_set():
                self._load_again(job)
            if (engine := self._engine) is not None and not job.cancelled.is_set():
                stream = self._open_stream(engine, job)
                decoder = ProvenanceDecoder(engine.vocabulary.piece)
                for piece in stream:
                    recorder.take(piece, decoder.feed(piece))
                    if job.cancelled.is_set():
                        break
            result = self._close_stream(stream, job.cancelled.is_set())
        except Exception as error:
            if isinstance(error, WorkerError):
                self._free()  # the engine is lost with what the worker held; the next answer loads it again
            if job.cancelled.is_set() and stream is None:
                recorder.end(None)
            else:
                recorder.end(None, as_sentence(error), refused=stream is None and isinstance(error, ContextFullError))
        else:
            recorder.end(result)

    @staticmethod
    def _close_stream(stream: AnswerStream | None, early: bool) -> Result | None:
        if stream is not None and early:
            stream.close()
        return None if stream is None else stream.result

    def _open_stream(self, engine: ChatEngine, job: Answer) -> AnswerStream:
        """Choose the turns that fit, and hand them to the engine."""
        from spec_local.session.generation import Request

        def count(turns: Turns) -> int:
            return len(engine.tokenize(Request(turns, system=job.system or None, reply=job.reply))[0])

        def on_prefill(done: int, total: int) -> None:
            if job.cancelled.is_set():
                engine.cancel()  # the first one may have come before the engine began to listen
            self._post(events.Prefilling(job.key, done, total))

        window = fit(job.turns, count, engine.n_ctx, reserve_for(engine.n_ctx, job.sampling.max_tokens), job.first)
        messages = [Message(role=turn.role, content=turn.prompt_text) for turn in job.turns[window.first :]]
        stream = engine.stream(
            messages,
            sampling=job.sampling,
            system=job.system or None,
            speculate=job.speculate,
            reply=job.reply,
            on_prefill=on_prefill,
        )
        self._post(events.Started(job.key, window.tokens, window.first, stream.notices))
        return stream


def _share_one_heap() -> None:
    """Let the threads that come take memory from the main thread's heap. With glibc each has a heap of its own, which
    gives back to the system what a pass frees, to be mapped anew by the next: a tenth of the speed of decoding."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def as_sentence(error: Exception) -> SpecLocalError:
    """Any failure as an error of ours: a fault of the program must not take the conversation with it."""
    if isinstance(error, SpecLocalError):
        return error
    return BackendError(f"Something unexpected happened: {type(error).__name__}: {error}.", "The chat can go on.")
