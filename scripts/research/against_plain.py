"""Drafting against plain decoding on a real pair, one prompt of every kind, in turns: plain, auto, plain.

    python scripts/research/against_plain.py -m TARGET -d DRAFT [--temperature 0 0.8] [--repeats 3] [--costs 7B]

One line per kind: medians over the repeats of auto against plain, of the second plain run against the first (what the
machine's scatter is worth), and, with --costs, of auto against plain if passes took what that table says. With it, the
controller decides by the table too: what a busy machine would have done if it had been idle.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replaying.costs import COSTS

from spec_local.bench.results import geometric_mean
from spec_local.bench.traces import Costs
from spec_local.bench.workloads import builtin_workloads
from spec_local.errors import SpecLocalError
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Prompt, Request
from spec_local.session.options import EngineOptions
from spec_local.speculation.cost import Curve
from spec_local.speculation.policy import AdaptiveController
from spec_local.speculation.round import Round


def play(engine: Engine, prompt: Prompt, sampling: Sampling, speculate: bool) -> list[Round]:
    """The rounds of one answer."""
    generation = engine.prepare(Request(prompt, sampling, speculate=speculate))
    engine.loop.play(generation)
    return generation.sequence.rounds


def measured(rounds: list[Round]) -> float:
    """Seconds per token."""
    return sum(r.seconds for r in rounds) / sum(r.emitted for r in rounds)


def priced(rounds: list[Round], costs: Costs) -> float:
    """The same, if passes took what the table says; a draft of a model as one step per token."""
    target, draft = Curve(costs.target), Curve(costs.draft)
    total = sum(target.seconds(r.width) + (r.drafted * draft.seconds(1) if r.source == "model" else 0) for r in rounds)
    return total / sum(r.emitted for r in rounds)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Drafting against plain decoding, in turns.")
    parser.add_argument("-m", "--target", required=True)
    parser.add_argument("-d", "--draft", required=True)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompt", type=int, default=-1, help="which prompt of every kind (default: its last)")
    parser.add_argument("--costs", choices=list(COSTS))
    arguments = parser.parse_args()
    table = COSTS[arguments.costs] if arguments.costs else None
    try:
        engine = load(arguments.target, draft=arguments.draft, options=EngineOptions(n_ctx=1024))
    except SpecLocalError as error:
        print(error, file=sys.stderr)
        return 1
    with engine:
        for temperature in arguments.temperature:
            sampling = Sampling(temperature=temperature, seed=11, max_tokens=arguments.tokens)
            columns: list[list[float]] = [[], [], []]
            for workload in builtin_workloads():
                prompt = workload.prompts[arguments.prompt].prompt
                ratios: list[list[float]] = [[], [], []]
                tokens = drafted = 0
                for _ in range(arguments.repeats):
                    if table is not None:
                        engine.speculator.controller = AdaptiveController(table.profile(), frozen=True)
                    plain, auto, again = (play(engine, prompt, sampling, on) for on in (False, True, False))
                    tokens, drafted = sum(r.emitted for r in auto), sum(r.drafted for r in auto)
                    ratios[0].append(measured(plain) / measured(auto))
                    ratios[1].append(measured(plain) / measured(again))
                    ratios[2].append(priced(plain, table) / priced(auto, table) if table else 1.0)
                found = [statistics.median(some) for some in ratios]
                print(
                    f"T={temperature:g} {workload.name:<11}{tokens:4} tokens {drafted:4} drafted   "
                    f"auto {found[0]:.2f}  plain again {found[1]:.2f}  priced {found[2]:.2f}",
                    flush=True,
                )
                for column, value in zip(columns, found, strict=True):
                    column.append(value)
            means = [geometric_mean(column) for column in columns]
            print(f"T={temperature:g} mean: auto {means[0]:.2f}  plain again {means[1]:.2f}  priced {means[2]:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
