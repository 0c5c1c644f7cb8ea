"""Acceptance and tokens per pass of the acceptance rules, on a real pair: the tables of docs/experiments.md.

The target writes one text per kind of prompt; both models then read it in wide passes. At every position the rows of
each sampling are made from the recorded logits, tokens are drawn from the target's, and everything the rules would
accept follows in closed form (tabulating.acceptance_rates): no rule is run and nothing is decoded again.

    python scripts/acceptance_table.py record texts.jsonl
    python scripts/acceptance_table.py table texts.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from replaying.costs import COSTS
from tabulating.acceptance_rates import RULES, Pair, Step, rates

from spec_local.language_model import Chunk
from spec_local.llama.model_context import ModelContext
from spec_local.llama.padded import open_context
from spec_local.sampling import Sampling, Transform
from spec_local.session.engine import load
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions

PROMPTS = Path(__file__).with_name("trace_prompts.json")
KINDS = ("code", "edit", "chat", "arithmetic", "translation", "json")
LENGTHS = (1, 2, 3, 4, 5, 6, 7)
TRUNCATION: dict[str, dict[str, Any]] = {
    "off": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "on": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
}
SAMPLINGS = ((0.0, "on"), (0.5, "on"), (0.7, "on"), (1.0, "on"), (0.5, "off"), (0.7, "off"), (1.0, "off"))
WRITTEN = Sampling(temperature=0.7, **TRUNCATION["on"])
"""How the texts are written."""
DRAWS = 8
"""Tokens drawn at each position, for each sampling."""
WINDOW = 16
"""Rows of a reading pass."""

Logits = npt.NDArray[np.float32]


def prompts(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """The shortest prompt of each kind."""
    known = json.loads(PROMPTS.read_text(encoding="utf-8"))
    known.sort(key=lambda entry: -len(entry["prompt"]))
    shortest = {entry["kind"]: entry["prompt"] for entry in known}
    return [(kind, shortest[kind]) for kind in kinds]


def read(context: ModelContext, tokens: list[int], start: int) -> Iterator[Logits]:
    """Logits [n_vocab] before each of `tokens[start:]`, from an empty cache."""
    context.trim(0, 0)
    for low in range(0, start - 1, context.n_batch):
        context.decode([Chunk(0, tokens[low : min(low + context.n_batch, start - 1)], 0)])
    for low in range(start - 1, len(tokens) - 1, WINDOW):
        part = tokens[low : min(low + WINDOW, len(tokens) - 1)]
        yield from context.decode([Chunk(0, part, len(part))])[0]


def record(arguments: argparse.Namespace) -> None:
    """Append the steps of every sampling, for each text, to the output."""
    options = EngineOptions(n_ctx=1024, threads=arguments.threads, draft_length=4)
    with load(arguments.target, draft=arguments.draft, options=options) as engine, ExitStack() as undo:
        models = [engine.loaded.target, engine.loaded.draft]
        readers = []
        for model in models:
            assert model is not None, "a draft model is needed"
            reader = open_context(model.model, replace(model.options, max_rows=WINDOW))
            undo.callback(reader.close)
            readers.append(reader)
        for kind, prompt in prompts(arguments.kinds.split(",")):
            own = WRITTEN.model_copy(update={"seed": 1000 + KINDS.index(kind), "max_tokens": arguments.tokens})
            prompt_tokens = engine.tokenize(Request(prompt))[0]
            tokens = [*prompt_tokens, *engine.generate(prompt, sampling=own).token_ids]
            start, ends = len(prompt_tokens), engine.vocabulary.end_ids
            vocabulary = engine.loaded.vocabulary_map
            assert vocabulary is not None and vocabulary.same_ids, "the pair must share its ids"
            chance = np.random.default_rng(KINDS.index(kind))
            transforms = {
                (temperature, cut): tuple(
                    Transform(Sampling(temperature=temperature, **TRUNCATION[cut]), readers[0].n_vocab, ends, start)
                    for _ in readers
                )
                for temperature, cut in SAMPLINGS
            }
            steps: dict[tuple[float, str], list[list[Step]]] = defaultdict(lambda: [[] for _ in range(DRAWS)])
            pairs = zip(*(read(reader, tokens, start) for reader in readers), strict=True)
            for position, (target, draft) in enumerate(pairs, start):
                for key, (for_target, for_draft) in transforms.items():
                    pair = Pair(
                        for_target.row(target, (), position), for_draft.row(vocabulary.row(draft), (), position)
                    )
                    for i, token in enumerate(chance.choice(pair.p.ids, DRAWS, p=pair.p.probs)):
                        steps[key][i].append(pair.step(int(token)))
            with Path(arguments.texts).open("a", encoding="utf-8") as file:
                for (temperature, cut), texts in steps.items():
                    for text in texts:
                        line = {"kind": kind, "temperature": temperature, "truncation": cut}
                        file.write(json.dumps({**line, "steps": [asdict(one) for one in text]}) + "\n")
            print(f"{kind:<12} {len(tokens) - start} tokens", file=sys.stderr)


def table(arguments: argparse.Namespace) -> None:
    """Print Markdown."""
    texts: dict[tuple[float, str], dict[str, list[list[Step]]]] = defaultdict(lambda: defaultdict(list))
    for line in Path(arguments.texts).read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        steps = [Step(**values) for values in found["steps"]]
        texts[found["temperature"], found["truncation"]][found["kind"]].append(steps)
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
        group = [text for drawn in kinds.values() for text in drawn]
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
        group = [text for drawn in kinds.values() for text in drawn]
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

    written = sum(len(drawn[0]) for drawn in texts[SAMPLINGS[0]].values())
    spread = _spread(texts[0.7, "on"].values())
    print(
        f"\n{written} tokens of text, {DRAWS} draws at each; standard error of a mean over the kinds (T 0.7, coupled, "
    )
    print(f"γ = 3): {spread:.2f} tokens per pass.")


def _passes(rule: str, drawn: list[list[Step]] | None) -> str:
    return "-" if not drawn or len(drawn[0]) < 3 else f"{rates(rule, drawn, 3).tokens_per_pass:.2f}"


def _spread(kinds: Iterable[list[list[Step]]]) -> float:
    """Standard error of the mean over kinds, from how the thirds of each text differ."""
    squares = []
    for drawn in kinds:
        size = len(drawn[0]) // 3
        if size < 4:
            continue
        thirds = [[text[i * size : (i + 1) * size] for text in drawn] for i in range(3)]
        parts = [rates("coupled", third, 3).tokens_per_pass for third in thirds]
        mean = sum(parts) / 3
        squares.append(sum((part - mean) ** 2 for part in parts) / 2 / 3)
    return math.sqrt(sum(squares)) / len(squares) if squares else float("nan")


def main() -> int:
    """Record, or print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="write texts and what both models thought of them")
    recording.add_argument("texts", help="JSON lines to append to")
    recording.add_argument("-m", "--target", default="qwen2.5-coder-1.5b-instruct")
    recording.add_argument("-d", "--draft", default="qwen2.5-coder-0.5b-instruct")
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
