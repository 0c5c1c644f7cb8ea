#!/usr/bin/env python3
"""What sampling costs the host per token, against its budget.

Python must not be what a GPU waits for. Each operation runs on rows of logits shaped like those of a language model:
one sure of its next token, one unsure. The last line is one JSON object; its "ok" says whether all is within budget.

    python scripts/host_cost.py [--vocab 151936] [--seconds 0.5] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spec_local.sampling import RULES, Noise, Purpose, Row, Sampling, Transform

DRAFT_US = 150.0
"""Budget of drawing one draft token, logits to id."""
VERIFY_US = 250.0
"""Budget of one verified row with top-k, top-p or min-p on: logits to row to decision."""
WHOLE_US = 1500.0
"""Budget of one verified row without any truncation at temperature 1."""
POSITION = 2000

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "temperature 0": {"temperature": 0.0},
    "top-k 40": OFF | {"top_k": 40},
    "top-p 0.95": OFF | {"top_p": 0.95},
    "min-p 0.05": OFF | {"min_p": 0.05},
    "defaults, penalties": {"repeat_penalty": 1.1, "frequency_penalty": 0.1, "penalty_last_n": 64},
    "defaults, bias and bans": {"logit_bias": {11: 2.0, 13: -100.0}, "min_tokens": 10_000},
    "untruncated": OFF,
}
SHAPES = {"sure": (-23.0, 2.5, 3.0), "unsure": (-19.3, 2.7, 1.2)}
"""Mean and spread of the bulk below the likeliest logit, and exponent of the head's power law, as measured on rows of a
1.5B model: the likeliest token has probability 0.8 and 0.2, top-p 0.95 keeps a few and some hundred tokens."""


def logits(shape: str, n_vocab: int, rng: np.random.Generator) -> np.ndarray:
    """One row, float32 [n_vocab]."""
    mean, spread, exponent = SHAPES[shape]
    row = rng.normal(mean, spread, n_vocab)
    head = rng.choice(n_vocab, min(300, n_vocab), replace=False)
    row[head] = np.maximum(row[head], -exponent * np.log(np.arange(1, len(head) + 1)))
    return (row + 18.0).astype(np.float32)


def measure(operation: Callable[[int], object], seconds: float) -> tuple[float, float]:
    """Least and median CPU time, in µs. The least is the cost on a core of one's own.

    CPU time of this thread, since other programs may take the core away in between; they still slow it down.
    """
    for i in range(3):
        operation(i)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        begin = time.thread_time_ns()
        operation(len(times))
        times.append((time.thread_time_ns() - begin) / 1000)
    return min(times), float(np.median(times))


def main() -> None:
    """Measure everything, print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151_936, help="entries of a row of logits (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="per operation and shape (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    n_vocab, seconds = options.vocab, options.seconds

    rng = np.random.default_rng(options.seed)
    rows = {shape: [logits(shape, n_vocab, rng) for _ in range(4)] for shape in SHAPES}
    history = rng.integers(0, n_vocab, POSITION).tolist()
    ends = frozenset({n_vocab - 291, n_vocab - 293}) if n_vocab > 293 else frozenset({0})
    noise = Noise(options.seed).for_round(POSITION)
    coupled = RULES["coupled"]

    def transform(sampling: Sampling) -> Transform:
        return Transform(sampling, n_vocab, ends, 0)

    floor, _ = measure(lambda i: rows["sure"][i % 4].max(), seconds)
    print(f"vocabulary {n_vocab}, {n_vocab * 4 / 1e6:.2f} MB a row; one pass over a row (the floor): {floor:.0f} µs\n")
    print(f"{'operation':<52}{'row':<8}{'kept':>7}{'µs':>8}{'median':>8}{'budget':>8}")

    results: list[dict[str, Any]] = []

    def report(name: str, shape: str, kept: int, budget: float, operation: Callable[[int], object]) -> None:
        least, median = measure(operation, seconds)
        over = "" if least <= budget else "  over"
        print(f"{name:<52}{shape:<8}{kept:>7}{least:>8.0f}{median:>8.0f}{budget:>8.0f}{over}")
        results.append(
            {
                "operation": name,
                "row": shape,
                "kept": kept,
                "us": round(least, 1),
                "median_us": round(median, 1),
                "budget_us": budget,
                "ok": least <= budget,
            }
        )

    for setting, fields in SETTINGS.items():
        sampling = Sampling(**fields)
        drafting, verifying = transform(sampling.for_draft()), transform(sampling)
        for shape, some in rows.items():

            def draft(i: int, made: Transform = drafting, some: list[np.ndarray] = some) -> int:
                return coupled.draft_token(made.row(some[i % 4], history, POSITION), noise, POSITION)

            def verify(i: int, made: Transform = verifying, some: list[np.ndarray] = some) -> object:
                return coupled.verify([], None, lambda _: made.row(some[i % 4], history, POSITION), noise, POSITION)

            kept = len(drafting.row(some[0], history, POSITION).ids)
            report(f"draft token: {setting}", shape, kept, DRAFT_US, draft)
            kept = len(verifying.row(some[0], history, POSITION).ids)
            budget = WHOLE_US if setting == "untruncated" else VERIFY_US
            report(f"verified row: {setting}", shape, kept, budget, verify)

    # The decisions of the ratio rules, on rows already made: added to the cost of the rows.
    made = transform(Sampling())
    p, q = (made.row(rows["unsure"][i], history, POSITION) for i in (0, 1))
    for name in ("rejection", "block"):
        rule = RULES[name]
        token = rule.draft_token(q, noise, POSITION)

        def decide(i: int, rule: Any = rule, token: int = token, p: Row = p, q: Row = q) -> object:
            return rule.verify([token] * 4, [q] * 4, lambda _: p, noise, POSITION)

        report(f"decision about 4 drafted tokens: {name}", "-", len(p.ids), 4 * VERIFY_US, decide)
    report(
        "one draw from a row",
        "-",
        len(p.ids),
        DRAFT_US,
        lambda i: noise.choose(Purpose.SHARED, POSITION + i, p.ids, p.probs),
    )

    ok = all(result["ok"] for result in results)
    print(json.dumps({"vocab": n_vocab, "pass_us": round(floor, 1), "ok": ok, "results": results}))


if __name__ == "__main__":
    main()
