"""`spec-local verify`, longer: more seeds, temperatures and prompts, and enough samples to see small faults.

    python scripts/lossless_long.py -m smollm2-135m-instruct -d text --hours 0.5
    python scripts/lossless_long.py --acceptance block --seeds 20

Each seed is one verification of all four checks with prompts, temperatures and truncations of its own; the last line
is one JSON object. Exit code 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from spec_local.sampling import RULES, Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions
from spec_local.speculation.controller import FixedController
from spec_local.verify.conformance import CONTENDERS, Arms, Setting
from spec_local.verify.report import table
from spec_local.verify.verify import LiveRun, Plan, verify

PROMPTS = Path(__file__).with_name("trace_prompts.json")
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0},
    {"temperature": 1.3, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
    {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.2, "presence_penalty": 0.3},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 0.9},
)
RESAMPLED = 172_000
"""Tokens that show a total variation of 0.01 with power 0.99 at level 1e-3."""


def make_plan(seed: int, tokens: int, reproducible: bool) -> Plan:
    """One verification of its own kind for each seed."""
    prompts = [entry["prompt"] for entry in json.loads(PROMPTS.read_text(encoding="utf-8"))]

    def sampling(number: int, count: int) -> Sampling:
        own = SAMPLINGS[(seed + number) % len(SAMPLINGS)]
        return Sampling(**own, seed=1000 * seed + number, max_tokens=count, min_tokens=count)

    greedy = Sampling(temperature=0.0, seed=seed, max_tokens=tokens, min_tokens=tokens)
    arms: Arms = tuple((name, 1 + (seed + i) % 7) for i, name in enumerate(CONTENDERS))
    settings = [Setting(prompts[seed % len(prompts)], greedy, arms)]
    if reproducible:
        settings.append(Setting(prompts[(seed + 1) % len(prompts)], sampling(0, tokens), arms))
    live = [
        LiveRun(
            f"seed {seed}, run {i}",
            prompts[(seed + 2 + i) % len(prompts)],
            sampling(i, 2 * tokens),
            FixedController(("model", "text"), 1 + (seed + i) % 7),
        )
        for i in range(1, 4)
    ]
    live.append(
        LiveRun(f"seed {seed}, T 0", prompts[(seed + 6) % len(prompts)], greedy, FixedController(("model", "text"), 5))
    )
    return Plan(tuple(settings), tuple(live), RESAMPLED, 8)


def run(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    """Verify with one seed after another until time or seeds are up."""
    started, failed, tokens, disagreements, epsilon = time.monotonic(), 0, 0, 0, 0.0
    worst = 1.0
    seed = arguments.first_seed
    while seed < arguments.first_seed + arguments.seeds and time.monotonic() - started < 3600 * arguments.hours:
        plan = make_plan(seed, arguments.tokens, RULES[engine.options.acceptance].reproducible)
        found = verify(engine, plan=plan)
        figures = found.audit.as_dict()
        tokens += figures["tokens"]
        disagreements += figures["disagreements"]
        epsilon = max(epsilon, found.audit.epsilon)
        worst = min([worst, *(test.p_value for test in found.distribution.tests)])
        failed += not found.passed
        print(f"seed {seed}: {'passed' if found.passed else 'FAILED'} in {found.seconds:.0f} s", flush=True)
        if not found.passed:
            print(table(found), flush=True)
        seed += 1
    return {
        "seeds": seed - arguments.first_seed,
        "failed": failed,
        "acceptance_rule": engine.options.acceptance,
        "audited_tokens": tokens,
        "disagreements_per_1000": 1000 * disagreements / tokens if tokens else None,
        "epsilon": epsilon,
        "smallest_p_value": worst,
        "resampled_tokens_per_seed": RESAMPLED,
        "seconds": time.monotonic() - started,
    }


def main() -> int:
    """Parse, load, run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--target", default=None)
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--acceptance", choices=tuple(RULES), default="coupled")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--hours", type=float, default=1.0, help="start no further seed after this many hours")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    options = EngineOptions(acceptance=arguments.acceptance, threads=arguments.threads, draft_length=7, n_ctx=2048)
    with load(arguments.target, draft=arguments.draft, options=options) as engine:
        found = run(engine, arguments)
    print(json.dumps(found))
    return int(found["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
