"""`Transform`: a row of logits to the sparse `Row` that every draw and every acceptance test uses.

The row is a pure function of (logits, history, position, allowed tokens, parameters), so the target's row for a drafted
prefix is the very row that plain decoding would have used there. The order is frozen and is llama.cpp's: bias and
penalties, top-k, typical, top-p, min-p, temperature. Truncation looks at the softmax at temperature 1 of what the
steps before it kept; the temperature shapes what is left.

Ties: of equal logits the smallest ids are kept first, everywhere.

Speed: a vocabulary has 10⁵ tokens, of which a few dozen survive. Each step first finds a threshold that no survivor can
be below, by one or two vectorised passes over the float32 logits in place, and then works in float64 on the few tokens
above it. Which threshold was used never shows in the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spec_local.errors import BackendError, NoTokenError, UsageError
from spec_local.sampling.params import BAN, Sampling
from spec_local.sampling.row import Row

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.signedinteger]

_COLUMNS = 2048
"""Least number of interleaved columns whose maxima bound the k-th largest logit from below."""
_MANY = 4096
"""Above this many survivors the final softmax takes float32 exponentials (relative error below 1e-5)."""
_CHUNK = 32768
"""Logits exponentiated at a time where the whole vocabulary's mass is needed: 128 KiB stay in the inner caches."""
_HEAD = 512
"""Most nuclei lie within the tokens more than (1 - top_p)/512 times as likely as the likeliest."""
_BITS_PER_NAT = 2**23 / math.log(2.0)
"""By how much the bits of a float32, read as an integer, grow when its logarithm grows by one."""
_SLACK = 1e-5
"""Bound of the relative error of a sum of float32 exponentials."""
_FLOOR = -64.0
"""Tokens e⁶⁴ times less likely than the likeliest are dropped. The noise has a resolution of 2⁻⁵², so they could not
be drawn anyway; dropping them keeps every probability far from underflow."""
_FAULTY = "The file or the backend is faulty: try another quantisation, or the CPU with --gpu-layers 0."
_NONE = np.empty(0, np.intp)
_NEGATIVE_INFINITY = np.float32(-np.inf)
_LOWEST = np.finfo(np.float32).min


class Transform:
    """The sampling transform of one sequence. Holds scratch memory: use it from one thread.

    Args:
        sampling: The parameters.
        n_vocab: Entries of a row of logits, V.
        end_ids: Tokens that end the text; banned while the answer has fewer than `min_tokens` tokens, unless a grammar
            admits nothing else any more.
        prompt_length: Tokens before the answer.

    Raises:
        UsageError: A bias names a token that the vocabulary does not have.
    """

    def __init__(self, sampling: Sampling, n_vocab: int, end_ids: frozenset[int], prompt_length: int) -> None:
        assert n_vocab > 0
        assert all(0 <= token < n_vocab for token in end_ids)
        self.sampling = sampling
        self.n_vocab = n_vocab
        self.end_ids = end_ids
        beyond = [token for token in sampling.logit_bias if token >= n_vocab]
        if beyond:
            raise UsageError(
                f"The logit bias names token {beyond[0]}, but this vocabulary ends at {n_vocab - 1}.",
                "Take token ids of the target model.",
            )
        biased = {token: bias for token, bias in sampling.logit_bias.items() if bias > BAN}
        banned = sampling.logit_bias.keys() - biased.keys()
        self._bias_ids = np.array(list(biased), np.intp)
        self._bias = np.array(list(biased.values()), np.float32)
        self._banned = np.array(sorted(banned), np.intp)
        self._ends = np.array(sorted(end_ids), np.intp)
        self._ends_banned = not end_ids.isdisjoint(banned)
        self._first_end = prompt_length + sampling.min_tokens
        neutral = sampling.repeat_penalty == 1.0 and sampling.presence_penalty == sampling.frequency_penalty == 0.0
        self.history_length = 0 if neutral else sampling.penalty_last_n
        """How many last tokens of the history matter: 0 none, n the last n, -1 all."""
        self._k = sampling.top_k if sampling.top_k < n_vocab else 0
        self._least_depth = math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
        self._all_ids = np.arange(n_vocab, dtype=np.int32)
        self._all_ids.flags.writeable = False  # shared by every row that keeps the whole vocabulary
        self._scratch: Logits = np.empty(n_vocab, np.float32)
        self._flags = np.empty(n_vocab, np.bool_)
        self._bits = np.empty(n_vocab if sampling.top_p < 1.0 and not self._k else 0, np.int32)
        self._chunk: Logits = np.empty(min(_CHUNK, n_vocab), np.float32)

    def history(self, tokens: Sequence[int], drafted: Sequence[int] = ()) -> list[int]:
        """The last `history_length` of `tokens` followed by `drafted`: all that `row` needs of them."""
        window = self.history_length
        if window < 0:
            return [*tokens, *drafted]
        kept = max(0, window - len(drafted))
        return [*(tokens[-kept:] if kept else ()), *(drafted[-window:] if window else ())]

    def row(
        self,
        logits: Logits,
        history: Sequence[int],
        position: int,
        allowed: npt.NDArray[np.bool_] | None = None,
    ) -> Row:
        """The distribution of the token at `position`.

        Args:
            logits: float32 [V], read in place and never written.
            history: All tokens before `position`, prompt included, or at least the last `history_length` of them.
            position: Absolute 0-based index of the token to be drawn.
            allowed: bool [V], tokens that a grammar admits here; None admits all.

        Returns:
            The row; at temperature 0 one-hot at the largest logit, truncation playing no part.

        Raises:
            BackendError: The logits hold NaN or +inf, or are all -inf.
            NoTokenError: Grammar, bans and biases leave no token.
        """
        assert logits.shape == (self.n_vocab,)
        assert logits.dtype == np.float32
        try:
            return self._row(self._adjusted(logits, history, position, allowed), position)
        except NoTokenError as error:
            if logits.max() == -math.inf:  # not what was asked for: there was nothing to choose from
                raise BackendError(f"The model's output for token {position} has no token.", _FAULTY) from error
            raise

    def _row(self, values: Logits, position: int) -> Row:
        """The distribution over adjusted logits `values` [V]."""
        if self.sampling.temperature == 0.0:
            best = int(np.argmax(values))  # the first NaN, if there is one
            self._refuse_unusable(float(values[best]), position)
            return Row(np.array([best], np.int32), np.ones(1))
        ids, kept = self._candidates(values, position)
        return self._softmax_of_many(ids, kept) if len(ids) > _MANY else self._softmax(ids, kept)

    # --- 1. bias, penalties, bans -------------------------------------------------------------------------------

    def _adjusted(
        self, logits: Logits, history: Sequence[int], position: int, allowed: npt.NDArray[np.bool_] | None
    ) -> Logits:
        """The logits [V] after bias, penalties and bans: the array itself where nothing applies, else the scratch."""
        recent = history[-self.history_length :] if self.history_length > 0 else history
        penalties = self.history_length != 0 and len(recent) > 0
        early = position < self._first_end and len(self._ends) > 0
        banned = self._banned
        if allowed is not None and (early or self._ends_banned) and self._over(allowed):
            early, banned = False, np.setdiff1d(banned, self._ends)
        if not (penalties or early or len(self._bias_ids) or len(banned) or allowed is not None):
            return logits

        values = self._scratch
        if allowed is None:
            np.copyto(values, logits)
        else:
            self._refuse_damaged(float(logits.max()), position)  # a ban must not hide what is damaged
            self._mask(logits, allowed)
        if len(self._bias_ids):
            values[self._bias_ids] += self._bias
        if penalties:
            self._penalise(values, recent)
        for out in (banned, self._ends if early else _NONE):
            if len(out):
                self._refuse_damaged(float(logits[out].max()), position)
                values[out] = _NEGATIVE_INFINITY
        return values

    def _over(self, allowed: npt.NDArray[np.bool_]) -> bool:
        """Whether a grammar has come to its end. Then the answer ends: `min_tokens` and bans of end tokens give way."""
        return bool(np.count_nonzero(allowed) == np.count_nonzero(allowed[self._ends]))

    def _mask(self, logits: Logits, allowed: npt.NDArray[np.bool_]) -> None:
        """Scratch = logits where allowed, else -inf; by bits, as a branch on every token would cost five times that."""
        assert allowed.shape == (self.n_vocab,)
        assert allowed.dtype == np.bool_
        bits = self._scratch.view(np.int32)
        np.copyto(bits, allowed.view(np.int8))
        np.subtract(bits, 1, out=bits)  # 0 allowed, -1 not
        np.bitwise_or(bits, logits.view(np.int32), out=bits)  # banned: all bits set, a NaN
        np.fmax(self._scratch, _NEGATIVE_INFINITY, out=self._scratch)  # NaN to -inf

    def _penalise(self, values: Logits, recent: Sequence[int]) -> None:
        """llama.cpp's penalties: logits > 0 are divided, others multiplied, by the repeat penalty; then subtract."""
        s = self.sampling
        counts = Counter(recent) if s.frequency_penalty != 0.0 else dict.fromkeys(recent, 0)
        ids = np.fromiter(counts, np.intp, len(counts))
        seen = values[ids].astype(np.float64)  # [distinct recent tokens]
        seen *= np.where(seen > 0.0, 1.0 / s.repeat_penalty, s.repeat_penalty)
        seen -= s.presence_penalty
        if s.frequency_penalty != 0.0:
            seen -= np.fromiter(counts.values(), np.float64, len(counts)) * s.frequency_penalty
        values[ids] = seen

    def _refuse_damaged(self, highest: float, position: int) -> None:
        """Refuse logits whose largest is NaN or +inf."""
        if not highest < math.inf:
            raise BackendError(
                f"The model's output for token {position} is {'NaN' if math.isnan(highest) else 'infinite'}.",
                _FAULTY,
            )

    def _refuse_unusable(self, highest: float, position: int) -> None:
        """Refuse logits that no distribution can be made of, going by the largest."""
        self._refuse_damaged(highest, position)
        if highest == -math.inf:
            raise NoTokenError(
                f"No token can follow at position {position}: grammar, bans and biases leave none.",
                "Loosen the grammar, the bans or min_tokens.",
            )

    # --- 2. truncation ------------------------------------------------------------------------------------------

    def _candidates(self, values: Logits, position: int) -> tuple[Ids, Logits]:
        """Ids, ascending, and adjusted logits, both [k], of the tokens that every truncation step keeps."""
        s = self.sampling
        bounds: tuple[float, float] | None = None
        if self._k:
            ids, kept = self._about_top_k(values, position)
            if s.typical_p < 1.0:
                ids, kept = _largest(ids, kept, np.sort(kept)[::-1], self._k)
        else:
            highest = float(values.max())
            self._refuse_unusable(highest, position)
            if s.typical_p < 1.0:  # may remove the likeliest token: nothing is known yet of what comes after it
                ids, kept = self._at_least(values, highest + _FLOOR * max(s.temperature, 1.0))
            elif s.top_p < 1.0:
                ids, kept, bounds = self._about_nucleus(values, highest)
            elif s.min_p > 0.0 or float(values.min()) < highest + _FLOOR * s.temperature:
                ids, kept = self._at_least(values, highest + max(self._least_depth, _FLOOR * s.temperature))
            else:
                ids, kept = self._all_ids, values
        if s.typical_p < 1.0:
            keep = _typical(kept, s.typical_p)
            ids, kept = ids[keep], kept[keep]
        if len(ids) > _MANY and s.top_p >= 1.0 and s.min_p == 0.0 and self._k == 0:
            return ids, kept
        return self._first(ids, kept, values, bounds)

    def _first(self, ids: Ids, kept: Logits, values: Logits, bounds: tuple[float, float] | None) -> tuple[Ids, Logits]:
        """Top-k, top-p, min-p: each keeps the first so many tokens in falling order, so count first, pick once.

        Args:
            ids: Token ids [k], ascending.
            kept: Their logits, float32 [k].
            values: All logits [V].
            bounds: What the mass that top-p starts from lies between, where that is the mass of `values`; None: it is
                that of `kept`, cut to top-k.
        """
        s = self.sampling
        falling = np.sort(kept)[::-1]
        count = min(self._k or len(kept), len(kept))
        depths = falling[:count].astype(np.float64)
        depths -= depths[0]
        least_depth = max(self._least_depth, _FLOOR * s.temperature)
        if depths[-1] < least_depth:
            count = int(np.count_nonzero(depths >= least_depth))
        if s.top_p < 1.0:
            sums = np.exp(depths).cumsum()
            if bounds is None:
                reached = sums.searchsorted(s.top_p * sums[-1])
            else:
                reached = sums.searchsorted(s.top_p * bounds[0])
                if reached != sums.searchsorted(s.top_p * bounds[1]):
                    reached = sums.searchsorted(s.top_p * self._mass(values, float(falling[0])))
            count = min(count, 1 + int(reached))
        return _largest(ids, kept, falling, count)

    def _about_top_k(self, values: Logits, position: int) -> tuple[Ids, Logits]:
        """Ids and logits, both [k], of the k largest logits and a few more.

        The logits are read as a table of interleaved columns. The k-th largest of the columns' maxima is a lower bound
        of the k-th largest logit, so only columns whose maximum reaches it are searched.
        """
        size, k = self.n_vocab, self._k
        columns = max(_COLUMNS, 8 * k)
        if size < 4 * columns:
            highest = values.max()
            self._refuse_unusable(float(highest), position)
            bound = max(np.partition(values, size - k)[size - k], _LOWEST)
            ids = np.greater_equal(values, bound, out=self._flags).nonzero()[0]
            return ids, values[ids]
        whole = size - size % columns
        table = values[:whole].reshape(-1, columns)
        rest = values[whole:]
        tops = np.maximum.reduce(table, axis=0)  # [columns]
        largest = np.partition(tops, columns - k)[columns - k :]  # NaN last
        bound = max(largest[0], _LOWEST)
        self._refuse_unusable(float(np.maximum(largest.max(), rest.max(initial=_NEGATIVE_INFINITY))), position)
        promising = (tops >= bound).nonzero()[0]
        found = table.take(promising, axis=1)  # [rows, promising columns]: in order of ids
        row, column = np.divmod((found >= bound).ravel().nonzero()[0], max(len(promising), 1))
        ids = np.concatenate([row * columns + promising[column], whole + (rest >= bound).nonzero()[0]])
        return ids, values[ids]

    def _at_least(self, values: Logits, cut: float) -> tuple[Ids, Logits]:
        """Ids and logits, both [k], of all tokens ≥ `cut`, and of those that rounding to float32 puts there."""
        bound = np.nextafter(np.float32(cut), _NEGATIVE_INFINITY)
        ids = np.greater_equal(values, bound, out=self._flags).nonzero()[0]
        return ids, values[ids]

    def _about_nucleus(self, values: Logits, highest: float) -> tuple[Ids, Logits, tuple[float, float]]:
        """Ids and logits, both [k], of the nucleus and some more, and bounds of the mass M of all tokens.

        M is Σ exp(logit - highest). Where the nucleus ends hangs on M, but mostly not on its last digits: the head of
        the distribution is weighed exactly, all other tokens only between bounds.
        """
        top_p = self.sampling.top_p
        ids, kept = self._at_least(values, highest + math.log((1.0 - top_p) / _HEAD))
        head = float(np.exp(kept.astype(np.float64) - highest).sum())
        bounds = self._bounds_without(values, highest, ids)
        if bounds and head * (1.0 - _SLACK) > top_p * (head + bounds[1]):
            return ids, kept, (head + bounds[0], head + bounds[1])
        # A long nucleus. Tokens below (1 - top_p)/2V of M weigh less than (1 - top_p)/2: it has none of them.
        mass = self._mass(values, highest)
        ids, kept = self._at_least(values, highest + math.log(mass * (1.0 - top_p) / (2 * self.n_vocab)))
        return ids, kept, (mass, mass)

    def _bounds_without(self, values: Logits, highest: float, ids: Ids) -> tuple[float, float] | None:
        """Bounds of Σ exp(logit - highest) over all tokens but `ids`; None where this is not the way to get them.

        Schraudolph 1999: the bits of a float32, read as an integer, are nearly linear in its logarithm, so a straight
        line through them is exp within a factor between 1 and 1.0615, in a third of the time.
        """
        if self.n_vocab < 4 * _COLUMNS or abs(highest) > 80.0 or float(values.min()) < highest - 80.0:
            return None  # too small to matter; or beyond the exponents of a float32
        bits = self._bits
        np.multiply(values, np.float32(_BITS_PER_NAT), out=bits, casting="unsafe")
        np.add(bits, (127 << 23) - round(highest * _BITS_PER_NAT), out=bits)
        bits[ids] = 0
        terms = bits.view(np.float32)
        whole = self.n_vocab - self.n_vocab % _COLUMNS
        most = float(np.add.reduce(terms[:whole].reshape(-1, _COLUMNS), axis=0).sum()) + float(terms[whole:].sum())
        return most * (1.0 - 5 * _SLACK) / 1.0615, most * (1.0 + 5 * _SLACK)

    def _mass(self, values: Logits, highest: float) -> float:
        """M, the sum of exp(logit - highest) [V]; float32 terms, relative error below `_SLACK`."""
        shift = highest if abs(highest) > 60.0 else 0.0  # the logits of most models are in the range of exp as they are
        total = 0.0
        for low in range(0, self.n_vocab, _CHUNK):
            part = values[low : low + _CHUNK]
            terms = self._chunk[: len(part)]
            if shift:
                part = np.subtract(part, np.float32(shift), out=terms)
            total += float(np.exp(part, out=terms).sum())
        return total * math.exp(shift - highest)

    # --- 3. temperature -----------------------------------------------------------------------------------------

    def _softmax(self, ids: Ids, kept: Logits) -> Row:
        """softmax(kept / temperature) [k]; no token is below the floor."""
        if len(ids) == 1:
            return Row(ids.astype(np.int32), np.ones(1))
        probs = kept.astype(np.float64)
        probs -= probs.max()
        if self.sampling.temperature != 1.0:
            probs /= self.sampling.temperature
        np.exp(probs, probs)
        probs /= probs.sum()
        return Row(ids.astype(np.int32), probs)

    def _softmax_of_many(self, ids: Ids, kept: Logits) -> Row:
        """`_softmax` for rows so long that float64 exponentials would take a millisecond."""
        depths = np.subtract(kept, kept.max(), out=self._scratch[: len(kept)])
        if self.sampling.temperature != 1.0:
            depths /= np.float32(self.sampling.temperature)
        if depths.min() < _FLOOR:
            keep = depths >= _FLOOR
            ids, depths = ids[keep], depths[keep]
        probs = np.exp(depths, out=depths).astype(np.float64)
        probs *= 1.0 / float(probs.sum())
        return Row(ids.astype(np.int32, copy=False), probs)


def _largest(ids: Ids, values: Logits, falling: Logits, count: int) -> tuple[Ids, Logits]:
    """The `count` largest of `values` and their ids, in the given order; of equal ones the first.

    Args:
        ids: [k].
        values: [k].
        falling: The values [k] sorted from the largest on.
        count: At least 1.
    """
    if count >= len(values):
        return ids, values
    border = falling[count - 1]
    if falling[count] < border:
        keep = values >= border
    else:  # a tie runs across the border
        keep = values > border
        keep[(values == border).nonzero()[0][: count - np.count_nonzero(keep)]] = True
    return ids[keep], values[keep]


def _typical(values: Logits, typical_p: float) -> npt.NDArray[np.bool_]:
    """Flags [k] of the tokens of locally typical sampling (Meister et al. 2023).

    Tokens are taken in the order of |surprise - entropy|, ties to the first ones, until their probability reaches
    `typical_p`.
    """
    log_probs = values.astype(np.float64)
    log_probs -= log_probs.max()
    probs = np.exp(log_probs)
    total = float(probs.sum())
    probs /= total
    log_probs -= math.log(total)
    distance = np.abs(log_probs - float((probs * log_probs).sum()))  # |log p - Σ p log p|
    near = np.arange(len(values))
    if len(near) > _MANY:  # do not sort a vocabulary: find the few steps of distance that surely hold the set
        step = np.minimum(distance * 16.0, 4096.0).astype(np.intp)
        reached = np.cumsum(np.bincount(step, weights=probs))
        near = np.flatnonzero(step <= np.searchsorted(reached, typical_p + 1e-9))
    order = near[np.argsort(distance[near], kind="stable")]
    count = int(np.searchsorted(np.cumsum(probs[order]), typical_p)) + 1
    keep = np.zeros(len(values), np.bool_)
    keep[order[:count]] = True
    return keep
