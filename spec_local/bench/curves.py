"""What passes cost here, and what a draft must achieve to pay for itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spec_local.bench.traces import Costs
from spec_local.drafting.draft import MODEL_SOURCE, TEXT_SOURCE
from spec_local.session.assembly import fill_passes
from spec_local.session.costs import DRAFT_ROWS, TARGET_ROWS, measure
from spec_local.session.engine import Engine
from spec_local.speculation.cost import BreakEven, CostProfile, Curve

Clock = Callable[[], float]
_DRAFT_ROWS = tuple(n for n in DRAFT_ROWS if n <= 16)


@dataclass(frozen=True, slots=True)
class Curves:
    """Measured seconds of a pass over n rows."""

    target: dict[int, float]
    """n → seconds."""
    draft: dict[int, float] | None
    """None where there is no draft model."""

    @property
    def step(self) -> float | None:
        """c: one draft step in units of a one-row target pass."""
        return None if self.draft is None else self.draft[1] / self.target[1]

    def relative(self, rows: int) -> float:
        """v(n): seconds of `rows` rows in units of one row, between the measured points linear."""
        return Curve(self.target).seconds(rows) / self.target[1]

    def profile(self) -> CostProfile:
        """As what a controller starts with."""
        return CostProfile(Curve(self.target), None if self.draft is None else Curve(self.draft))

    def costs(self) -> Costs:
        """As what a replay of traces takes; without a draft model its column is not to be used."""
        return Costs("measured", self.target, self.draft or self.target)

    def break_even(self, source: str) -> BreakEven | None:
        """For drafts from "model" or "text"; None where no acceptance suffices, or there is no such drafter."""
        return self.profile().break_even(free=source == TEXT_SOURCE)

    def as_dict(self) -> dict[str, Any]:
        """JSON: seconds by rows, v(n), c and the break-even points; what does not exist is left out."""
        even = {
            source: found for source in (MODEL_SOURCE, TEXT_SOURCE) if (found := self.break_even(source)) is not None
        }
        return {
            "target_s": {str(n): s for n, s in self.target.items()},
            "target_relative": {str(n): s / self.target[1] for n, s in self.target.items()},
            **({} if self.draft is None else {"draft_s": {str(n): s for n, s in self.draft.items()}}),
            **({} if self.step is None else {"draft_step": self.step}),
            "break_even": {source: {"acceptance": e.acceptance, "length": e.length} for source, e in even.items()},
        }


def measure_curves(engine: Engine, repeats: int = 3, clock: Clock = time.perf_counter) -> Curves:
    """Measure both models, the best of `repeats`. Empties slot 0.

    From then on the engine fills its passes up where that is faster. Takes `repeats` times the passes over 1..16 rows:
    on a processor some twenty times the one-row pass of the target.
    """
    loaded, options = engine.loaded, engine.options
    engine.speculator.release(0)
    target = measure(loaded.target, [n for n in TARGET_ROWS if n <= options.max_rows], repeats, clock)
    draft = None
    if loaded.draft is not None and MODEL_SOURCE in engine.speculator.drafters:
        draft = measure(loaded.draft, [n for n in _DRAFT_ROWS if n <= options.batch_size], repeats, clock)
    curves = Curves(target, draft)
    fill_passes(loaded.target, curves.profile())
    return curves
