"""Every tuned number of the policy, chosen on the traces named in `scripts/research/choose.txt`.

Percentages are changes of the mean speed under the cost tables of `scripts/replaying/costs.py`, as
`scripts/research/ablate_policy.py` prints them. A *plain token* is the time in which plain decoding emits one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numbers:
    """See the module."""

    # -- guard: what drafts may cost an answer ---------------------------------------------------------------------
    stake: float = 1.5
    """Plain tokens that an answer may lose to drafts. 1.0: 7B −12 %, good pairs do not get going. 2.0: the same mean,
    seven times as many traces below 0.98 of plain decoding. No bound: A-AVX2 +5 %, 7B +3 %, the slowest trace 0.82."""
    stake_share: float = 0.016
    """The same per emitted token, if that is more: under 1 / 0.98 − 1. So an answer of 1 000 tokens may
    try again what failed at its start. 0: the same on answers of 100 tokens."""

    # -- what a second is worth ------------------------------------------------------------------------------------
    speed_memory: float = 0.95
    """Forgetting per round of an answer's speed. Plain decoding's speed instead: A −5 %, A-AVX2 −7 %, 7B −5 %."""
    speed_start: float = 1.3
    """Speed a new answer is taken to have made, in plain decoding's. 1.0: A-AVX2 −4 %, default −2 %."""
    speed_rounds: float = 4.0
    """Rounds that this start counts as."""
    stall: float = 1.5
    """A round that took so many times what it should counts as this; the next such round in a row as twice as much, and
    so on: a stall is over soon, a machine that has become busy stays so."""

    # -- acceptance ------------------------------------------------------------------------------------------------
    level_step: float = 0.2
    """Log-odds by which one surprise moves what is believed of a source on this text. 0.1: −0.1 %. Never: A −3 %,
    default −4 %."""
    level_first: float = 0.5
    """The first surprises move it by this divided by their number. 0: default −2 %. 1.0: −0.5 %, one miss ends it."""
    level_memory: float = 0.99
    """Forgetting of that level per tested token, and per token emitted without a drawn source. 1: A −0.4 %."""
    drawn_bias: float = 0.5
    """Log-odds by which a draft model's probability understates acceptance: both models are unsure of the same tokens,
    and under the coupled rule they share the noise. 0.35: −0.3 %; 0: A −1 %."""
    least: float = 0.02
    most: float = 0.999
    """Bounds of an estimated acceptance, unless a source is certain (confidence 1)."""

    # -- drawn sources ---------------------------------------------------------------------------------------------
    sure_share: float = 0.45
    """Share of a new text's tokens of which a draft model is surer than 0.995; the others are taken to spread evenly
    over the bins. 1/13: A −3 %, A-AVX2 −4 %."""
    histogram_memory: float = 0.985
    """Forgetting per drawn token of how sure the model is on this text. No histogram: A, A-AVX2 and 7B −2 %."""
    histogram_start: float = 20.0
    """Drawn tokens that the start counts as. 10 with a memory of 0.97: within 0.3 %."""
    catch_up_rounds: float = 32.0
    """Rounds in which a source must earn what it has to read first. 16, 64: the same; 1: A −3 %."""
    open_share: float = 0.4
    """A source reads the prompt in prefill if that takes at most this share of what the target's reading takes. Never:
    A with 300 more tokens of prompt −24 %."""
    table_step: float = 0.08
    """Step of log speed and log price for which one stopping table serves, and a third of the step of the level."""
    table_rounds: float = 24
    """Rounds after which a stopping table is made again. Never: no change on answers of 100 tokens."""


NUMBERS = Numbers()
