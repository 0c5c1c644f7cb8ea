"""What an engine drafts with, and who decides how far: the drafters and the controller for what was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spec_local.drafting.draft import GRAMMAR_SOURCE, MODEL_SOURCE, TEXT_SOURCE
from spec_local.drafting.drafter import Drafter
from spec_local.drafting.grammar import GrammarDrafter
from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.text import TextDrafter
from spec_local.errors import UsageError
from spec_local.session.costs import cost_profile
from spec_local.session.loading import Loaded, LoadProgress
from spec_local.speculation.controller import Controller, FixedController
from spec_local.speculation.cost import CostProfile
from spec_local.speculation.policy import AdaptiveController

if TYPE_CHECKING:
    from spec_local.llama.model_context import ModelContext


def make_drafters(loaded: Loaded, notices: list[str]) -> tuple[dict[str, Drafter], str]:
    """The drafters there are, by source, and why there is none (empty where there is one).

    Args:
        loaded: A draft model that cannot be used is freed.
        notices: Gets what a person should know about that.

    Raises:
        UsageError: Padded passes were asked for, and this target's cache cannot lose the padding again.
    """
    options, memory = loaded.options, loaded.target.memory
    if options.pad_width and not (memory.free or memory.depth >= options.pad_width - 1):
        raise UsageError(f"Passes cannot be padded: {memory.reason}.", "Leave --pad-width out.")
    if options.draft == "none":
        return {}, "no draft was asked for (--draft none)"
    if options.longest_draft <= 0:
        return {}, "the draft length is 0"
    if not memory.cuttable:
        loaded.drop_draft(memory.reason)
        return {}, memory.reason
    if loaded.draft is not None and not loaded.draft.memory.cuttable:
        notices.append(f"The draft model is not used: {loaded.draft.memory.reason}.")
        loaded.drop_draft(loaded.draft.memory.reason)
    drafters: dict[str, Drafter] = {GRAMMAR_SOURCE: GrammarDrafter()}
    if loaded.draft is not None:
        drafters[MODEL_SOURCE] = ModelDrafter(loaded.draft, loaded.draft.options.max_rows, loaded.vocabulary_map)
    if options.draft in ("auto", "text") or options.draft_length == "auto":
        drafters[TEXT_SOURCE] = TextDrafter()  # free until it is used, and the controller uses it only where it pays
    if len(drafters) == 1:  # without another one, decoding stays plain
        return {}, loaded.draft_off or "there is no draft"
    return drafters, ""


def make_controller(loaded: Loaded, sources: Sequence[str], progress: LoadProgress | None) -> Controller:
    """Who decides what is drafted. For an adaptive one, what passes cost here is measured unless that is known."""
    options = loaded.options
    if options.draft_length != "auto" or not sources:
        return FixedController(list(sources), options.longest_draft if sources else 0)
    costs = cost_profile(loaded, progress).with_memory(loaded.target.memory)
    fill_passes(loaded.target, costs)
    return AdaptiveController(costs, longest=options.longest_draft, apart=bool(options.pad_width))


def fill_passes(target: ModelContext, costs: CostProfile) -> None:
    """Add rows of no use to the target's passes where that makes them faster: kernels work in tiles of rows."""
    if target.memory.free:
        target.width = costs.target.width
