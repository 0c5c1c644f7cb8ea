"""What every mechanism of the policy is worth: each is switched off in turn, on recorded traces under all cost tables.

    python scripts/research/ablate_policy.py --half report

Figures are geometric means of speed against plain decoding, a new controller for every trace, all sources; rows below
the first are percent gained (+) or lost by switching the mechanism off, and after the bar the slowest trace.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))

from replaying.costs import COSTS  # noqa: E402
from replaying.trace_file import load  # noqa: E402

from research.halves import half  # noqa: E402
from spec_local.bench.results import geometric_mean  # noqa: E402
from spec_local.bench.traces import TraceText, plain_seconds, replay, seconds  # noqa: E402
from spec_local.speculation import adaptive  # noqa: E402
from spec_local.speculation.controller import Offer, Seat  # noqa: E402
from spec_local.speculation.policy import AdaptiveController  # noqa: E402

BOTH = ("model", "text")
TRACES = (
    SCRIPTS.parent / "tests" / "controller" / "traces.npz",
    Path(__file__).parent / "traces.npz",
)
LONGER = 300
"""Tokens of a longer prompt that the draft model has not read: the column "unread" (costs A)."""


@contextmanager
def constants(**values: Any) -> Iterator[None]:
    """The module's constants, changed for a while."""
    before = {name: getattr(adaptive, name) for name in values}
    try:
        for name, value in values.items():
            setattr(adaptive, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(adaptive, name, value)


class NoReading(AdaptiveController):
    def guess(self, plan, draft, rows):
        return 0


class NoGain(AdaptiveController):
    def _gain_of_reading(self, plan, offer, step):
        return 0.0


class NoShorten(AdaptiveController):
    def shorten(self, plan, draft):
        return min(plan.limit, len(draft))


class NoPromise(AdaptiveController):
    """The whole of catching up is charged to the draft that needs it."""

    def _horizon(self, plan, least):
        return 0.0


class PlainSpeed(AdaptiveController):
    def _plan(self, seat, other_rows, sequences):
        seat.pace.tokens, seat.pace.seconds = 1e-9, 1.0
        return super()._plan(seat, other_rows, sequences)


class FixedBins(AdaptiveController):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.model.learn = lambda b, kept: None


class FixedTextBins(AdaptiveController):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.text.nudge = lambda b, surprise: None


class NoSharedHistogram(AdaptiveController):
    def _learn_model(self, outcome):
        before = self._drawn
        super()._learn_model(outcome)
        self._drawn = before


ABLATIONS: dict[str, tuple[type[AdaptiveController], dict[str, Any]]] = {
    "all": (AdaptiveController, {}),
    "speed of this answer (plain's instead)": (PlainSpeed, {}),
    "histogram of this answer": (AdaptiveController, {"DRAWN_MEMORY": 1.0, "DRAWN_START": 1e9}),
    "histogram of all answers": (NoSharedHistogram, {}),
    "model bins learn": (FixedBins, {}),
    "text bins learn": (FixedTextBins, {}),
    "trust": (AdaptiveController, {"TRUST_START": 1.0, "TRUST_HAZARD": 0.0}),
    "level of the text": (AdaptiveController, {"LEVEL_STEP": 0.0, "LEVEL_FIRST": 0.0}),
    "text margin": (AdaptiveController, {"TEXT_MARGIN": 0.0}),
    "reading the prompt in prefill": (AdaptiveController, {"OPEN_SHARE": 0.0}),
    "balance": (AdaptiveController, {"BALANCE_PRICE": 0.0}),
    "promise": (NoPromise, {}),
    "text's later reading": (AdaptiveController, {"READ_SHARE": 0.0}),
    "trials": (AdaptiveController, {"HOPE_CHANCE": 0.0}),
    "account of trials": (AdaptiveController, {"CREDIT_START": 1e9, "CREDIT_MOST": 1e9}),
    "bets": (AdaptiveController, {"BET": 1e9}),
    "reading along": (NoReading, {}),
    "gain of reading along": (NoGain, {}),
    "shorten": (NoShorten, {}),
    "tables made again": (AdaptiveController, {"TABLE_ROUNDS": 10**9}),
}


def speeds(name: str, which: str, files: list[Path]) -> dict[str, list[float]]:
    """Speed against plain decoding of every trace, by column."""
    kind, changed = ABLATIONS[name]
    traces = [t for f in files for t in load(f)]
    texts = [(t, TraceText(t)) for t in (traces if which == "all" else half(traces, which))]
    found: dict[str, list[float]] = {}
    with constants(**changed):
        for table, costs in COSTS.items():
            found[table] = [
                plain_seconds(t, costs) / seconds(replay(t, kind(costs.profile()), costs, BOTH, text))
                for t, text in texts
            ]
            found["warm " + table] = []
            controller = kind(costs.profile())
            for t, text in texts:
                found["warm " + table].append(
                    plain_seconds(t, costs) / seconds(replay(t, controller, costs, BOTH, text))
                )
        costs = COSTS["A"]
        found["unread"] = []
        for t, text in texts:
            controller = kind(costs.profile())
            length = len(t.prompt) + LONGER
            seat = Seat(controller.enter(), {"model": Offer(16, lag=length)}, length, len(t))
            read = None if controller.opens(seat, length) == "model" else -LONGER
            found["unread"].append(
                plain_seconds(t, costs) / seconds(replay(t, controller, costs, BOTH, text, seat.pace, read=read))
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("choose", "report", "all"), default="report")
    parser.add_argument("--traces", nargs="+", type=Path, default=[f for f in TRACES if f.is_file()])
    a = parser.parse_args()
    base = None
    with ProcessPoolExecutor(2) as pool:
        for name, found in zip(ABLATIONS, pool.map(speeds, ABLATIONS, [a.half] * 99, [a.traces] * 99)):
            cold = {k: v for k, v in found.items() if not k.startswith("warm")}
            means = {k: geometric_mean(v) for k, v in found.items()}
            if base is None:
                base = means
                print(f"{'':40}" + "".join(f"{k:>9}" for k in cold) + "   | least, cold; warm means")
                print(
                    f"{'speed':40}"
                    + "".join(f"{means[k]:9.3f}" for k in cold)
                    + "   |"
                    + "".join(f"{min(v):6.2f}" for v in cold.values())
                )
            else:
                print(
                    f"{name:40}"
                    + "".join(f"{100 * (means[k] / base[k] - 1):+9.1f}" for k in cold)
                    + "   |"
                    + "".join(f"{min(v):6.2f}" for v in cold.values())
                    + "  warm"
                    + "".join(f"{100 * (means[k] / base[k] - 1):+6.1f}" for k in means if k.startswith("warm")),
                    flush=True,
                )


if __name__ == "__main__":
    main()
