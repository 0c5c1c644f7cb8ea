"""Throughput of several sequences at once against one at a time, and whether the answers are the same.

    python scripts/batch_speed.py -m TARGET -d DRAFT --parallel 1,4,8 --prompts 64 --pad-width 40

With `--pad-width` all target passes have one width, so the answers of all arms should be equal token by token; without
it near-ties may fall otherwise. Prints a line for each arm and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

from spec_local.batch.records import BadLine, Item
from spec_local.batch.requests import Recipe
from spec_local.batch.runner import Runner
from spec_local.sampling import Sampling
from spec_local.session.engine import load
from spec_local.session.options import EngineOptions
from spec_local.speculation.statistics import Tally

SHARED = (
    "You answer questions about everyday things in a few plain sentences, for readers who know nothing of the subject. "
)
SUBJECTS = ("rain", "bread", "clocks", "rust", "soap", "wind", "glass", "paper", "salt", "maps", "ink", "wool", "tides")
QUESTIONS = ("What is the history of", "How does one explain", "List three facts about", "Write a short poem about")


def make_items(count: int, most: int, temperature: float) -> list[Item]:
    """Questions that share a system message."""
    sampling = {"temperature": temperature, "max_tokens": most}
    texts = [f"{QUESTIONS[i % 4]} {SUBJECTS[i % 13]}, please? ({i})" for i in range(count)]
    return [Item(i, i, text, SHARED, {**sampling, "seed": i}) for i, text in enumerate(texts, 1)]


def measure(options: EngineOptions, target: str, draft: str, items: list[Item]) -> dict[str, Any]:
    """One arm: speed, and the answers by item."""
    slots = options.parallel
    with load(target, draft=draft, options=options) as engine, engine.using():
        source: Iterator[Item | BadLine] = iter(items)
        started = time.perf_counter()
        outcomes = list(Runner(engine, slots, Recipe(Sampling()).request).run(source))
        seconds = time.perf_counter() - started
    tally, cached = Tally(), 0
    answers: dict[int, tuple[int, ...]] = {}
    for outcome in outcomes:
        assert outcome.result is not None, outcome.error
        tally.add(outcome.result.rounds)
        cached += outcome.result.cached_tokens
        answers[outcome.line] = outcome.result.token_ids
    figures = tally.statistics()
    return {
        "parallel": slots,
        "seconds": seconds,
        "tokens": figures.emitted,
        "tokens_per_s": figures.emitted / seconds,
        "decode_tokens_per_s": figures.throughput_tokens_per_s,
        "tokens_per_pass": figures.tokens_per_pass,
        "acceptance_rate": figures.acceptance_rate,
        "cached_tokens": cached,
        "answers": answers,
    }


def main() -> int:
    """Measure every arm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--target", required=True)
    parser.add_argument("-d", "--draft", default="none")
    parser.add_argument("--parallel", default="1,4,8")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--draft-length", default="auto")
    parser.add_argument("--n-ctx", type=int, default=512)
    parser.add_argument("--pad-width", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    length = arguments.draft_length
    items = make_items(arguments.prompts, arguments.max_tokens, arguments.temperature)
    arms: list[dict[str, Any]] = []
    for slots in map(int, arguments.parallel.split(",")):
        options = EngineOptions(
            n_ctx=arguments.n_ctx,
            parallel=slots,
            pad_width=arguments.pad_width,
            threads=arguments.threads,
            draft_length="auto" if length == "auto" else int(length),
        )
        arm = measure(options, arguments.target, arguments.draft, items)
        arms.append(arm)
        first = arms[0]
        arm["ratio"] = arm["tokens_per_s"] / first["tokens_per_s"]
        arm["equal"] = sum(arm["answers"][line] == first["answers"][line] for line in first["answers"])
        rate = arm["acceptance_rate"]
        print(
            f"{slots:3} at once: {arm['tokens_per_s']:7.1f} tokens/s ({arm['ratio']:.2f}×), "
            f"{arm['tokens_per_pass']:.2f} tokens per pass, "
            f"{'nothing drafted' if rate is None else f'{rate:.0%} accepted'}, "
            f"{arm['equal']}/{len(items)} answers equal to those of the first arm",
            flush=True,
        )
    print(json.dumps([{name: value for name, value in arm.items() if name != "answers"} for arm in arms]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
