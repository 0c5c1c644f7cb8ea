"""From resolved settings to a loaded engine, with progress on stderr and an offer to fetch what is missing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spec_local.cli.options import Setting, values_of
from spec_local.cli.terminal import is_terminal, read_text
from spec_local.environment import variable
from spec_local.errors import ModelError, UsageError
from spec_local.words import harmless

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.engine import Engine
    from spec_local.session.options import EngineOptions
    from spec_local.session.reply_options import ReplyOptions
    from spec_local.session.structured import Structure


def engine_options(settings: Mapping[str, Setting]) -> EngineOptions:
    """The engine's part of the settings, checked."""
    from spec_local.session.options import EngineOptions, engine_options as checked

    with _naming_origins(settings):
        return checked(**values_of(settings, EngineOptions.model_fields))


def sampling(settings: Mapping[str, Setting]) -> Sampling:
    """The sampling part of the settings, checked."""
    from spec_local.sampling.params import Sampling

    with _naming_origins(settings):
        return Sampling.parse(values_of(settings, Sampling.model_fields))


def reply(settings: Mapping[str, Setting]) -> ReplyOptions:
    """The part of the settings about thinking and templates, checked."""
    from spec_local.session.reply_options import ReplyOptions

    with _naming_origins(settings):
        return ReplyOptions.parse(values_of(settings, ReplyOptions.model_fields))


@contextmanager
def _naming_origins(settings: Mapping[str, Setting]) -> Iterator[None]:
    """Say where a value that is refused comes from, if that is not the command line before the person's eyes."""
    try:
        yield
    except UsageError as error:
        origins = [s.origin for name, s in settings.items() if name in error.message.split() and s.origin != "flag"]
        if origins:
            error.hint = f"It comes from the {origins[0]}. {error.hint}".rstrip()
        raise


def structure(settings: Mapping[str, Setting]) -> Structure | None:
    """The schema or grammar the answer follows, read and checked; None where there is none.

    Raises:
        UsageError: Both are given, a file cannot be read, or what it holds cannot be compiled.
    """
    given = [name for name in ("json_schema", "grammar") if name in settings]
    if len(given) > 1:
        raise UsageError("A JSON schema and a grammar exclude each other.", "Leave one of them out.")
    if not given:
        return None
    from spec_local.session.structured import gbnf, json_schema

    path = settings[given[0]].value
    make = json_schema if given[0] == "json_schema" else gbnf
    return make(read_text(path), path)


def load_engine(settings: Mapping[str, Setting], cancelled: Callable[[], bool]) -> Engine:
    """Load the engine and say what was noticed; fetch a missing model first where settings or person allow it."""
    from spec_local.models_manifest import NotPulledError
    from spec_local.session.engine import load

    options = engine_options(settings)
    unasked = variable("SPEC_LOCAL_PULL_UNASKED") is not None  # the set-up's own way to start the program
    pull = settings["pull"].value if "pull" in settings else "always" if unasked else "ask"
    while True:
        try:
            with progress_bar() as report:

                def on_load(what: str, done: float) -> bool:
                    report(done, 1.0, what)
                    return not cancelled()

                engine = load(options=options, progress=on_load)
            break
        except NotPulledError as error:
            if pull == "never" or (pull == "ask" and not _agrees(error)):
                raise
            pull_model(error.name)
    for notice in engine.notices:
        print(f"note: {harmless(notice)}", file=sys.stderr, flush=True)
    return engine


def pull_model(name: str, offline: bool = False) -> Any:
    """Fetch a model or pair; stderr says how large it is, how far, and how long it took. Returns its (first) file."""
    from spec_local.models_manifest import list_models, load_catalogue, models_of, pull, show_bytes

    catalogue = load_catalogue()
    wanted = [catalogue.find(model) for model in models_of(name, catalogue)]
    here = {(m.entry.name, m.variant.quantisation) for m in list_models() if m.path and m.entry and m.variant}
    missing = [found for found in wanted if (found[0].name, found[1].quantisation) not in here]
    sizes = [variant.shown_bytes or 0 for _, variant in missing]
    if missing and not offline:
        each = [
            f"{entry.name} ({variant.quantisation}{f', {show_bytes(size)}' if size else ''})"
            for (entry, variant), size in zip(missing, sizes, strict=True)
        ]
        total = f": {show_bytes(sum(sizes))} in all" if len(missing) > 1 and all(sizes) else ""
        print(harmless(f"Fetching {' and '.join(each)}{total}"), file=sys.stderr, flush=True)
    started = time.monotonic()
    with progress_bar("", as_bytes=True) as report:
        path = pull(name, progress=report, offline=offline)
    done = f"Fetched in {spoken(time.monotonic() - started)}" if missing else "Everything was here already"
    print(done, file=sys.stderr, flush=True)
    return path


def spoken(seconds: float) -> str:
    """`8 s`, `2 min 5 s`, `1 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def progress_bar(verb: str = "", as_bytes: bool = False) -> Iterator[Callable[[float, float, str], None]]:
    """A transient bar on stderr where that is a terminal; one line per file elsewhere for long work."""
    if not is_terminal(sys.stderr):
        yield _Lines().report if as_bytes else lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns: list[Any] = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [DownloadColumn(), TransferSpeedColumn()] if as_bytes else []
    columns.append(TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=None)

        def report(done: float, total: float, what: str) -> None:
            description = harmless(f"{verb} {what}".strip())
            progress.update(task, completed=done, total=total or None, description=description)

        yield report


class _Lines:
    """Progress where nobody looks at a terminal, in a log for instance: a line at every step, and one now and then."""

    def __init__(self, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._what = ""
        self._started = self._next = 0.0
        self._first = 0.0
        """Bytes that were done when this step began."""

    def report(self, done: float, total: float, what: str) -> None:
        """Take note of `done` of `total` bytes; 0 where the total is unknown."""
        from spec_local.models_manifest import show_bytes

        now = self._clock()
        size = show_bytes(int(total)) if total else "unknown size"
        if what != self._what:
            self._what, self._started, self._first, self._next = what, now, done, now + self._every_s
            begun = f", {show_bytes(int(done))} of it here already" if done else ""
            print(harmless(f"{what} ({size}{begun})"), file=sys.stderr, flush=True)
        elif now >= self._next:
            self._next = now + self._every_s
            speed = (done - self._first) / (now - self._started)
            text = f"{what}: {show_bytes(int(done))} of {size}, {show_bytes(int(speed))}/s"
            left = f", {spoken((total - done) / speed)} left" if total and speed > 0 else ""
            print(harmless(text + left), file=sys.stderr, flush=True)


def _agrees(error: ModelError) -> bool:
    """Ask the person at the terminal whether to fetch what is missing."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return False
    name = getattr(error, "name", "it")
    sys.stderr.write(harmless(f"{error.message} Fetch {name} now? [Y/n] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")
