"""Every tuned number of the policy. All were chosen on the traces named in `scripts/research/choose.txt`.

*Sensitivity* is what other values do to the mean speed over all cost tables and to the slowest trace;
`scripts/research/ablate_policy.py` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numbers:
    """See the module. Tokens are plain tokens: the time in which plain decoding emits one."""

    # -- guard: what drafts may cost an answer ---------------------------------------------------------------------
    stake: float = 1.5
    """Tokens that drafts may cost an answer before they have won any. With `stake_rate` an answer of 96 tokens is never
    below 0.98 of plain decoding, one of 64 never below 0.97. At 1.0 good pairs do not get going (7B −12 %); at 2.0 the
    mean gains 0.3 % and four times as many traces fall below 0.98."""
    stake_share: float = 0.016
    """Further tokens per emitted token, so that a source that lost is tried again. At 0.012 nothing is gained and five
    times as many traces fall below 0.98."""
    winnings_most: float = 16.0
    """Tokens of winnings that later drafts may lose again: a draft of full length, about."""

    # -- what a second is worth ------------------------------------------------------------------------------------
    speed_memory: float = 0.95
    """Forgetting per round of an answer's speed. Plain decoding's speed instead: A −6 %, flat −4 %."""
    speed_start: float = 1.3
    """Times plain decoding's speed that a new answer is taken to have made. 1.0: A and flat −0.7 %, A-AVX2 +1 %."""
    speed_rounds: float = 4.0
    """Rounds that this start counts as."""
    stall: float = 1.5
    """A round that took so many times what it should counts as this, unless the next one does too: a stall says nothing
    about drafting."""

    # -- acceptance ------------------------------------------------------------------------------------------------
    level_step: float = 0.2
    """Log-odds by which one surprise moves what is believed of a source on this text. 0.1: the mean −0.3 %. Never: −2 %
    with text drafts."""
    level_first: float = 0.5
    """The first surprises move it by this divided by their number. 1.0: the mean −0.5 %, for one miss stops a source."""
    level_memory: float = 0.99
    """Forgetting of that level per tested token, and per token emitted without the source: it is tried again some day."""
    drawn_bias: float = 0.5
    """Log-odds by which a draft model's probability understates acceptance: both models err on the same tokens, and
    under the coupled rule they share the noise. 0.35: −0.3 %; 0.2: −0.6 %."""
    least: float = 0.02
    most: float = 0.999
    """Bounds of an estimated acceptance, unless the source is certain (confidence 1)."""

    # -- drawn sources ---------------------------------------------------------------------------------------------
    sure_share: float = 0.45
    """Share of a new text's tokens that a draft model draws with more than 0.995; the others are taken to spread evenly.
    0.43 to 0.5: within 0.2 %."""
    histogram_memory: float = 0.985
    """Forgetting per drawn token of how sure the model is on this text. No histogram: A and A-AVX2 −2 %."""
    histogram_start: float = 20.0
    """Drawn tokens that the start counts as. 10 with a memory of 0.97: within 0.3 %."""
    idle_memory: float = 0.98
    """Forgetting of that histogram per token emitted without the source: one that is off is tried again some day."""
    catch_up_rounds: float = 32.0
    """Rounds in which a draft must earn what the model reads first because it was not used. 16 to 64: the same."""
    open_share: float = 0.4
    """A draft model reads the prompt in prefill if that takes at most this share of what the target's reading takes.
    Never: a prompt of 300 tokens costs A 2.3 %."""
    table_speed: float = 0.08
    """Step of log speed and of costs for which one stopping table serves."""
    table_level: float = 0.25
    """Step of the level for which one stopping table serves."""
    table_rounds: int = 24
    """Rounds after which a table is made again. Never: −0.6 %."""


NUMBERS = Numbers()
