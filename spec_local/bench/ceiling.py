"""What the recorded traces say: the speed of an omniscient policy, and what another draft or device would bring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spec_local.bench.curves import Curves
from spec_local.bench.results import Ceiling, geometric_mean
from spec_local.bench.traces import Costs, Trace, TraceText, oracle_seconds, plain_seconds, replay, seconds
from spec_local.drafting.draft import MODEL_SOURCE
from spec_local.speculation.policy import AdaptiveController

FLAT_SLOPE = 0.03
"""Growth of a pass per further row where passes are nearly flat: a GPU that is not busy."""


def ceiling(traces: Sequence[Trace], curves: Curves, sources: Iterable[str]) -> Ceiling:
    """For traces of one kind of text at one temperature.

    Args:
        traces: At least one, of at least two tokens.
        curves: Measured costs.
        sources: The drafters there are.
    """
    sources = tuple(sources)
    costs = curves.costs()
    plain = sum(plain_seconds(trace, costs) for trace in traces)
    best = sum(oracle_seconds(trace, costs, sources) for trace in traces)
    tokens = sum(len(trace) for trace in traces)
    agreed = sum(int(trace.agree.sum()) for trace in traces)
    return Ceiling(plain / best, agreed / tokens if MODEL_SOURCE in sources else None, tokens)


def what_if(traces: Sequence[Trace], curves: Curves, sources: Iterable[str]) -> dict[str, float]:
    """Speed against plain decoding, by the adaptive controller on these traces, under other costs.

    Returns:
        "as_measured", "half_draft_cost" (a draft of the same agreement at half the cost) and "flat_target" (passes that
        hardly grow with rows, and the same draft relative to them): geometric means over the kinds of text.
    """
    sources = tuple(sources)
    unit = curves.target[1]
    flat = {n: unit * (1 + FLAT_SLOPE * (n - 1)) for n in (1, 64)}
    cases = {"as_measured": curves.costs()}
    if curves.draft is not None:
        cases["half_draft_cost"] = Costs("half", curves.target, {n: s / 2 for n, s in curves.draft.items()})
    cases["flat_target"] = Costs("flat", flat, _flat_draft(curves, flat))
    kinds = sorted({trace.kind for trace in traces})
    texts = [(trace, TraceText(trace)) for trace in traces]
    found = {}
    for name, costs in cases.items():
        controller = AdaptiveController(costs.profile(), frozen=True)
        taken = dict.fromkeys(kinds, 0.0)
        plain = dict.fromkeys(kinds, 0.0)
        for trace, text in texts:
            taken[trace.kind] += seconds(replay(trace, controller, costs, sources, text))
            plain[trace.kind] += plain_seconds(trace, costs)
        found[name] = geometric_mean([plain[kind] / taken[kind] for kind in kinds])
    return found


def _flat_draft(curves: Curves, flat: dict[int, float]) -> dict[int, float]:
    """The draft's one-row step as it is, growing as slowly as the target's pass."""
    if curves.draft is None:
        return flat
    return {n: curves.draft[1] * s / flat[1] for n, s in flat.items()}
