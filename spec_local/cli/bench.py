"""`spec-local bench`: does drafting pay here, on which texts, and how near is it to what could be had?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.options import Setting, add_options, resolve
from spec_local.cli.terminal import TextOutput, read_text
from spec_local.errors import SpecLocalError, UsageError
from spec_local.words import harmless

if TYPE_CHECKING:
    from spec_local.bench.bench import Bench, BenchSettings, Step

TOKENS = 64
SEED = 1

EPILOG = """\
Every arm (plain decoding, fixed draft lengths, each source alone, the default) answers the same prompts in turn, every
answer equally long, at temperature 0 and 0.8. --temperature T measures at T alone, --max-tokens N sets the length of
the answers (default 64), --draft-length N compares that fixed length instead of 2, 4 and 7; the seed is 1 unless given.

A prompts file holds plain text (prompts between lines of ---, else between empty lines, else one a line) or JSON Lines
({"prompt": "..."} or {"messages": [...]}, and where wanted "system" and "workload", the kind it is reported under).

examples:
  spec-local bench --quick
  spec-local bench --prompts mine.txt --html report.html
  spec-local bench -m qwen2.5-coder-1.5b-instruct:q8_0 -d qwen2.5-coder-0.5b-instruct:q4_0 --json > bench.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags, then the shared ones."""
    what = parser.add_argument_group("what is measured")
    what.add_argument("--prompts", metavar="FILE", help="your own prompts instead of the built-in workloads")
    what.add_argument("--workload", action="append", metavar="NAME", help="only this built-in workload (repeatable)")
    what.add_argument("--quick", action="store_true", help="a first impression in less than a minute on two cores")
    what.add_argument("--repeats", metavar="N", help="times each answer is measured (default: 3)")
    what.add_argument("--per-workload", metavar="N", help="prompts of each workload (default: as many as time allows)")
    what.add_argument("--minutes", metavar="M", help="about how long it may take (default: 15)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object: arms, curves, verdict")
    output.add_argument("--html", metavar="PATH", help="also write the report as one self-contained page with plots")
    add_options(parser, ("models", "fetching", "device", "speculation", "sampling", "comparison"))


def run(arguments: Any) -> int:
    """Measure, and print what was found; Ctrl-C prints what was found so far."""
    settings = resolve(vars(arguments))
    wanted = bench_settings(arguments, settings)
    from spec_local.cli.interrupt import Interrupt, InThread
    from spec_local.cli.loading import load_engine, progress_bar

    settings["draft_length"] = Setting("auto", "bench")
    page = _writable(arguments.html)
    bench: Bench | None = None
    failure: SpecLocalError | None = None

    def steps() -> Iterator[Step]:
        nonlocal bench
        from spec_local.bench.bench import Bench

        engine = load_engine(settings, lambda: interrupt.seen)
        try:
            interrupt.on_first = engine.cancel
            bench = Bench(engine, wanted, cancelled=lambda: interrupt.seen)
            yield from bench.steps()
        finally:
            engine.close()

    with Interrupt() as interrupt, ExitStack() as closing:
        report: Callable[[float, float, str], None] | None = None
        told = False
        try:
            for step in InThread(steps):
                if report is None:
                    report = closing.enter_context(progress_bar("measuring"))
                if bench is not None and bench.plan and not told:
                    told = True
                    print(f"{bench.plan}. Ctrl-C shows what there is so far.", file=sys.stderr)
                report(step.done, step.total, step.what)
        except SpecLocalError as error:
            if not interrupt.seen:
                failure = error
    shown = bench is not None and show(bench, arguments.json, page)
    if failure is not None:
        raise failure
    if interrupt.seen:
        if not shown:
            print("spec-local: stopped before anything was measured.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def show(bench: Bench, as_json: bool, page: Path | None) -> bool:
    """Print the report and write the page; False where nothing was measured."""
    from spec_local.bench import speed_page, speed_report
    from spec_local.bench.about import about
    from spec_local.bench.verdict import judge
    from spec_local.llama.processor import physical_cores

    results = bench.results()
    if results is None:
        return False
    facts = about(bench)
    verdict = judge(results, facts.threads, physical_cores())
    output = TextOutput(None)
    if as_json:
        output.write(json.dumps(speed_report.as_dict(facts, results, verdict), ensure_ascii=False) + "\n")
    else:
        output.write(speed_report.render(facts, results, verdict))
    output.close()
    if page is not None:
        page.write_text(speed_page.page(facts, results, verdict), encoding="utf-8")
        print(harmless(f"The report is in {page}."), file=sys.stderr)
    return True


def bench_settings(arguments: Any, settings: dict[str, Setting]) -> BenchSettings:
    """What to measure, from flags and settings, checked before a model is loaded.

    Raises:
        UsageError: A value does not fit, or a prompts file cannot be used.
    """
    from spec_local.bench.bench import BenchSettings, quick
    from spec_local.bench.workloads import choose_workloads, count_prompts, parse_prompts
    from spec_local.cli.loading import sampling

    for name in ("stop", "min_tokens"):
        if name in settings and settings[name].origin == "flag":
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} has no place in a measurement: every answer has the same number of tokens.")
    base = sampling({k: v for k, v in settings.items() if k not in ("stop", "min_tokens", "temperature", "max_tokens")})
    if arguments.prompts is not None and arguments.workload:
        raise UsageError("--prompts and --workload exclude each other.", "Choose the prompts in the file.")
    if arguments.prompts is not None:
        name = "standard input" if arguments.prompts == "-" else Path(arguments.prompts).name
        workloads = parse_prompts(read_text(arguments.prompts), name)
    else:
        workloads = choose_workloads(arguments.workload or [])
    per_workload = _number(arguments.per_workload, "--per-workload", None)
    minutes = None if per_workload is not None else float(_number(arguments.minutes, "--minutes", 15) or 15)
    chosen: dict[str, Any] = {}
    temperature = settings.get("temperature")
    if temperature is not None and temperature.origin == "flag":
        chosen["temperatures"] = (sampling({"temperature": temperature}).temperature,)
    if (length := _fixed_length(settings)) is not None:
        chosen["lengths"] = (length,)
    if "max_tokens" in settings and settings["max_tokens"].origin == "flag":
        chosen["tokens"] = int(settings["max_tokens"].value)
    else:
        chosen["tokens"] = TOKENS
    if chosen["tokens"] < 2:
        raise UsageError("An answer of fewer than 2 tokens has no speed.", "Use a larger --max-tokens.")
    wanted = BenchSettings(
        workloads=tuple(w if per_workload is None else w.first(per_workload) for w in workloads),
        repeats=_number(arguments.repeats, "--repeats", 3) or 3,
        seed=SEED if base.seed is None else base.seed,
        sampling=base,
        minutes=minutes,
        given=count_prompts(workloads),
        **chosen,
    )
    return quick(wanted) if arguments.quick else wanted


def _fixed_length(settings: dict[str, Setting]) -> int | None:
    """The one fixed draft length to compare; None for the usual ones.

    Raises:
        UsageError: A setting of the engine does not fit, or no draft may be so long.
    """
    from spec_local.cli.loading import engine_options

    length = engine_options(settings).draft_length
    longest = engine_options({**settings, "draft_length": Setting("auto", "bench")}).longest_draft
    if not isinstance(length, int) or length == 0 or settings["draft_length"].origin != "flag":
        return None
    if length > longest:
        raise UsageError(
            f"--draft-length {length} is more than the {longest} tokens a draft may have.",
            "Raise --draft-max, and --pad-width where it is given.",
        )
    return length


def _number(text: str | None, flag: str, default: int | None) -> int | None:
    """A whole number of at least 1."""
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise UsageError(f"{flag} cannot be {text!r}: it takes a whole number of at least 1.")
    return value


def _writable(path: str | None) -> Path | None:
    """The page's place, found out to be writable before minutes are spent on measuring."""
    if path is None:
        return None
    place = Path(path).expanduser()
    try:
        with place.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from error
    return place
