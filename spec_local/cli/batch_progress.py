"""The progress bar of a batch: on stderr, and only where that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spec_local.cli.terminal import is_terminal

if TYPE_CHECKING:
    from spec_local.batch.job import Job
    from spec_local.batch.source import Source

_EVERY_S = 0.2


@contextmanager
def progress(job: Job, source: Source) -> Iterator[Callable[[], None]]:
    """A bar with speed, acceptance and the time left; yields what is to be called after every round."""
    if not is_terminal(sys.stderr):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    figures = TextColumn("{task.fields[figures]}", markup=False)
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), figures, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=source.lines(), completed=job.summary.done, figures="")
        started, shown = time.perf_counter(), 0.0

        def show() -> None:
            nonlocal shown
            now = time.perf_counter()
            if now - shown < _EVERY_S:
                return
            shown = now
            runner, summary = job.runner, job.summary
            parts = [f"{runner.emitted / max(now - started, 1e-9):.1f} tokens/s", f"{runner.active} at once"]
            rate = summary.statistics.acceptance_rate
            if rate is not None:
                parts.append(f"{rate:.0%} accepted")
            if summary.failed:
                parts.append(f"{summary.failed} failed")
            bar.update(task, completed=summary.done, figures=", ".join(parts))

        yield show
