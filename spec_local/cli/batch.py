"""`spec-local generate --input FILE`: every line of a file answered, one record each."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.options import Setting
from spec_local.cli.terminal import is_terminal, patience
from spec_local.errors import SpecLocalError, UsageError
from spec_local.words import counted, harmless

if TYPE_CHECKING:
    from spec_local.batch.job import BatchOptions, Job
    from spec_local.batch.records import InputFormat
    from spec_local.batch.requests import Recipe
    from spec_local.batch.source import Source
    from spec_local.sampling.params import Sampling
    from spec_local.session.concurrency import Concurrency
    from spec_local.session.engine import Engine
    from spec_local.session.structured import Structure

_SUFFIXES: dict[str, InputFormat] = {".txt": "text", ".text": "text", ".csv": "csv", ".tsv": "csv", ".tab": "csv"}
_JOIN_S = 0.2
_LAST_PASS_S = 30.0
"""Seconds to wait for the engine to let go after the second Ctrl-C."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a batch; all of them need `--input`, but for `--output`, which is shared."""
    batch = parser.add_argument_group("many prompts")
    batch.add_argument("--input", metavar="FILE", help="answer every line of a file; - for standard input")
    batch.add_argument(
        "--input-format",
        choices=("jsonl", "text", "csv"),
        help="default: by the file's name, else jsonl; csv: also ; or tab",
    )
    batch.add_argument("--column", metavar="NAME", help="CSV column or JSON field with the prompt (default: prompt)")
    batch.add_argument("--template", metavar="T", help="make the prompt from fields, as in 'Summarise: {text}'")
    batch.add_argument(
        "--parallel", type=_parallel, metavar="N", help="sequences decoded together, or auto (default: auto)"
    )
    batch.add_argument("--resume", action="store_true", help="go on with the output file of an earlier run")
    batch.add_argument(
        "--retry-cut", action="store_true", help="with --resume: answer again what was cut inside its schema or grammar"
    )
    batch.add_argument("--echo-input", action="store_true", help="put each line's own fields into its record")
    batch.add_argument("--summary", metavar="FILE", help="write counts and speed as one JSON object")
    batch.add_argument("--fail-fast", action="store_true", help="begin nothing more after the first failure")
    batch.add_argument("--max-errors", type=_count, metavar="N", help="begin nothing more after N failures")
    batch.add_argument("--timeout-per-item", type=_seconds, metavar="S", help="fail an item that takes longer")


def check(arguments: Any) -> None:
    """Refuse flags that do not go together.

    Raises:
        UsageError: Batch flags without `--input`, or a prompt beside it.
    """
    if arguments.input is not None:
        for name, flag in (("prompt", "--prompt"), ("file", "--file")):
            if getattr(arguments, name) is not None:
                raise UsageError(f"{flag} and --input exclude each other.", "Use --template to add to every line.")
        if arguments.retry_cut and not arguments.resume:
            raise UsageError("--retry-cut needs --resume.", "Add --resume to go on with an output file.")
        return
    alone = (
        "input_format",
        "column",
        "template",
        "parallel",
        "resume",
        "retry_cut",
        "echo_input",
        "summary",
        "fail_fast",
    )
    for name in (*alone, "max_errors", "timeout_per_item"):
        if getattr(arguments, name) not in (None, False):
            raise UsageError(f"--{name.replace('_', '-')} needs --input.", "Name the file of prompts with --input.")


def run(arguments: Any, settings: Mapping[str, Setting]) -> int:
    """Answer a file; see the module."""
    from spec_local.batch.output import OutputFile
    from spec_local.batch.source import Source
    from spec_local.cli.interrupt import Interrupt
    from spec_local.cli.loading import engine_options, load_engine, reply, sampling, structure

    options, wanted, shape = _options(arguments), sampling(settings), structure(settings)
    answers = reply(settings)
    source = Source(arguments.input)
    source.check(options.layout)
    destination = arguments.output or "-"
    _check_files(source, destination, arguments.summary)
    slots, settings = _slots(arguments.parallel, settings)
    engine_options(settings)
    with (
        OutputFile(destination, resume=options.resume) as output,
        Interrupt() as interrupt,
    ):
        try:
            engine = load_engine(settings, lambda: interrupt.seen)
        except SpecLocalError:
            if interrupt.seen:
                return ExitCode.INTERRUPTED
            raise
        with engine:
            from spec_local.batch.job import Job

            recipe = replace(_recipe(arguments, engine, wanted, shape), reply=answers)
            concurrency = _concurrency(arguments.parallel, slots)
            job = Job(engine, slots, recipe, source, output, options, concurrency)
            try:
                return _play(job, engine, source, interrupt)
            finally:
                job.stopped = job.stopped or ("interrupted" if interrupt.seen else None)
                _account(job, engine, arguments)


def _play(job: Job, engine: Engine, source: Any, interrupt: Any) -> int:
    """Run the job in a thread, so that Ctrl-C is seen at once: the first one drains, the second stops."""
    from spec_local.cli.batch_progress import progress

    raised: list[BaseException] = []

    def work() -> None:
        try:
            with _patience(source):
                job.plan()
                with progress(job, source) as show:
                    job.runner.on_step = show
                    for _ in job.run():
                        show()
        except BaseException as error:
            raised.append(error)

    def on_first() -> None:
        job.runner.drain()
        count = job.runner.active
        _say(f"Finishing {counted(count, 'answer')} in flight; Ctrl-C again to stop now.")

    interrupt.on_first = on_first
    if interrupt.seen:
        job.runner.drain()
    worker = threading.Thread(target=work, name="spec-local batch", daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            worker.join(_JOIN_S)
    except KeyboardInterrupt:
        job.stopped = "stopped at once"
        job.runner.stop()
        worker.join(_LAST_PASS_S)
        return ExitCode.INTERRUPTED
    if raised:
        job.stopped = getattr(raised[0], "message", None) or repr(raised[0])
        raise raised[0]
    if interrupt.seen:
        return ExitCode.INTERRUPTED
    return ExitCode.SOME_FAILED if job.summary.failed else ExitCode.OK


@contextmanager
def _patience(source: Source) -> Iterator[None]:
    """Say so where standard input brings no line for a second."""
    if source.name != "-":
        yield
        return
    with patience("Waiting for lines on standard input.") as source.came:
        yield


def _options(arguments: Any) -> BatchOptions:
    from pathlib import Path

    from spec_local.batch.job import BatchOptions
    from spec_local.batch.prompt_template import PromptTemplate
    from spec_local.batch.records import Layout

    form: InputFormat = arguments.input_format or _SUFFIXES.get(Path(arguments.input).suffix.lower(), "jsonl")
    if arguments.column and (form == "text" or arguments.template):
        raise UsageError(
            "--column does not go with " + ("text input." if form == "text" else "--template."),
            "Name the column inside the template." if arguments.template else "Use --input-format csv or jsonl.",
        )
    template = None if arguments.template is None else PromptTemplate(arguments.template)
    return BatchOptions(
        layout=Layout(form, arguments.column, template),
        resume=arguments.resume,
        retry_cut=arguments.retry_cut,
        echo_input=arguments.echo_input,
        max_errors=1 if arguments.fail_fast else arguments.max_errors,
        timeout_s=arguments.timeout_per_item,
    )


def _check_files(source: Any, output: str, summary: str | None) -> None:
    """No file may be read and written, or written twice."""
    from pathlib import Path

    for name, flag in ((output, "--output"), (summary, "--summary")):
        if name is not None and source.is_file(name):
            raise UsageError(f"{flag} is the input file {name}.", "Choose another one.")
    if summary == output == "-":
        raise UsageError("Records and summary cannot both go to standard output.", "Give --output or --summary a file.")
    if summary is not None and output != "-" and Path(summary).resolve() == Path(output).resolve():
        raise UsageError("--output and --summary are the same file.", "Choose another one.")


def _slots(parallel: int | str | None, settings: Mapping[str, Setting]) -> tuple[int, dict[str, Setting]]:
    """Cache slots to load, and the settings with them."""
    from spec_local.batch.slots import affordable_slots
    from spec_local.cli.loading import engine_options

    slots = parallel if isinstance(parallel, int) else affordable_slots(engine_options(settings))
    return slots, {**settings, "parallel": Setting(slots, "flag")}


def _concurrency(parallel: int | str | None, slots: int) -> Concurrency:
    from spec_local.session.concurrency import Fixed, Measured

    return Fixed(slots) if isinstance(parallel, int) else Measured(slots)


def _recipe(arguments: Any, engine: Engine, wanted: Sampling, shape: Structure | None) -> Recipe:
    """What all lines share, and what an answer depends on besides: under the coupled rule not on the draft."""
    from pathlib import Path

    from spec_local.batch.requests import Recipe
    from spec_local.sampling import RULES
    from spec_local.text_files import read_text_file

    facts, options = engine.describe(), engine.options
    path = Path(facts["target_path"])
    model: dict[str, Any] = {"target": facts["target"], "bytes": path.stat().st_size if path.exists() else None}
    if options.chat_template is not None:
        model["chat_template"] = read_text_file(options.chat_template)
    if not RULES[options.acceptance].reproducible:
        model |= {"acceptance": options.acceptance, "draft": facts["draft"], "draft_length": options.draft_length}
    return Recipe(wanted, arguments.system, arguments.raw, shape, model=model)


def _account(job: Job, engine: Engine, arguments: Any) -> None:
    """Notes and one line on stderr, and the summary file."""
    for note in job.summary.notes:
        _say(f"note: {note}")
    _say(job.summary.line(job.stopped))
    if job.stopped in ("interrupted", "stopped at once") and arguments.output not in (None, "-"):
        _say("  The same command with --resume goes on.")
    if job.summary.cut:
        _say("  A larger --max-tokens answers them again with --resume; --resume --retry-cut does so without one.")
    if set(job.summary.errors) == {"invalid_json"} and job.summary.answered == job.summary.kept == 0:
        _say("  No line is JSON: --input-format text takes a prompt from each line, csv from a column of a table.")
    path = arguments.summary
    if path is None:
        return
    figures = job.summary.as_dict(concurrency=job.runner.concurrency, stopped=job.stopped, model=engine.describe())
    text = json.dumps(figures, ensure_ascii=False, indent=2) + "\n"
    try:
        if path == "-":
            sys.stdout.write(harmless(text) if is_terminal(sys.stdout) else text)
        else:
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from error


def _say(text: str) -> None:
    print(harmless(text), file=sys.stderr, flush=True)


def _parallel(text: str) -> int | str:
    if text == "auto":
        return text
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 64:
        raise argparse.ArgumentTypeError(f"it takes auto or a number from 1 to 64, not {text!r}")
    return number


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it takes a whole number from 1 on, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"it takes a number of seconds, not {text!r}")
    return value
