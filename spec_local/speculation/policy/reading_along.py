"""Letting the draft model read what the text drafter expects: speculation inside the draft.

In one pass the draft model can decode its own last token and, behind it, tokens that the text drafter expects. Where it
draws those very tokens itself, the rows after them are already there, and each saves a draft step. Nothing about the
draft changes: it is token for token the one that single steps would have made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def worth_reading(rates: Sequence[float], step_s: float, pass_s: Callable[[int], float]) -> int:
    """How many expected tokens to read along in one pass.

    Args:
        rates: Probability that each is what the model draws, given those before it.
        step_s: Seconds of the single step that each right one saves.
        pass_s: Seconds of the pass with n of them in it.
    """
    base_s = pass_s(0)
    best_s, length, reach, saved_s = 0.0, 0, 1.0, 0.0
    for n, rate in enumerate(rates, 1):
        reach *= rate
        saved_s += reach * step_s
        gain_s = saved_s - (pass_s(n) - base_s)
        if gain_s > best_s:
            best_s, length = gain_s, n
        elif reach < 0.05:
            break
    return length


def gain_of_reading(
    rates: Sequence[float], acceptance: float, first: float, step: float, rows: Sequence[float]
) -> float:
    """Tokens that reading along is worth to a whole draft, which may become longer for being cheaper.

    Args:
        rates: Probability that the model draws each token read along, given those before it.
        acceptance: Mean acceptance of the model's tokens.
        first: Extra cost of the first pass for reading along, in tokens.
        step: Cost of a draft step, in tokens.
        rows: Entry k: cost in tokens of submitting k + 1 tokens instead of k.
    """
    alone, along = 0.0, first
    best_alone = best_along = -len(rows) * step
    net, alive, reach = 0.0, 1.0, 1.0
    for k, row in enumerate(rows):
        alive *= acceptance
        net += alive - row
        alone += step
        if 0 < k <= len(rates):
            reach *= rates[k - 1]
            along += step * (1 - reach)
        else:
            along += step
        best_alone = max(best_alone, net - alone)
        best_along = max(best_along, net - along)
    return best_along - best_alone
