"""Models whose layers lie on workers, in a process that may die.

Where a worker is lost, llama.cpp ends the process it runs in. So a model that uses workers lives in a child process
(`host`), and this side of it is a `HostedContext`: to everybody else a `ModelContext` like any other. When the child
dies, the call that was under way raises `WorkerError`, nothing else is lost, and a new `Host` can load again.

Requests and answers go through the child's standard input and output, pickled. Logits and hidden states do not: the
child copies the rows of a pass into memory both share, where they are read in place. The flag that stops a pass lies
there too.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import numpy as np

from spec_local.errors import Aborted, BackendError, SpecLocalError, WorkerError
from spec_local.language_model import Chunk, Logits, Memory, MemoryKind, States
from spec_local.llama.library import is_verbose
from spec_local.llama.model import Model, Offload
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.rpc import missing_workers
from spec_local.llama.shared_memory import CANCEL_LOAD, FLAGS, share
from spec_local.llama.signals import signal_name

PATIENCE_S = 30.0
"""A pass that has not stopped so long after it was asked to hangs on a worker that hangs."""
_CLOSE_S = 5.0
_AGAIN = "Load again when the worker is back, or go on without it."


class Host:
    """A child process that loads models onto workers.

    Args:
        endpoints: HOST:PORT of the workers, asked before (`rpc.ask_workers`).
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self.endpoints = tuple(endpoints)
        self.lost = ""
        """Why the child is gone; empty while it lives."""
        self._hangs = False
        self._busy = 0
        """Number of the call under way; even while there is none."""
        self._guard = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._child = subprocess.Popen(
            [sys.executable, "-m", "spec_local.llama.host", "verbose" if is_verbose() else "quiet", *self.endpoints],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if is_verbose() else self._errors,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # a debugger would take seconds to say nothing to a person
        )
        atexit.register(self.kill)

    def open(
        self,
        path: Path,
        offload: Offload,
        options: ContextOptions,
        progress: Callable[[float], bool] | None = None,
    ) -> HostedContext:
        """Load a model and make a context of it.

        Args:
            path: A GGUF file, on this machine.
            offload: Where the weights go; workers' devices are RPC0, RPC1, …
            options: Of the context.
            progress: Called with 0.0 … 1.0 while loading; return False to cancel.

        Raises:
            ModelError: The file cannot be loaded.
            Aborted: `progress` said so.
            BackendError: There is no room, or, as a `WorkerError`, a worker was lost.
        """
        model = HostedModel(path)
        try:
            context = HostedContext(self, model, options)
            context.load(offload, progress)
        except BaseException:
            model.close()
            raise
        return context

    def call(self, *request: Any, progress: Callable[[Any], None] | None = None) -> Any:
        """Ask the child for something and wait for its answer.

        Args:
            request: The name of what to do, and its arguments.
            progress: Called with what the child reports before it answers.

        Raises:
            WorkerError: The child is gone.
            SpecLocalError: What the child raised.
        """
        with self._guard:
            if self.lost:
                raise WorkerError(self.lost, _AGAIN)
            assert self._child.stdin is not None and self._child.stdout is not None
            self._busy += 1
            try:
                pickle.dump(request, self._child.stdin, pickle.HIGHEST_PROTOCOL)
                self._child.stdin.flush()
                while True:
                    kind, value = pickle.load(self._child.stdout)
                    if kind != "progress":
                        break
                    if progress is not None:
                        progress(value)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self.lost = self._obituary(str(request[0]))
                raise WorkerError(self.lost, _AGAIN) from error
            except BaseException:  # from `progress`: nobody will read the answer that is on its way
                self.lost = "Loading was broken off."
                self.kill()
                raise
            finally:
                self._busy += 1
        if kind == "error":
            assert isinstance(value, SpecLocalError)
            raise value
        return value

    def expect_stop(self) -> None:
        """The call under way was asked to stop; where it does not, the child is ended."""
        busy = self._busy
        if busy % 2 == 0:
            return

        def give_up() -> None:
            if self._busy == busy:
                self._hangs = True
                self.kill()

        timer = threading.Timer(PATIENCE_S, give_up)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """End the child; harmless when done twice."""
        if self._child.poll() is None and self._child.stdin is not None:
            try:
                self._child.stdin.close()  # it ends at the end of its input, freeing what the workers hold
                self._child.wait(_CLOSE_S)
            except (OSError, subprocess.TimeoutExpired):
                self.kill()
        self.lost = self.lost or "This model was closed."
        atexit.unregister(self.kill)

    def kill(self) -> None:
        """End the child now."""
        self._child.kill()

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _obituary(self, doing: str) -> str:
        """Why the child died, as a sentence."""
        try:
            code = self._child.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._child.wait()
        during = {"open": " while the model was loaded", "decode": " in the middle of a pass"}.get(doing, "")
        if self._hangs:
            return f"A pass did not stop within {PATIENCE_S:g} s: a worker hangs ({', '.join(self.endpoints)})."
        if missing := missing_workers(self.endpoints):
            return f"A worker was lost{during}: {' '.join(error.message for error in missing)}"
        if code in (-signal.SIGABRT, 3):  # abort() ends a process with status 3 on Windows
            said = self._last_word()
            if not said or "RPC" in said or "rpc" in said:
                return f"A worker was lost{during} and is back ({', '.join(self.endpoints)})."
            return f"llama.cpp gave up{during}: {said}"
        how = f"with {signal_name(code)}" if code < 0 else f"with status {code}"
        return f"The process that held the model ended {how}{during}."

    def _last_word(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


class HostedModel(Model):
    """A model of a `Host`: its vocabulary is here, its weights are there."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Offload(devices=("none",)), vocabulary_only=True)
        self.facts: dict[str, Any] = {}
        """What the child says of the model: the properties below."""

    n_swa = property(lambda self: self.facts["n_swa"])
    recurrent = property(lambda self: self.facts["recurrent"])
    description = property(lambda self: self.facts["description"])


FACTS = ("n_swa", "recurrent", "description")


@dataclass(frozen=True, slots=True)
class Found:
    """What the child finds out about a context it has made; the fields of a `ModelContext`."""

    facts: dict[str, Any]
    """Of the model; see `FACTS`."""
    memory: Memory
    n_batch: int
    state_width: int
    no_states: str


class HostedContext:
    """A `ModelContext` in a `Host`."""

    def __init__(self, host: Host, model: HostedModel, options: ContextOptions) -> None:
        self.model = model
        self.options = options
        self.n_vocab: int = model.vocabulary.size
        self.n_ctx: int = options.n_ctx
        self.n_batch: int = options.n_batch
        self.width: Callable[[int], int] = int
        self.memory = Memory()
        self.state_width = 0
        self.no_states = ""
        self._host = host
        self._name = uuid4().hex
        """Names this context in requests."""
        self._closed = False
        self._lengths = [0] * options.n_seq
        """Tokens in each cache, as the child's cache itself said after its last operation."""
        self._shared, self._release, self._place = share(FLAGS + 4 * options.most_rows * self.n_vocab)
        self._rows: Logits = np.frombuffer(self._shared, np.float32, offset=FLAGS).reshape(-1, self.n_vocab)
        self._state_rows: States = np.empty((0, 0), np.float32)
        """[n_batch, state_width], in shared memory; empty where none were asked for."""
        self._computed: Sequence[Chunk] = ()
        """The last pass, if it succeeded."""

    def load(self, offload: Offload, progress: Callable[[float], bool] | None) -> None:
        """Load the model in the child; see `Host.open`."""

        def on_progress(fraction: float) -> None:
            if progress is not None and not progress(fraction):
                self._shared[CANCEL_LOAD] = 1

        self.model.facts = self._begin("open", self.model.path, offload, progress=on_progress)

    def sibling(self, options: ContextOptions) -> HostedContext:
        """See `ModelContext.sibling`."""
        context = HostedContext(self._host, self.model, options)
        context._begin("sibling", self._name)
        return context

    def _begin(self, what: str, *of: Any, progress: Callable[[Any], None] | None = None) -> dict[str, Any]:
        """Have the child make its side of this context, and find out how its caches can be cut back."""
        place = self._place, len(self._shared)
        try:
            found: Found = self._host.call(what, self._name, place, self.options, *of, progress=progress)
        finally:
            self._release()
        self.memory, self.n_batch = found.memory, found.n_batch
        self.state_width, self.no_states = found.state_width, found.no_states
        if self.state_width:
            self._share_states()
        return found.facts

    def _share_states(self) -> None:
        """Give the child memory for the hidden states of a whole batch; how wide they are only it could tell."""
        shared, release, place = share(4 * self.n_batch * self.state_width)
        try:
            self._call("share_states", (place, len(shared)))
        finally:
            release()
        self._state_rows = np.frombuffer(shared, np.float32).reshape(-1, self.state_width)

    def decode(self, chunks: Sequence[Chunk]) -> list[Logits]:
        """Evaluate all chunks in one pass; see `LanguageModel.decode`."""
        self._computed = ()
        assert self.state_width or not any(chunk.states for chunk in chunks), f"no hidden states: {self.no_states}"
        if self._closed:
            raise BackendError(f"The context of {self.model.path.name} is closed.")
        if self._shared[0]:
            raise Aborted("A pass was stopped before it began.")
        width = self.width(sum(chunk.rows for chunk in chunks))
        self._call("decode", [(chunk.seq, list(chunk.tokens), chunk.rows, chunk.states) for chunk in chunks], width)
        self._computed = chunks
        ends = np.cumsum([chunk.rows for chunk in chunks])
        return [self._rows[end - chunk.rows : end] for chunk, end in zip(chunks, ends, strict=True)]

    def states(self) -> list[States | None]:
        """See `StatesModel.states`."""
        found: list[States | None] = []
        at = 0
        for chunk in self._computed:
            end = at + len(chunk.tokens) * chunk.states
            found.append(self._state_rows[at:end] if chunk.states else None)
            at = end
        return found

    def length(self, seq: int) -> int:
        """Tokens in the cache of `seq`, by the cache's own account."""
        return self._lengths[seq]

    def foothold(self, seq: int, length: int) -> int:
        """See `LanguageModel.foothold`."""
        held = self._lengths[seq]
        if not 0 < length < held or (self.memory.kind is MemoryKind.ANYWHERE and not self.model.n_swa):
            return max(0, min(length, held))
        found: int = self._call("foothold", seq, length)
        return found

    def mark(self, seq: int, ahead: int | None = None) -> None:
        """See `LanguageModel.mark`."""
        if self.memory.kind not in (MemoryKind.ANYWHERE, MemoryKind.NOWHERE):
            self._call("mark", seq, ahead)

    def trim(self, seq: int, length: int) -> None:
        """Cut the cache of `seq` back to `length` tokens; see `LanguageModel.trim`."""
        if length != self._lengths[seq]:
            self._call("trim", seq, length)

    def copy(self, source: int, target: int, length: int) -> None:
        """See `SharingModel.copy`."""
        self._call("copy", source, target, length)

    def checkpoint(self, seq: int) -> bytes:
        """See `ModelContext.checkpoint`."""
        state: bytes = self._call("checkpoint", seq)
        return state

    def restore(self, seq: int, state: bytes) -> None:
        """See `ModelContext.restore`."""
        self._call("restore", seq, state)

    def abort(self, stop: bool) -> None:
        """See `ModelContext.abort`. A worker cannot stop inside a pass: the one under way ends before its next part."""
        self._shared[0] = int(stop)
        if stop:
            self._host.expect_stop()

    def close(self) -> None:
        """Free the caches; harmless when done twice."""
        if not self._closed:
            self._closed = True
            self._computed = ()
            self._lengths = [0] * len(self._lengths)
            if not self._host.lost:
                try:
                    self._host.call("close", self._name)
                except WorkerError:
                    return  # what it held is gone with it

    def _call(self, what: str, *arguments: Any) -> Any:
        """An operation on the caches; the child says how long they are after it, whether it succeeded or not."""
        try:
            value, self._lengths = self._host.call(what, self._name, *arguments)
        except WorkerError:
            self._lengths = [0] * len(self._lengths)
            raise
        if isinstance(value, SpecLocalError):
            raise value
        return value
