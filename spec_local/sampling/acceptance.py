"""The acceptance rules: given a draft and the target's rows, which tokens are emitted.

Notation of the literature: at draft position i (1-based) `x_i` is the drafted token, `q_i` the row it was really
drawn from, `p_i` the target's row after `x_1..x_{i-1}`, γ the number of drafted tokens. Every rule emits a prefix of
the draft and one token more, and the emitted stream follows the target's law exactly, whatever the draft was.

A rule knows rows, token ids and a source of chance; it knows no model, cache, text, end token or budget. The arithmetic
of the decisions is written once, for any numbers: floats in the program, rationals in the exact tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spec_local.errors import InvariantError
from spec_local.sampling.noise import Chance, Ids, Purpose, Weights
from spec_local.sampling.row import Row

TargetRow = Callable[[int], Row]
"""`target_row(i)` is p_{i+1}, the row after x_1..x_i; called in order, at most once for each i, only where needed."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What one round emits by a rule."""

    tokens: tuple[int, ...]
    """The accepted drafted tokens and, last, the one the target adds: at least one token."""
    accepted: int
    """Drafted tokens emitted: `len(tokens) - 1`."""


class AcceptanceRule(Protocol):
    """One way of drawing drafted tokens and of deciding, afterwards, how many of them stand."""

    @property
    def name(self) -> str:
        """The word for `--acceptance`."""

    @property
    def tolerates_truncation(self) -> bool:
        """Whether drafted tokens that were drawn (`rows` given) may be dropped again before `verify`.

        False means that dropping a token *after looking at it* biases the output: decide before drawing the next
        token. One-hot drafts (`rows` None) may be cut under every rule.
        """

    @property
    def reproducible(self) -> bool:
        """Whether the text is a function of seed, prompt and target alone: the same with any draft or none."""

    def draft_token(self, row: Row, noise: Chance, position: int) -> int:
        """Draw x ~ q for absolute position `position`, in the way `verify` expects."""

    def verify(
        self, tokens: Sequence[int], rows: Sequence[Row] | None, target_row: TargetRow, noise: Chance, position: int
    ) -> Ruling:
        """Decide about one draft.

        Args:
            tokens: x_1..x_γ; γ may be 0, which is plain decoding.
            rows: q_1..q_γ, the rows `tokens` were drawn from with `draft_token`; None for a one-hot draft, whose
                tokens were not drawn at all (text, arg-max).
            target_row: p_{i+1} for i in 0..γ.
            noise: For a rule that is not `reproducible`: bound to this round (`Noise.for_round(position)`), the same
                that `draft_token` was given.
            position: Absolute position of x_1.
        """


def acceptance_probability(p: float, q: float) -> float:
    """min(1, p/q): the chance to keep a token drawn with probability q > 0 that the target gives probability p."""
    return min(1, p / q)


def block_weight(weight: float, p: float, q: float) -> float:
    """w_i = min(1, w_{i-1}·p_i(x_i)/q_i(x_i)), with w_0 = 1."""
    return min(1, weight * p / q)


def block_acceptance(weight: float, residual_mass: float) -> float:
    """h_i = R_i / (R_i + 1 - w_i) for i < γ, where R_i is the mass of the residual; 0/0 is 1."""
    total = residual_mass + 1 - weight
    return residual_mass / total if total > 0 else 1


def residual(p: Row, q: Row, weight: float) -> tuple[Ids, Weights]:
    """(weight·p - q)+ by token id, unnormalised.

    Returns:
        ids int32 [k] ascending and weights float64 [k] > 0; k is 0 where q covers weight·p.
    """
    if p.ids is q.ids or (len(p.ids) == len(q.ids) and np.array_equal(p.ids, q.ids)):
        covered = q.probs
    else:  # p and q keep different tokens: look every id of p up in q
        at = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
        covered = np.where(q.ids[at] == p.ids, q.probs[at], 0)
    left = weight * p.probs - covered
    keep = left > 0
    return p.ids[keep], left[keep]


def _draw_residual(p: Row, q: Row, weight: float, noise: Chance, position: int) -> int:
    ids, weights = residual(p, q, weight)
    if not len(ids):  # p = q up to rounding, and the test failed by rounding alone: the limit of the residual is p
        ids, weights = p.ids, p.probs
    return noise.choose(Purpose.RESIDUAL, position, ids, weights)


def _draw(row: Row, purpose: Purpose, noise: Chance, position: int) -> int:
    return noise.choose(purpose, position, row.ids, row.probs)


def _walk(tokens: Sequence[int], target_row: TargetRow, purpose: Purpose, noise: Chance, position: int) -> Ruling:
    """Draw the target's own tokens y_1, y_2, ...; drafted tokens stand as long as they equal them."""
    for i, token in enumerate(tokens):
        drawn = _draw(target_row(i), purpose, noise, position + i)
        if drawn != token:
            return Ruling((*tokens[:i], drawn), accepted=i)
    count = len(tokens)
    return Ruling((*tokens, _draw(target_row(count), purpose, noise, position + count)), count)


@dataclass(frozen=True, slots=True)
class Coupled:
    """Same seed, same text, with or without a draft: target and draft race on the *same* noise.

    y_t = argmin E(t,x)/p_t(x) and x_t = argmin E(t,x)/q_t(x); x_t is kept while it equals y_t. The output never looks
    at q. Gumbel coupling, as in Daliri, Musco, Suresh 2025 ("Coupling without communication and drafter-invariant
    speculative decoding"); a match has probability Σ_x 1/Σ_z max(p(z)/p(x), q(z)/q(x)) ≥ (1-TV)/(1+TV).
    """

    name: str = "coupled"
    tolerates_truncation: bool = True
    reproducible: bool = True

    def draft_token(self, row: Row, noise: Chance, position: int) -> int:
        """Draw argmin E/q with the shared noise of the position."""
        return _draw(row, Purpose.SHARED, noise, position)

    def verify(
        self, tokens: Sequence[int], rows: Sequence[Row] | None, target_row: TargetRow, noise: Chance, position: int
    ) -> Ruling:
        """Keep drafted tokens while they equal the target's own."""
        return _walk(tokens, target_row, Purpose.SHARED, noise, position)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Leviathan, Kalman, Matias 2023; Chen et al. 2023: the best rule that looks at one token at a time.

    x_i stands with probability min(1, p_i(x_i)/q_i(x_i)), which is 1-TV(p_i, q_i) on average. At the first failure
    y ~ (p_i - q_i)+ normalised is emitted instead; if none fails, y ~ p_{γ+1}.
    """

    name: str = "rejection"
    tolerates_truncation: bool = False
    reproducible: bool = False

    def draft_token(self, row: Row, noise: Chance, position: int) -> int:
        """Draw x ~ q with noise that no other decision sees."""
        return _draw(row, Purpose.DRAFT, noise, position)

    def verify(
        self, tokens: Sequence[int], rows: Sequence[Row] | None, target_row: TargetRow, noise: Chance, position: int
    ) -> Ruling:
        """Test the drafted tokens in turn, up to the first failure."""
        if rows is None or not tokens:
            return _walk(tokens, target_row, Purpose.RESIDUAL, noise, position)
        _check_draft(tokens, rows, noise, position)
        for i, (token, q) in enumerate(zip(tokens, rows, strict=True)):
            p = target_row(i)
            chance = acceptance_probability(p.prob(token), q.prob(token))
            if not noise.happens(Purpose.ACCEPT, position + i, chance):
                added = _draw_residual(p, q, 1, noise, position + i)
                return Ruling((*tokens[:i], added), accepted=i)
        count = len(tokens)
        return Ruling((*tokens, _draw(target_row(count), Purpose.RESIDUAL, noise, position + count)), count)


@dataclass(frozen=True, slots=True)
class Block:
    """Block verification (Sun et al., ICLR 2025): the whole block is judged at once; never worse than rejection.

    w_0 = 1;  w_i = min(1, w_{i-1}·p_i(x_i)/q_i(x_i))
    i < γ:  R_i = Σ_x (w_i·p_{i+1}(x) - q_{i+1}(x))+,  h_i = R_i/(R_i + 1 - w_i), 0/0 being 1;   h_γ = w_γ
    τ = the largest i with u_i ≤ h_i for independent u_1..u_γ, or 0
    τ = γ:  y ~ p_{γ+1};   else y ∝ (w_τ·p_{τ+1} - q_{τ+1})+
    """

    name: str = "block"
    tolerates_truncation: bool = False
    reproducible: bool = False

    def draft_token(self, row: Row, noise: Chance, position: int) -> int:
        """Draw x ~ q with noise that no other decision sees."""
        return _draw(row, Purpose.DRAFT, noise, position)

    def verify(
        self, tokens: Sequence[int], rows: Sequence[Row] | None, target_row: TargetRow, noise: Chance, position: int
    ) -> Ruling:
        """Find the longest prefix whose test passes.

        The tests are independent, so they are made from the last to the first, and those below the largest passing
        one, which decide nothing, are not made.
        """
        if rows is None or not tokens:
            return _walk(tokens, target_row, Purpose.RESIDUAL, noise, position)
        _check_draft(tokens, rows, noise, position)
        count = len(tokens)

        targets: list[Row] = []  # p_1..
        weights: list[float] = [1]  # w_0..
        for i, (token, q) in enumerate(zip(tokens, rows, strict=True)):
            targets.append(target_row(i))
            weights.append(block_weight(weights[-1], targets[i].prob(token), q.prob(token)))
            if not weights[-1] > 0:  # then every later w and h is 0 as well: no target row behind it matters
                break

        if len(weights) > count and noise.happens(Purpose.ACCEPT, position + count - 1, weights[count]):
            return Ruling((*tokens, _draw(target_row(count), Purpose.RESIDUAL, noise, position + count)), count)
        kept = min(len(targets), count) - 1
        while kept > 0:
            mass = residual(targets[kept], rows[kept], weights[kept])[1].sum()
            if noise.happens(Purpose.ACCEPT, position + kept - 1, block_acceptance(weights[kept], mass)):
                break
            kept -= 1
        added = _draw_residual(targets[kept], rows[kept], weights[kept], noise, position + kept)
        return Ruling((*tokens[:kept], added), accepted=kept)


def _check_draft(tokens: Sequence[int], rows: Sequence[Row], noise: Chance, position: int) -> None:
    """A ratio rule is exact only for tokens drawn from exactly these rows with noise of this round."""
    if len(rows) != len(tokens):
        raise InvariantError("draft row", f"{len(tokens)} drafted tokens came with {len(rows)} rows")
    if noise.start != position:
        raise InvariantError("noise", "a ratio rule needs the noise of its own round: noise.for_round(position of x_1)")
    if not all(q.prob(x) > 0 for x, q in zip(tokens, rows, strict=True)):
        raise InvariantError("draft row", "a drafted token is not in its draft row")


RULES: dict[str, AcceptanceRule] = {rule.name: rule for rule in (Coupled(), Rejection(), Block())}
"""All rules by name, the default first."""
