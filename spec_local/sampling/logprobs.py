"""Log-probabilities of emitted tokens, under the model itself.

They are taken from the softmax of the raw logits, not from the `Row` a token was drawn from. The row answers another
question, what this request's temperature, truncation, penalties and bans leave: at temperature 0 it says 1 for every
token, under top-k it says 0 for whatever was cut. The raw softmax depends on model and text alone, so figures compare
between requests, add up to a perplexity, and say how sure the model was of a token that a bias forced upon it.

Under speculation the row behind an accepted token is the target's own, in the pass that verified it: exactly the row
plain decoding would have had, up to the width of the pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

MOST_LOGPROBS = 20
"""Most alternatives that can be asked for."""
_COLUMNS = 1024
"""Interleaved columns whose maxima bound the n-th largest logit from below."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One emitted token and what the model thought of it."""

    token: int
    logprob: float
    """Natural logarithm of the token's probability."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens with their log-probabilities, the likeliest first, ties by id."""


def token_logprob(logits: Logits, token: int, top: int) -> TokenLogprob:
    """Log-probability of `token` and of the `top` likeliest tokens under softmax(logits).

    Args:
        logits: float32 [n_vocab], only read.
        token: The emitted token.
        top: Alternatives wanted, 0 to `MOST_LOGPROBS`.
    """
    highest = logits.max()
    total = float(np.exp(logits - highest).sum(dtype=np.float64))
    normaliser = float(highest) + float(np.log(total))
    likeliest = [(int(i), float(logits[i]) - normaliser) for i in _largest(logits, top)]
    return TokenLogprob(token, float(logits[token]) - normaliser, tuple(likeliest))


def _largest(logits: Logits, count: int) -> npt.NDArray[np.intp]:
    """Ids of the `count` largest logits, falling; of equal ones the smallest ids."""
    if count == 0:
        return np.empty(0, np.intp)
    size = len(logits)
    if size >= 4 * _COLUMNS:
        maxima = np.maximum.reduce(logits[: size - size % _COLUMNS].reshape(-1, _COLUMNS), axis=0)  # [columns]
        ids = np.flatnonzero(logits >= np.partition(maxima, _COLUMNS - count)[_COLUMNS - count])
    else:
        ids = np.arange(size)
    order = np.argsort(-logits[ids], kind="stable")[:count]
    chosen: npt.NDArray[np.intp] = ids[order]
    return chosen
