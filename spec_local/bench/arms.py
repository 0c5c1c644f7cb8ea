"""The arms of a comparison: ways to decode the same text, each with a controller of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spec_local.drafting.draft import MODEL_SOURCE, TEXT_SOURCE
from spec_local.speculation.controller import Controller, FixedController
from spec_local.speculation.cost import CostProfile
from spec_local.speculation.policy import AdaptiveController

PLAIN = "plain"
AUTO = "auto"
LENGTHS = (2, 4, 7)
"""Fixed draft lengths that are compared: within, at and beyond where most machines have their best one."""
_SOURCES = {MODEL_SOURCE: "the draft model", TEXT_SOURCE: "the text"}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to decode."""

    name: str
    """plain, fixed-N, model, text or auto."""
    title: str
    """What it is, for a person."""
    sources: tuple[str, ...] = ()
    """The drafters it may use."""
    length: int | None = None
    """Tokens per draft; None: the controller chooses."""

    @property
    def speculates(self) -> bool:
        """Whether it is anything but plain decoding."""
        return bool(self.sources) and self.length != 0

    def controller(self, costs: CostProfile, longest: int) -> Controller:
        """A fresh controller of this arm, with a copy of `costs` to learn in."""
        if self.length is not None:
            return FixedController(self.sources, self.length, costs.target.seconds(1))
        own = replace(CostProfile.from_dict(costs.as_dict()), rollback_s=costs.rollback_s)
        return AdaptiveController(own, longest)


def make_arms(sources: Collection[str], lengths: Sequence[int], alone: bool = True) -> list[Arm]:
    """The arms that make sense with these drafters.

    Args:
        sources: The drafters there are: "model", "text".
        lengths: Fixed lengths; they draft with the model, where there is one.
        alone: Also let every source work alone, where there are several.
    """
    arms = [Arm(PLAIN, "plain decoding", length=0)]
    known = tuple(source for source in _SOURCES if source in sources)
    if not known:
        return arms
    main = known[0]
    arms += [Arm(f"fixed-{n}", f"{n} tokens from {_SOURCES[main]}, always", (main,), n) for n in lengths]
    if len(known) > 1 and alone:
        arms += [Arm(source, f"as many as pay, from {_SOURCES[source]} only", (source,)) for source in known]
    title = " or ".join(_SOURCES[source] for source in known)
    arms.append(Arm(AUTO, f"as many as pay, from {title}: the default", known))
    return arms
