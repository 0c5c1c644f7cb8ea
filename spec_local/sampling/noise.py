"""Randomness as a pure function of (seed, prompt, purpose, absolute position, token id): no generator is ever advanced.

Every value comes from a splitmix64 stream (Steele, Lea, Flood 2014: state + i·γ through a 64-bit finaliser), whose
starting state is keyed by seed, prompt, purpose and position; token `x` reads the x-th output. So a token's noise does
not depend on which other tokens are candidates, on how long a draft was, or on anything drawn before.

`Noise.choose` is the one way in which any part of the program draws a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Weights = npt.NDArray[np.float64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

# Operands as 0-d arrays: a third less overhead per call than numpy scalars, which counts for rows of a few tokens.
_GOLDEN_U, _MIX_1_U, _MIX_2_U, _12, _27, _30, _31 = (
    np.array(number, np.uint64) for number in (_GOLDEN, _MIX_1, _MIX_2, 12, 27, 30, 31)
)
_ONE_BITS = np.array(0x3FF0000000000000, np.uint64)
"""Exponent of a float64 in [1, 2): or-ing 52 random bits under it gives 1 + bits·2⁻⁵² without a conversion."""

_PRUNE_ABOVE = 4096
"""Above this many candidates the logarithm is taken only of those that could still win."""
_LIGHT = 2.0**-14
"""The ε of `Noise._contenders`: one light token in 16 384 is lucky."""
_LUCKY = np.uint64(2**64 - 2**50 - 2**34)
"""Hashes from here on may have U ≥ 1 - ε; 2³⁴ covers the bits that are not final, and rounding."""
_CHUNK = 8192
"""Candidates hashed at a time: 64 KiB per operand stay in the inner caches."""


class Purpose(IntEnum):
    """What a random number decides. Two purposes never share a stream."""

    SHARED = 0
    """Coupled rule: the same noise for the draft's token and the target's token of a position."""
    ACCEPT = 1
    """Ratio rules: the uniform of an acceptance test."""
    RESIDUAL = 2
    """Ratio rules: the token that the target adds."""
    DRAFT = 3
    """Ratio rules: the drafted token."""


class Chance(Protocol):
    """What an acceptance rule asks of randomness. `Noise` answers by seed; an exact test answers by enumeration."""

    @property
    def start(self) -> int | None:
        """Absolute position of the first drafted token of the round this randomness belongs to; None: no round."""

    def happens(self, purpose: Purpose, position: int, probability: float) -> bool:
        """True with the given probability (0 never, 1 always)."""

    def choose(self, purpose: Purpose, position: int, ids: Ids, weights: Weights) -> int:
        """One of `ids` with probability proportional to `weights`."""


def _mix(state: int) -> int:
    """The splitmix64 finaliser (variant 13 of Stafford) on one Python integer."""
    state &= _MASK
    state = ((state ^ (state >> 30)) * _MIX_1) & _MASK
    state = ((state ^ (state >> 27)) * _MIX_2) & _MASK
    return state ^ (state >> 31)


def _mix_array(state: npt.NDArray[np.uint64], spare: npt.NDArray[np.uint64], last: bool = True) -> None:
    """`_mix` on uint64 [k], in place; `spare` is uint64 [k] of working room.

    Without the `last` step the upper 31 bits are final.
    """
    np.right_shift(state, _30, spare)
    np.bitwise_xor(state, spare, state)
    np.multiply(state, _MIX_1_U, state)
    np.right_shift(state, _27, spare)
    np.bitwise_xor(state, spare, state)
    np.multiply(state, _MIX_2_U, state)
    if last:
        np.right_shift(state, _31, spare)
        np.bitwise_xor(state, spare, state)


class Noise:
    """Counter-based noise of one answer, keyed by its seed and its prompt. Immutable; cheap to derive per round.

    **Prompts.** Noise that knew the seed alone would be the same for all lines of a batch under one seed: of a hundred
    prompts that ask for a digit, all would get the same one. With the prompt's ids in the key the lines are a sample,
    and an answer is still a function of what its record says: in any order, beside any neighbours, with any draft.
    The same prompt under the same seed is answered the same.

    **Rounds.** A round that rejects its draft leaves positions behind that the next round drafts again. Under the
    block rule the outcome of the first round depended on the uniforms and drafted tokens at *all* its positions, so
    using those again would bias the second. Drafting and acceptance tests are therefore keyed by the round's first
    position too (`for_round`); positions grow from round to round, so no pair repeats. Shared noise must *not*
    know the round (the text would depend on it), and a position is emitted once, so the residual need not.

    Args:
        seed: Any integer; taken modulo 2⁶⁴.
        prompt: Token ids of the whole prompt; empty: noise of the seed alone.
    """

    __slots__ = ("_keys", "_start", "_unbound", "seed")

    def __init__(self, seed: int, prompt: Sequence[int] = ()) -> None:
        self.seed = seed
        self._start: int | None = None
        root = _mix(seed + _GOLDEN)
        if prompt:  # little-endian ids, so that every machine hashes the same bytes
            ids = np.asarray(prompt, "<i4").tobytes()
            root = _mix(root ^ int.from_bytes(blake2b(ids, digest_size=8).digest(), "little"))
        self._unbound = [_mix(root + (purpose + 1) * _GOLDEN) for purpose in Purpose]  # by purpose, without a round
        self._keys = self._unbound

    @property
    def start(self) -> int | None:
        """Absolute position of the first drafted token of this noise's round; None: bound to no round."""
        return self._start

    def for_round(self, start: int) -> Noise:
        """The same noise bound to the round whose first drafted token has absolute position `start`."""
        bound = Noise.__new__(Noise)
        bound.seed, bound._start, bound._unbound = self.seed, start, self._unbound
        bound._keys = list(self._unbound)
        tweak = _mix((start + 1) * _GOLDEN)
        for purpose in (Purpose.ACCEPT, Purpose.DRAFT):
            bound._keys[purpose] = _mix(bound._keys[purpose] ^ tweak)
        return bound

    def uniform(self, purpose: Purpose, position: int) -> float:
        """One number in (0, 1), never an end point, of resolution 2⁻⁵²; it shares nothing with any token's noise."""
        bits = _mix(self._key(purpose, position) - _GOLDEN) >> 12
        return (bits + 0.5) * 2.0**-52

    def exponential(self, purpose: Purpose, position: int, ids: npt.NDArray[Any]) -> Weights:
        """Standard exponential noise E = -log U of the given tokens.

        Args:
            purpose: The stream.
            position: Absolute position of the token to be drawn.
            ids: Token ids, integers [k] ≥ 0.

        Returns:
            float64 [k], all > 0 and finite.
        """
        logs = self._log_uniform(purpose, position, ids)
        return np.negative(logs, logs)

    def happens(self, purpose: Purpose, position: int, probability: float) -> bool:
        """True with the given probability: U ≤ probability, so 0 is never and 1 always."""
        return self.uniform(purpose, position) <= probability

    def choose(self, purpose: Purpose, position: int, ids: Ids, weights: Weights) -> int:
        """Draw a token by exponential race (Gumbel-max): argmin E(x)/w(x), whose law is w/Σw.

        The result is a function of the noise and the weights alone; scaling all weights changes nothing. It is
        computed as argmin w/log U, which cannot overflow. Ties go to the smallest id.

        Args:
            purpose: The stream.
            position: Absolute position of the token to be drawn.
            ids: int32 [k], ascending, k ≥ 1.
            weights: float64 [k], all > 0.
        """
        if len(ids) == 1:
            return int(ids[0])
        if len(ids) > _PRUNE_ABOVE:
            at = self._contenders(purpose, position, ids, weights)
            ids, weights = ids[at], weights[at]
        return int(ids[(weights / self._log_uniform(purpose, position, ids)).argmin()])

    def _contenders(self, purpose: Purpose, position: int, ids: Ids, weights: Weights) -> npt.NDArray[np.intp]:
        """Indices, ascending, of a superset of the tokens that can win the race against the heaviest one.

        A winner has w/E ≥ s, the heaviest token's score, and E = -log U ≥ 1 - U; so it has w ≥ s·ε or U ≥ 1 - ε. The
        second needs no logarithm, and no more of the hash than its upper bits, which the last step of the finaliser
        leaves alone.
        """
        heaviest = int(np.argmax(weights))
        score = weights[heaviest] / self.exponential(purpose, position, ids[heaviest : heaviest + 1])[0]
        heavy = weights >= score * _LIGHT
        key = np.uint64(self._key(purpose, position))
        size = min(_CHUNK, len(ids))
        room = np.empty((2, size), np.uint64)
        lucky = np.empty(len(ids), np.bool_)
        for low in range(0, len(ids), size):
            high = min(low + size, len(ids))
            state, spare = room[0, : high - low], room[1, : high - low]
            np.copyto(state, ids[low:high], casting="unsafe")
            np.multiply(state, _GOLDEN_U, out=state)
            np.add(state, key, out=state)
            _mix_array(state, spare, last=False)
            np.greater_equal(state, _LUCKY, out=lucky[low:high])
        return np.flatnonzero(np.logical_or(heavy, lucky, out=lucky))

    def _key(self, purpose: Purpose, position: int) -> int:
        return _mix(self._keys[purpose] + (position + 1) * _GOLDEN)

    def _log_uniform(self, purpose: Purpose, position: int, ids: npt.NDArray[Any]) -> Weights:
        """Log U, float64 [k], of the given tokens; U = (n + ½)·2⁻⁵² with the upper 52 bits n of the hash."""
        bits = ids.astype(np.uint64)  # [k]; becomes the result in place
        np.multiply(bits, _GOLDEN_U, bits)
        np.add(bits, np.uint64(self._key(purpose, position)), bits)
        _mix_array(bits, np.empty_like(bits))
        np.right_shift(bits, _12, bits)
        np.bitwise_or(bits, _ONE_BITS, bits)
        uniform: Weights = bits.view(np.float64)  # 1 + n·2⁻⁵²
        np.subtract(uniform, 1.0 - 2.0**-53, uniform)  # exact
        np.log(uniform, uniform)
        return uniform
