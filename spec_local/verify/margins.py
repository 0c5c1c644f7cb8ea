"""How near a decision was: by how much a logit must move before another token is chosen.

The margin is found by trying, so it is right for any sampling: truncation, penalties, noise, arg-max.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from spec_local.language_model import Logits
from spec_local.sampling.acceptance import AcceptanceRule
from spec_local.sampling.noise import Noise
from spec_local.speculation.sequence import Sequence

Chooser = Callable[[Logits], int]
"""From float32 [n_vocab] logits to the token a sequence would emit at one position."""

FAR = 64.0
"""A margin beyond this many logits is infinite."""
_NEAR = 1e-4
"""Margins are not resolved below this many logits."""


def chooser(sequence: Sequence, rule: AcceptanceRule, noise: Noise, position: int) -> Chooser:
    """Plain decoding's choice at one absolute position of a sequence."""
    history = sequence.tokens[:position]

    def choose(logits: Logits) -> int:
        row = sequence.transform.row(logits, history, position)
        return rule.verify((), None, lambda _: row, noise.for_round(position), position).tokens[0]

    return choose


def fall(choose: Chooser, logits: Logits, token: int, precision: float = 0.1) -> float:
    """By how much the logit of the chosen `token` can fall before another one is chosen, rounded up by `precision`."""
    return _smallest(lambda change: choose(_moved(logits, token, -change)) != token, precision)


def miss(choose: Chooser, logits: Logits, token: int) -> float:
    """The smallest move of one logit that makes `token` the choice, to 2 %: its own rise, or the fall of the chosen."""
    rise = _smallest(lambda change: choose(_moved(logits, token, change)) == token, 0.02)
    chosen = choose(logits)
    drop = fall(choose, logits, chosen, 0.02)
    if drop < rise and choose(_moved(logits, chosen, -drop)) == token:
        return drop
    return rise


def _smallest(reached: Callable[[float], bool], precision: float) -> float:
    """The smallest change in [0, FAR] at which a monotone condition holds; inf where it never does."""
    if not reached(FAR):
        return float("inf")
    low, high = 0.0, FAR
    while high > _NEAR and high > (1 + precision) * low:
        middle = math.sqrt(low * high) if low > 0.0 else high / 8
        if reached(middle):
            high = middle
        else:
            low = middle
    return high


def _moved(logits: Logits, token: int, change: float) -> Logits:
    moved = logits.copy()
    moved[token] += np.float32(change)
    return moved
