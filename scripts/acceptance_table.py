"""Acceptance and tokens per pass of the acceptance rules, on a real pair: the tables of docs/experiments-acceptance.md.

The target writes six texts at a time, plainly, in one pass per token; the draft model then reads them. Everything the
rules would accept follows from both models' rows in closed form (spec_local.bench.acceptance_rates), so no rule is run.

    python scripts/acceptance_table.py record texts.jsonl --temperature 0.7 --truncation on
    python scripts/acceptance_table.py table texts.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spec_local.bench.acceptance_rates import RULES, Step, rates, step
from spec_local.bench.recording import Recorder
from spec_local.bench.trace_recording import ROWS, draft_rows
from spec_local.bench.traces import COSTS
from spec_local.language_model import Chunk, LanguageModel
from spec_local.sampling import Row, Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions
from spec_local.speculation.sequence import Sequence

PROMPTS = Path(__file__).with_name("trace_prompts.json")
KINDS = ("code", "edit", "chat", "arithmetic", "translation", "json")
LENGTHS = (1, 2, 3, 4, 5, 6, 7)
OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
CUT = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}


def prompts(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """The shortest prompt of each kind."""
    known = json.loads(PROMPTS.read_text(encoding="utf-8"))
    known.sort(key=lambda entry: -len(entry["prompt"]))
    shortest = {entry["kind"]: entry["prompt"] for entry in known}
    return [(kind, shortest[kind]) for kind in kinds]


def write_texts(engine: Engine, sampling: Sampling, chosen: list[tuple[str, str]]) -> list[Recorder]:
    """All texts at once, plainly, one token of each per pass."""
    generations, recorders = [], []
    for slot, (kind, prompt) in enumerate(chosen):
        own = sampling.model_copy(update={"seed": 1000 + KINDS.index(kind)})
        generation = engine.prepare(Request(prompt, own, speculate=False), slot)
        recorders.append(Recorder(generation.sequence))
        engine.prefill(generation)
        generations.append(generation)
    while live := [generation for generation in generations if not generation.finished]:
        engine.step(live)
    return recorders


def read_by_draft(model: LanguageModel, sequence: Sequence) -> list[Row]:
    """The draft's row before each token of an answer."""
    tokens, start, transform = sequence.tokens, sequence.prompt_length, sequence.draft_transform
    model.trim(0, 0)
    for low in range(0, start - 1, model.n_batch):
        model.decode([Chunk(0, tokens[low : min(low + model.n_batch, start - 1)], 0)])
    rows = []
    for low in range(start - 1, len(tokens) - 1, ROWS):
        part = tokens[low : min(low + ROWS, len(tokens) - 1)]
        (logits,) = model.decode([Chunk(0, part, len(part))])
        for i, one in enumerate(logits, low + 1):
            rows.append(transform.row(one[: transform.n_vocab], tokens[:i], i))
    model.trim(0, 0)
    return rows


def record(arguments: argparse.Namespace) -> None:
    """Append one line per text to the output."""
    chosen = prompts(arguments.kinds.split(","))
    options = EngineOptions(parallel=len(chosen), n_ctx=1024, threads=arguments.threads, draft_length=1)
    truncation = CUT if arguments.truncation == "on" else OPEN
    sampling = Sampling(temperature=arguments.temperature, max_tokens=arguments.tokens, **truncation)
    with load(arguments.target, draft=arguments.draft, options=options) as engine, draft_rows(engine) as draft:
        assert draft is not None, "a draft model is needed"
        recorders = write_texts(engine, sampling, chosen)
        with Path(arguments.texts).open("a", encoding="utf-8") as file:
            for (kind, _), recorder in zip(chosen, recorders, strict=True):
                sequence = recorder.sequence
                pairs = zip(recorder.emitted_rows, read_by_draft(draft, sequence), sequence.emitted, strict=True)
                line: dict[str, Any] = {
                    "kind": kind,
                    "temperature": arguments.temperature,
                    "truncation": arguments.truncation,
                    "steps": [asdict(step(p, q, token)) for p, q, token in pairs],
                }
                file.write(json.dumps(line) + "\n")
                print(f"{kind:<12} {len(line['steps'])} tokens", file=sys.stderr)


def table(arguments: argparse.Namespace) -> None:
    """Print Markdown."""
    texts: dict[tuple[float, str], dict[str, list[Step]]] = defaultdict(dict)
    for line in Path(arguments.texts).read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        steps = [Step(**values) for values in found["steps"]]
        texts[found["temperature"], found["truncation"]][found["kind"]] = steps
    costs = COSTS[arguments.costs].profile()
    assert costs.draft is not None
    plain, draft = costs.target.seconds(1), costs.draft.seconds(1)

    def speed(rule: str, group: list[list[Step]], length: int) -> float:
        seconds = costs.target.seconds(length + 1) + length * draft
        return rates(rule, group, length).tokens_per_pass * plain / seconds

    shown = (3, 7)
    print("| T | truncation | 1 - TV |", " | ".join(f"{rule}: first, γ=3, γ=7" for rule in RULES), "|")
    print("|---|---|---|" + "---|" * len(RULES))
    for (temperature, truncation), kinds in sorted(texts.items()):
        group = list(kinds.values())
        overlap = sum(one.overlap for text in group for one in text) / sum(map(len, group))
        cells = []
        for rule in RULES:
            first = rates(rule, group, 1).first
            passes = " ".join(f"{rates(rule, group, length).tokens_per_pass:.2f}" for length in shown)
            cells.append(f"{first:.2f} {passes}")
        print(f"| {temperature:g} | {truncation} | {overlap:.2f} |", " | ".join(cells), "|")

    print(f"\nSpeed against plain decoding at the best fixed γ (costs: {COSTS[arguments.costs].name}):\n")
    print("| T | truncation |", " | ".join(RULES), "|")
    print("|---|---|" + "---|" * len(RULES))
    for (temperature, truncation), kinds in sorted(texts.items()):
        group = list(kinds.values())
        best = [max((speed(rule, group, length), length) for length in LENGTHS) for rule in RULES]
        print(f"| {temperature:g} | {truncation} |", " | ".join(f"{x:.2f} (γ={n})" for x, n in best), "|")

    print("\nTokens per pass at γ = 3 by kind of text:\n")
    kinds_seen = sorted({kind for kinds in texts.values() for kind in kinds}, key=KINDS.index)
    print("| T | truncation | rule |", " | ".join(kinds_seen), "|")
    print("|---|---|---|" + "---|" * len(kinds_seen))
    for (temperature, truncation), kinds in sorted(texts.items()):
        for rule in RULES:
            cells = [_passes(rule, kinds.get(kind)) for kind in kinds_seen]
            print(f"| {temperature:g} | {truncation} | {rule} |", " | ".join(cells), "|")

    tokens = sum(len(text) for kinds in texts.values() for text in kinds.values())
    spread = _spread([text for kinds in texts.values() for text in kinds.values()])
    print(f"\n{tokens} tokens; a text's tokens per pass (coupled, γ = 3) has a standard error of about {spread:.2f}.")


def _passes(rule: str, text: list[Step] | None) -> str:
    return "-" if text is None or len(text) < 3 else f"{rates(rule, [text], 3).tokens_per_pass:.2f}"


def _spread(texts: list[list[Step]]) -> float:
    """Standard error of one text's figure, from its thirds."""
    squares = []
    for text in texts:
        size = len(text) // 3
        if size < 4:
            continue
        parts = [rates("coupled", [text[i * size : (i + 1) * size]], 3).tokens_per_pass for i in range(3)]
        mean = sum(parts) / 3
        squares.append(sum((part - mean) ** 2 for part in parts) / 2 / 3)
    return math.sqrt(sum(squares) / len(squares)) if squares else float("nan")


def main() -> int:
    """Record, or print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="write texts and what both models thought of them")
    recording.add_argument("texts", help="JSON lines to append to")
    recording.add_argument("-m", "--target", default="qwen2.5-coder-1.5b-instruct")
    recording.add_argument("-d", "--draft", default="qwen2.5-coder-0.5b-instruct")
    recording.add_argument("--temperature", type=float, default=0.7)
    recording.add_argument("--truncation", choices=("on", "off"), default="on", help="top-k 40, top-p 0.95, min-p 0.05")
    recording.add_argument("--tokens", type=int, default=64)
    recording.add_argument("--threads", type=int, default=0)
    recording.add_argument("--kinds", default=",".join(KINDS))
    recording.set_defaults(run=record)
    showing = commands.add_parser("table", help="print the tables")
    showing.add_argument("texts")
    showing.add_argument("--costs", choices=COSTS, default="B", help="whose pass times to count with")
    showing.set_defaults(run=table)
    arguments = parser.parse_args()
    arguments.run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
