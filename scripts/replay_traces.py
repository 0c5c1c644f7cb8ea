"""Speed of draft policies on recorded traces, against plain decoding: what is decided, judged without a machine.

    python scripts/replay_traces.py                                  # the traces of the tests, all cost tables
    python scripts/replay_traces.py my.npz --costs A flat --each     # one line per trace too

Columns: one fixed length of 3; the best single fixed length; the best fixed length of every trace, in hindsight; the
adaptive controller, new for every trace (cold) and learning over all of them (warm); the omniscient oracle; and the
share of the oracle's speed. All are geometric means of speed against plain decoding over the traces.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from replaying.costs import COSTS
from replaying.trace_file import load

from spec_local.bench.results import geometric_mean
from spec_local.bench.traces import Costs, Trace, TraceText, oracle_seconds, plain_seconds, replay, seconds
from spec_local.speculation.controller import FixedController
from spec_local.speculation.policy import AdaptiveController

TRACES = Path(__file__).resolve().parent.parent / "tests" / "controller" / "traces.npz"
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 10, 15)
SOURCES = (("model",), ("text",), ("model", "text"))
_HEAD = ("costs", "drafts from", "fixed 3", "best fixed", "hindsight", "cold", "warm", "oracle", "cold/oracle", "least")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Replay draft policies on recorded traces.")
    parser.add_argument("traces", nargs="?", type=Path, default=TRACES, help="file written by record_traces.py")
    parser.add_argument("--costs", nargs="+", choices=list(COSTS), default=list(COSTS), help="cost tables")
    parser.add_argument("--temperature", type=float, help="only traces of this temperature")
    parser.add_argument("--each", action="store_true", help="also print every trace")
    arguments = parser.parse_args()
    if not arguments.traces.is_file():
        parser.error(f"there is no file {arguments.traces}")
    texts = [
        (trace, TraceText(trace))
        for trace in load(arguments.traces)
        if arguments.temperature is None or trace.temperature == arguments.temperature
    ]
    if not texts:
        raise SystemExit("No trace has that temperature.")
    print(
        f"{len(texts)} traces, {sum(len(t) for t, _ in texts)} tokens, {len({t.kind for t, _ in texts})} kinds of text"
    )
    print(" ".join(f"{name:>12}" for name in _HEAD))
    for name in arguments.costs:
        for sources in SOURCES:
            _print_row(name, sources, texts, arguments.each)


def _print_row(name: str, sources: tuple[str, ...], texts: Sequence[tuple[Trace, TraceText]], each: bool) -> None:
    costs = COSTS[name]
    plain = [plain_seconds(trace, costs) for trace, _ in texts]
    fixed = {
        n: _speeds(texts, plain, costs, sources, [FixedController(sources[::-1], n)] * len(texts)) for n in LENGTHS
    }
    cold = _speeds(texts, plain, costs, sources, [AdaptiveController(costs.profile()) for _ in texts])
    warm = _speeds(texts, plain, costs, sources, [AdaptiveController(costs.profile())] * len(texts))
    oracle = [p / oracle_seconds(t, costs, sources, text) for (t, text), p in zip(texts, plain, strict=True)]
    hindsight = [max(column) for column in zip(*fixed.values(), strict=True)]
    figures = [
        geometric_mean(fixed[3]),
        max(geometric_mean(speeds) for speeds in fixed.values()),
        geometric_mean(hindsight),
        geometric_mean(cold),
        geometric_mean(warm),
        geometric_mean(oracle),
        geometric_mean(cold) / geometric_mean(oracle),
        min(*cold, *warm),
    ]
    print(f"{name:>12} {'+'.join(sources):>12} " + " ".join(f"{figure:>12.3f}" for figure in figures))
    if each:
        for (trace, _), c, w, o in zip(texts, cold, warm, oracle, strict=True):
            print(f"{trace.kind:>38}  {trace.name:<24} cold {c:.2f}  warm {w:.2f}  oracle {o:.2f}")


def _speeds(
    texts: Sequence[tuple[Trace, TraceText]],
    plain: Sequence[float],
    costs: Costs,
    sources: tuple[str, ...],
    controllers: Sequence[FixedController | AdaptiveController],
) -> list[float]:
    return [
        plain_s / seconds(replay(trace, controller, costs, sources, text))
        for (trace, text), plain_s, controller in zip(texts, plain, controllers, strict=True)
    ]


if __name__ == "__main__":
    main()
