"""`spec-local generate`: one prompt in, one answer out; with `--input` a whole file of them (`cli.batch`)."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from spec_local.cli import batch
from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.options import add_options, resolve
from spec_local.cli.terminal import TextOutput, is_terminal, piped_input, read_text
from spec_local.errors import SpecLocalError, UsageError
from spec_local.words import counted, harmless

if TYPE_CHECKING:
    from spec_local.sampling.params import Sampling
    from spec_local.session.engine import Engine
    from spec_local.session.result import Piece

_FILES = (("file", "--file"), ("json_schema", "--json-schema"), ("grammar", "--grammar"))
"""Flags that take - for standard input."""
_CUT = "The answer ended ({}) before its schema or grammar was complete."
_SHOWN = {"temperature", "top_k", "top_p", "min_p", "repeat_penalty"}

EPILOG = """\
examples:
  spec-local generate -p "Write a haiku about rivers"
  spec-local generate -f question.txt --temperature 0 --json > answer.json
  cat main.py | spec-local generate -p "Explain this program:" --stats
  spec-local generate --input prompts.jsonl --output answers.jsonl --resume
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags, then the shared ones."""
    prompt = parser.add_argument_group(
        "prompt",
        "Without -p and -f, standard input is the prompt; beside them a pipe, socket or file on it is read to its end "
        "and added behind the prompt. A terminal is not read, nor a file of which another program has read a part.",
    )
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("-f", "--file", metavar="PATH", help="read the prompt from a file; - for standard input")
    prompt.add_argument("--no-stdin", action="store_true", help="leave standard input alone")
    prompt.add_argument("--system", metavar="TEXT", help="system message; '' for none, the template's own included")
    prompt.add_argument("--raw", action="store_true", help="continue the text as it is, without a chat template")
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", metavar="PATH", help="write the answer, or all answers, to a file")
    output.add_argument("--json", action="store_true", help="print one JSON object with text, timings and statistics")
    output.add_argument("--stats", action="store_true", help="memory, sampling and a last line of statistics on stderr")
    batch.add_arguments(parser)
    add_options(parser, ("models", "fetching", "device", "speculation", "sampling", "reply", "structure", "comparison"))


def run(arguments: Any) -> int:
    """Answer one prompt, or a file of them."""
    settings = resolve(vars(arguments))
    batch.check(arguments)
    if arguments.input is not None:
        return batch.run(arguments, settings)
    prompt = read_prompt(arguments)
    # Checked before a model is loaded: a typing error should not cost a minute.
    from spec_local.cli.interrupt import Interrupt
    from spec_local.cli.loading import engine_options, load_engine, reply, sampling, structure

    engine_options(settings)
    wanted, shape, options = sampling(settings), structure(settings), reply(settings)
    output = TextOutput(arguments.output)
    answered = False
    thoughts = _Thoughts()
    with Interrupt() as interrupt:
        try:
            engine = load_engine(settings, lambda: interrupt.seen)
        except SpecLocalError:
            if interrupt.seen:  # cancelled while loading: nothing was written, nothing is lost
                return ExitCode.INTERRUPTED
            raise
        try:
            interrupt.on_first = engine.cancel
            how: dict[str, Any] = {
                "system": arguments.system,
                "raw": arguments.raw,
                "structure": shape,
                "reply": options,
            }
            stream = engine.stream(prompt, sampling=wanted, **how)
            for notice in (*stream.notices, *(_facts(engine, wanted, options.thinking) if arguments.stats else ())):
                print(f"note: {harmless(notice)}", file=sys.stderr)
            if interrupt.seen:
                stream.close()
            for piece in stream:
                if not arguments.json:
                    thoughts.show(piece)
                    output.write(piece.text)
            answered = stream.result.finish_reason != "cancelled"
        finally:
            if not arguments.json:
                output.close(keep=not answered)
        result = stream.result
        if arguments.json:
            output.write(json.dumps(result.as_dict(), ensure_ascii=False) + "\n")
            output.close()
        if result.structure == "cut":
            print(f"note: {_CUT.format(result.limit or result.finish_reason)}", file=sys.stderr)
        if arguments.stats:
            print(harmless(result.summary()), file=sys.stderr)
        if result.reasoning_tokens and not result.text and result.limit is not None:
            limit = "--max-tokens" if result.limit == "max_tokens" else "--n-ctx"
            print(f"note: The model was still thinking when {limit} ended it; there is no answer.", file=sys.stderr)
        engine.close()
    return ExitCode.INTERRUPTED if result.finish_reason == "cancelled" else ExitCode.OK


class _Thoughts:
    """Shows a person at a terminal what is thought before the answer, on standard error: no pipe sees it."""

    def __init__(self) -> None:
        self._shown = is_terminal(sys.stderr)
        self._open = False

    def show(self, piece: Piece) -> None:
        """Show the thinking of a piece; end it where the answer begins."""
        if self._shown and piece.thinking:
            sys.stderr.write(harmless(piece.thinking))
            sys.stderr.flush()
            self._open = True
        elif self._open and piece.text:
            sys.stderr.write("\n\n")
            sys.stderr.flush()
            self._open = False


def _facts(engine: Engine, wanted: Sampling, thinking: str) -> tuple[str, ...]:
    """What was estimated before loading, and how tokens are drawn, for `--stats`."""
    sampling, origins = engine.complete(wanted, thinking)
    values = ", ".join(
        f"{name.replace('_', '-')} {value:g} ({origins.get(name, 'default')})"
        for name, value in sampling.model_dump(include=_SHOWN).items()
    )
    return (
        f"Kernels: {engine.loaded.kernels.sentence()}.",
        f"Memory estimated before loading: {engine.memory.sentence()}.",
        f"Sampling: {values}.",
    )


def read_prompt(arguments: Any) -> str:
    """The prompt from argument, file and pipe, in this order, joined by an empty line.

    Raises:
        UsageError: There is none, a file cannot be read, or standard input is named twice.
    """
    parts = [arguments.prompt] if arguments.prompt is not None else []
    if arguments.file is not None:
        parts.append(read_text(arguments.file))
    named = [flag for name, flag in _FILES if getattr(arguments, name, None) == "-"]
    if len(named) > 1:
        raise UsageError(f"Standard input can be read once: {' and '.join(named)} both name it.", "Give one a file.")
    if not named and not arguments.no_stdin and (piped := piped_input()):
        if parts:
            lines = counted(len(piped.splitlines()), "line")
            print(f"note: Standard input ({lines}) was added behind the prompt.", file=sys.stderr, flush=True)
        parts.append(piped)
    if not parts:
        raise UsageError("There is no prompt.", "Give one with --prompt, --file or standard input.")
    return "\n\n".join(parts) if not arguments.raw else "".join(parts)
