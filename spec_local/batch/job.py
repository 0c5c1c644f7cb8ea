"""A whole run: source → items → runner → records, with resume, limits on errors, and the account of it all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from spec_local.batch.output import OutputFile
from spec_local.batch.records import BadLine, Item, Layout, read_items
from spec_local.batch.requests import Recipe
from spec_local.batch.resume import plan_resumption
from spec_local.batch.runner import BatchEngine, Outcome, Runner
from spec_local.batch.source import Source
from spec_local.batch.summary import Summary
from spec_local.session.concurrency import Concurrency


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How a run behaves."""

    layout: Layout = field(default_factory=Layout)
    resume: bool = False
    """Go on with what the output file holds."""
    retry_cut: bool = False
    """Answer again what ended before its schema or grammar was complete."""
    echo_input: bool = False
    """Put each line's own fields into its record."""
    max_errors: int | None = None
    """Begin nothing more after so many failures; None: go on."""
    timeout_s: float | None = None
    """Seconds one item may take."""


class Job:
    """One run. `run` is iterated in one thread; `runner.drain` and `runner.stop` may come from others.

    Args:
        engine: Answers.
        slots: Its cache slots.
        recipe: What all lines share.
        source: The input.
        output: The output, opened for resuming where `options.resume` says so.
        options: How it behaves.
        concurrency: How many slots to use.
    """

    def __init__(
        self,
        engine: BatchEngine,
        slots: int,
        recipe: Recipe,
        source: Source,
        output: OutputFile,
        options: BatchOptions,
        concurrency: Concurrency | None = None,
    ) -> None:
        self.summary = Summary()
        self.stopped: str | None = None
        """Why the run ended before its input did."""
        self.runner = Runner(
            engine,
            slots,
            recipe.request,
            fingerprint=recipe.fingerprint,
            concurrency=concurrency,
            timeout_s=options.timeout_s,
        )
        self._recipe = recipe
        self._source = source
        self._output = output
        self._options = options
        self._done: set[int] = set()

    def plan(self) -> None:
        """Before anything is answered: find out what an earlier run has done, and drop what is to be done again.

        Raises:
            UsageError: The output file is something else.
            OutputError: It cannot be read or written.
        """
        if not self._options.resume:
            return
        self._source.keep()
        stream = self._source.open()
        items = read_items(stream, self._options.layout)
        plan = plan_resumption(self._output, items, self._recipe.fingerprint, self._options.retry_cut)
        self._output.keep(plan.kept)
        self.summary.kept = len(plan.done)
        self._done = plan.done
        for note in plan.notes:
            self.summary.note(note)

    def run(self) -> Iterator[Outcome]:
        """Answer what is left; every outcome has been written when it is handed out.

        Raises:
            BackendError: The backend fails whatever it is given.
            UsageError: The input cannot be read.
            OutputError: The output cannot be written.
        """
        with self._source.open() as stream:
            items = self.summary.watch(read_items(stream, self._options.layout))
            for outcome in self.runner.run(self._remaining(items)):
                self._output.write(outcome.record(self._options.echo_input))
                self.summary.add(outcome)
                limit = self._options.max_errors
                if limit is not None and self.summary.failed >= limit and not self.runner.draining:
                    self.stopped = f"stopped after {limit} failure{'s' if limit > 1 else ''}"
                    self.runner.drain()
                yield outcome

    def _remaining(self, items: Iterator[Item | BadLine]) -> Iterator[Item | BadLine]:
        return (item for item in items if item.line not in self._done)
