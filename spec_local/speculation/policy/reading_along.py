"""Letting the draft model read what the text drafter expects: speculation inside the draft.

In one pass the draft model can decode its own last token and, behind it, tokens that the text drafter expects. Where it
draws those very tokens itself, the rows after them are already there, and each saves a draft step. Nothing about the
draft changes: it is token for token the one that single steps would have made.
"""

from __future__ import annotations

from collections.abc import Sequence


def worth_reading(rates: Sequence[float], step_s: float, passes: Sequence[float]) -> int:
    """How many expected tokens to read along in one pass.

    Args:
        rates: Probability that each is what the model draws, given those before it.
        step_s: Seconds of the single step that each right one saves.
        passes: Entry n: seconds of the pass with n of them in it, one entry more than rates.
    """
    best_s, length, reach, saved_s = 0.0, 0, 1.0, 0.0
    for n, rate in enumerate(rates, 1):
        reach *= rate
        saved_s += reach * step_s
        gain_s = saved_s - (passes[n] - passes[0])
        if gain_s > best_s:
            best_s, length = gain_s, n
        elif reach < 0.05:
            break
    return length
