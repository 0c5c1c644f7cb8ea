"""What every mechanism of the policy is worth: each is switched off in turn, on recorded traces under all cost tables.

    python scripts/research/ablate_policy.py                 # the half of the traces that no number was chosen by
    python scripts/research/ablate_policy.py --half choose --change stake=2.0 --change stake_share=0.02

Columns are cost tables; "unread" is table A with a prompt that is longer and that the draft model has not read. First
line: geometric mean of speed against plain decoding, a new controller for every trace, all sources; second: the slowest
trace. Then one line per mechanism: percent that switching it off gains (+) or loses; then the slowest trace of all
tables, and how many traces of all tables fall below 0.98 of plain decoding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))

from replaying.costs import COSTS  # noqa: E402
from replaying.trace_file import load  # noqa: E402

from research.halves import Half, half  # noqa: E402
from spec_local.bench.results import geometric_mean  # noqa: E402
from spec_local.bench.traces import Costs, Trace, TraceText, plain_seconds, replay, seconds  # noqa: E402
from spec_local.drafting.draft import Draft  # noqa: E402
from spec_local.drafting.drafter import Offer  # noqa: E402
from spec_local.speculation.controller import Outcome, Plan, Seat  # noqa: E402
from spec_local.speculation.policy import AdaptiveController  # noqa: E402
from spec_local.speculation.policy.numbers import NUMBERS, Numbers  # noqa: E402

BOTH = ("model", "text")
TRACES = (SCRIPTS.parent / "tests" / "controller" / "traces.npz", Path(__file__).with_name("traces.npz"))
UNREAD, LONGER = "unread", 300
"""Column in which the prompt is so many tokens longer, and the draft model has read none of it."""
NEVER = 10**9


class NoReadingAlong(AdaptiveController):
    """The draft model reads nothing along."""

    def guess(self, plan: Plan, draft: Draft, rows: int) -> int:
        """None."""
        return 0


class NoShortening(AdaptiveController):
    """Everything drawn is submitted."""

    def shorten(self, plan: Plan, draft: Draft) -> int:
        """All."""
        return min(plan.limit, len(draft))


class PlainSpeed(AdaptiveController):
    """A second is worth what plain decoding makes of it."""

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Forget the speed."""
        super().observe(outcomes)
        for outcome in outcomes:
            outcome.plan.seat.state.tokens = 1e-9


@dataclass(frozen=True)
class Variant:
    """A policy with something switched off."""

    name: str
    kind: type[AdaptiveController] = AdaptiveController
    numbers: dict[str, float] = field(default_factory=dict)

    def make(self, costs: Costs, base: Numbers) -> AdaptiveController:
        """A new controller."""
        return self.kind(costs.profile(), numbers=replace(base, **self.numbers))


VARIANTS = (
    Variant("everything on"),
    Variant("guard", numbers={"stake": NEVER}),
    Variant("guard: growth with the answer", numbers={"stake_share": 0.0}),
    Variant("speed of this answer (plain's)", PlainSpeed),
    Variant("speed at the start (plain's)", numbers={"speed_start": 1.0}),
    Variant("level of a source on this text", numbers={"level_step": 0.0, "level_first": 0.0}),
    Variant("level: first surprises", numbers={"level_first": 0.0}),
    Variant("level: forgetting", numbers={"level_memory": 1.0}),
    Variant("drawn: bias of confidence", numbers={"drawn_bias": 0.0}),
    Variant("drawn: histogram of this text", numbers={"histogram_memory": 1.0, "histogram_start": NEVER}),
    Variant("drawn: share of sure tokens", numbers={"sure_share": 1 / 13}),
    Variant("drawn: rounds to earn catching up", numbers={"catch_up_rounds": 1.0}),
    Variant("drawn: reading the prompt first", numbers={"open_share": 0.0}),
    Variant("drawn: tables made again", numbers={"table_rounds": NEVER}),
    Variant("drawn: shortening", NoShortening),
    Variant("reading along", NoReadingAlong),
)


def speeds(variant: Variant, base: Numbers, files: Sequence[Path], which: Half) -> dict[str, list[float]]:
    """Speed against plain decoding of every trace, by cost table."""
    texts = [(trace, TraceText(trace)) for trace in half([t for file in files for t in load(file)], which)]
    found = {name: [_speed(variant, base, costs, *text) for text in texts] for name, costs in COSTS.items()}
    found[UNREAD] = [_speed(variant, base, COSTS["A"], *text, longer=LONGER) for text in texts]
    return found


def _speed(variant: Variant, base: Numbers, costs: Costs, trace: Trace, text: TraceText, longer: int = 0) -> float:
    controller, read = variant.make(costs, base), None
    state = controller.enter()
    if longer:
        length = len(trace.prompt) + longer
        opened = controller.opens(Seat(state, {"model": Offer(16, lag=length)}, length, len(trace)), length)
        read = None if opened == "model" else -longer
    return plain_seconds(trace, costs) / seconds(replay(trace, controller, costs, BOTH, text, state, read=read))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Switch every mechanism of the policy off in turn.")
    parser.add_argument("--half", choices=("choose", "report", "all"), default="report")
    parser.add_argument("--traces", nargs="+", type=Path, default=list(TRACES), help="files of record_traces.py")
    parser.add_argument("--change", action="append", default=[], metavar="NAME=VALUE", help="a number of the policy")
    parser.add_argument("--only", nargs="+", help="names of variants")
    arguments = parser.parse_args()
    try:
        changed = {name: float(value) for name, value in (change.split("=") for change in arguments.change)}
        base = replace(NUMBERS, **changed)
    except (TypeError, ValueError) as error:
        parser.error(f"--change wants NAME=VALUE with a name in policy/numbers.py: {error}")
    variants = [v for v in VARIANTS if not arguments.only or v.name in arguments.only or v is VARIANTS[0]]
    ask: Callable[[Variant], dict[str, list[float]]] = partial(
        speeds, base=base, files=arguments.traces, which=arguments.half
    )
    means: dict[str, float] = {}
    with ProcessPoolExecutor(2) as pool:
        for variant, found in zip(variants, pool.map(ask, variants), strict=True):
            if not means:
                means = {name: geometric_mean(some) for name, some in found.items()}
                print(f"{len(found[UNREAD])} traces\n{'':34}" + "".join(f"{name:>8}" for name in means))
                print(f"{variant.name:34}" + "".join(f"{mean:8.3f}" for mean in means.values()) + _low(found))
                print(f"{'slowest trace':34}" + "".join(f"{min(some):8.3f}" for some in found.values()))
                continue
            changes = (100 * (geometric_mean(some) / means[name] - 1) for name, some in found.items())
            print(f"{variant.name:34}" + "".join(f"{change:+8.1f}" for change in changes) + _low(found), flush=True)


def _low(found: dict[str, list[float]]) -> str:
    everything = [speed for some in found.values() for speed in some]
    return f"   {min(everything):.3f}  {sum(speed < 0.98 for speed in everything)}"


if __name__ == "__main__":
    main()
