"""From resolved settings to a loaded engine, with progress on stderr and an offer to fetch what is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spec_local.cli.options import Setting, values_of
from spec_local.cli.terminal import is_terminal, read_text
from spec_local.errors import ModelError, UsageError

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.engine import Engine
    from spec_local.session.options import EngineOptions
    from spec_local.session.structured import Structure


def engine_options(settings: Mapping[str, Setting]) -> EngineOptions:
    """The engine's part of the settings, checked."""
    from spec_local.session.options import EngineOptions, engine_options as checked

    return checked(**values_of(settings, EngineOptions.model_fields))


def sampling(settings: Mapping[str, Setting]) -> Sampling:
    """The sampling part of the settings, checked."""
    from spec_local.sampling.params import Sampling

    return Sampling.parse(values_of(settings, Sampling.model_fields))


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
    """Load the engine; fetch a missing model first where the settings or the person allow it."""
    from spec_local.models_manifest import NotPulledError
    from spec_local.session.engine import Engine
    from spec_local.session.loading import load_models

    options = engine_options(settings)
    pull = settings["pull"].value if "pull" in settings else "ask"
    while True:
        try:
            with progress_bar("loading") as report:

                def on_load(what: str, done: float) -> bool:
                    report(done, 1.0, what)
                    return not cancelled()

                loaded = load_models(options, on_load)
            return Engine(loaded)
        except NotPulledError as error:
            if pull == "never" or (pull == "ask" and not _agrees(error)):
                raise
            pull_model(error.name)


def pull_model(name: str, offline: bool = False) -> Any:
    """Fetch a model or pair with a progress bar on stderr; returns the path of its (first) file."""
    from spec_local.models_manifest import pull

    with progress_bar("fetching", as_bytes=True) as report:
        return pull(name, progress=report, offline=offline)


@contextmanager
def progress_bar(verb: str, as_bytes: bool = False) -> Iterator[Callable[[float, float, str], None]]:
    """A transient bar on stderr where that is a terminal; one line per file elsewhere for long work."""
    if not is_terminal(sys.stderr):
        seen: set[str] = set()

        def line(_done: float, total: float, what: str) -> None:
            if as_bytes and what not in seen:
                seen.add(what)
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                print(f"{verb} {what}{size}", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns: list[Any] = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()] if as_bytes else []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=None)

        def report(done: float, total: float, what: str) -> None:
            progress.update(task, completed=done, total=total or None, description=f"{verb} {what}")

        yield report


def _agrees(error: ModelError) -> bool:
    """Ask the person at the terminal whether to fetch what is missing."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return False
    name = getattr(error, "name", "it")
    sys.stderr.write(f"{error.message} Fetch {name} now? [Y/n] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")
