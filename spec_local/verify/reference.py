"""The laws of the ratio rules' stages, written a second time: obvious instead of fast, and sharing no code with them.

Rejection (Leviathan et al. 2023) accepts x_i with probability min(1, p_i(x_i)/q_i(x_i)) up to the first failure. Block
verification (Sun et al. 2025) accepts the longest prefix whose independent test passes, with
w_i = min(1, w_{i-1}·p_i(x_i)/q_i(x_i)), h_i = R_i/(R_i + 1 - w_i), R_i = Σ(w_i·p_{i+1} - q_{i+1})+ and h_γ = w_γ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spec_local.sampling.row import Row


@dataclass(frozen=True, slots=True)
class Law:
    """A distribution over integers: ids ascending [k], probs float64 [k]."""

    ids: npt.NDArray[np.signedinteger]
    probs: npt.NDArray[np.float64]


def accepted_law(rule: str, tokens: Sequence[int], q: Sequence[Row], p: Sequence[Row]) -> Law:
    """How many of γ drafted tokens are accepted, given the tokens.

    Args:
        rule: "rejection" or "block".
        tokens: x_1..x_γ.
        q: q_1..q_γ.
        p: p_1..p_{γ+1}.
    """
    count = len(tokens)
    probs = np.zeros(count + 1)
    assert rule in ("rejection", "block"), f"no law is written down for the rule {rule}"
    if rule == "rejection":
        reached = 1.0
        for i, token in enumerate(tokens):
            keep = min(1.0, p[i].prob(token) / q[i].prob(token))
            probs[i] = reached * (1 - keep)
            reached *= keep
        probs[count] = reached
    else:
        weights = _weights(tokens, q, p)
        passing = [_block_test(i, weights, q, p) for i in range(count + 1)]
        none_above = 1.0
        for i in range(count, 0, -1):
            probs[i] = none_above * passing[i]
            none_above *= 1 - passing[i]
        probs[0] = none_above
    return Law(np.arange(count + 1), probs)


def added_law(rule: str, tokens: Sequence[int], q: Sequence[Row], p: Sequence[Row], accepted: int) -> Law:
    """The token the target adds, given the drafted tokens and how many of them were accepted. Arguments as above."""
    row = p[accepted]
    if accepted == len(tokens):
        return Law(row.ids, row.probs)
    weight = _weights(tokens, q, p)[accepted] if rule == "block" else 1.0
    left = _left(weight, row, q[accepted])
    total = sum(left)
    if total <= 1e-12:  # nothing is left but rounding: any token the target may give
        return Law(row.ids, row.probs)
    return Law(row.ids, np.array(left) / total)


def _weights(tokens: Sequence[int], q: Sequence[Row], p: Sequence[Row]) -> list[float]:
    weights = [1.0]
    for i, token in enumerate(tokens):
        weights.append(min(1.0, weights[-1] * p[i].prob(token) / q[i].prob(token)))
    return weights


def _block_test(i: int, weights: Sequence[float], q: Sequence[Row], p: Sequence[Row]) -> float:
    if i == len(q):
        return weights[i]
    mass = sum(_left(weights[i], p[i], q[i]))
    total = mass + 1 - weights[i]
    return mass / total if total > 0 else 1.0


def _left(weight: float, p: Row, q: Row) -> list[float]:
    """(weight·p - q)+ for each token of p."""
    covered = dict(zip(q.ids.tolist(), q.probs.tolist(), strict=True))
    pairs = zip(p.ids.tolist(), p.probs.tolist(), strict=True)
    return [max(0.0, weight * prob - covered.get(token, 0.0)) for token, prob in pairs]
