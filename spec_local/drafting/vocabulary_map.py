"""`VocabularyMap`: from the target's token ids to the draft model's and back.

Outside a drafter all ids are the target's. A draft model of the same vocabulary takes them as they are. One of another
vocabulary reads the target's tokens spelt in its own, and its rows of logits are put in the target's order: a token
that it lacks has no chance there. So everything that is keyed by token id (noise, bias, penalties, grammar, acceptance)
sees the target's ids only, and no rule knows that there are two vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from spec_local.drafting.token_cache import common_prefix
from spec_local.language_model import Logits

NO_PARTNER = -1


def _silent(_token: int) -> bytes:
    return b""


class VocabularyMap:
    """How a draft model reads and writes the target's tokens. Holds scratch memory: use it from one thread.

    Args:
        n_target: Entries of a row of the target's logits.
        n_draft: Entries of a row of the draft's.
        partners: int [n_draft], the target's id of each draft token, `NO_PARTNER` where it has none; one to one. None:
            ids are the same in both, as far as both go.
        text: The bytes that a token of the target stands for; empty where it stands for none.
        pieces: The draft's tokens by the bytes they stand for; asked for when a token without a partner first comes.
        begin: Draft ids in front of every text, such as a begin-of-text token.
        silent: Tokens of the target that the draft neither reads nor proposes, such as the target's own begin-of-text
            token.
    """

    def __init__(
        self,
        n_target: int,
        n_draft: int,
        partners: Sequence[int] | None = None,
        *,
        text: Callable[[int], bytes] = _silent,
        pieces: Callable[[], Mapping[bytes, int]] = dict,
        begin: Sequence[int] = (),
        silent: Sequence[int] = (),
    ) -> None:
        self.begin = tuple(begin)
        self._text = text
        self._pieces = pieces
        self._by_bytes: Mapping[bytes, int] = {}
        self._longest = 0
        self._silent = frozenset(silent)
        self._spelled: dict[int, tuple[int, ...]] = {}
        self._n_target, self._common = n_target, min(n_target, n_draft)
        self._buffer: Logits | None = np.full(n_target, -np.inf, np.float32)
        """By target id; None where a draft's row begins with the target's ids, in their order."""
        self.same_ids = partners is None and n_target <= n_draft and not self.begin and not self._silent
        """Whether every token of the target has its own id in the draft, so that nothing need be translated."""
        self._partner_of: npt.NDArray[np.intp] | None = None
        if partners is None:
            if n_target <= n_draft:
                self._buffer = None
        else:
            found = np.array(partners, np.intp)
            assert found.shape == (n_draft,)
            found[np.isin(found, list(self._silent))] = NO_PARTNER
            self._draft_ids: npt.NDArray[np.intp] = np.flatnonzero(found >= 0)
            self._target_ids: npt.NDArray[np.intp] = found[self._draft_ids]
            self._partner_of = np.full(n_target, NO_PARTNER, np.intp)
            self._partner_of[self._target_ids] = self._draft_ids
            assert np.count_nonzero(self._partner_of >= 0) == len(self._draft_ids), "two tokens have one partner"

    def row(self, logits: Logits) -> Logits:
        """The draft's logits, float32 [n_draft], by target id: float32 [n_target], -inf for what the draft lacks.

        Read in place where ids are the same; else valid until the next call.
        """
        if self._buffer is None:
            return logits[: self._n_target]
        if self._partner_of is None:
            self._buffer[: self._common] = logits
        else:
            self._buffer[self._target_ids] = logits[self._draft_ids]
        return self._buffer

    def spell(self, tokens: Sequence[int]) -> list[int]:
        """A text of the target's tokens in draft ids, from its beginning."""
        return [*self.begin, *(id for token in tokens for id in self.token(token))]

    def token(self, token: int) -> tuple[int, ...]:
        """One token of the target in draft ids: its partner; without one, its bytes in the draft's tokens.

        None at all for what stands for no text.
        """
        spelled = self._spelled.get(token)
        if spelled is None:
            spelled = self._spelled[token] = self._spell(token)
        return spelled

    def _spell(self, token: int) -> tuple[int, ...]:
        if token in self._silent:
            return ()
        if self._partner_of is None:
            if token < self._common:
                return (token,)
        elif (partner := int(self._partner_of[token])) != NO_PARTNER:
            return (partner,)
        return self._longest_pieces(self._text(token))

    def _longest_pieces(self, data: bytes) -> tuple[int, ...]:
        """`data` in the draft's tokens, the longest that fits first; bytes that it has no token for are left out.

        A draft's own tokeniser would split one in fifteen of such tokens otherwise, but it takes whole characters only
        (a token may be part of one), and some put a space in front.
        """
        if not self._longest:
            self._by_bytes = self._pieces()
            self._longest = max(map(len, self._by_bytes), default=1)
        found, at = [], 0
        while at < len(data):
            for end in range(min(at + self._longest, len(data)), at, -1):
                id = self._by_bytes.get(data[at:end])
                if id is not None:
                    found.append(id)
                    at = end
                    break
            else:
                at += 1
        return tuple(found)


class Spelling:
    """The histories of a model's slots in draft ids, each kept as it grows.

    The ids of a beginning of a history are a beginning of its ids, so what is cut off the one is cut off the other.

    Args:
        vocabulary: How tokens are spelt.
    """

    def __init__(self, vocabulary: VocabularyMap) -> None:
        self._vocabulary = vocabulary
        self._slots: dict[int, _Spelled] = {}

    def ids(self, slot: int, tokens: Sequence[int]) -> Sequence[int]:
        """The history `tokens` of `slot` in draft ids, to be read only."""
        if self._vocabulary.same_ids:
            return tokens
        return self._slots.setdefault(slot, _Spelled(self._vocabulary)).follow(tokens)

    def length(self, slot: int, tokens: int) -> int:
        """Draft ids of the first `tokens` tokens of the history of `slot`, as far as it was seen; 0 for none."""
        if self._vocabulary.same_ids:
            return tokens
        spelled = self._slots.get(slot)
        return 0 if spelled is None else spelled.length(tokens)


class _Spelled:
    """One history in both vocabularies."""

    def __init__(self, vocabulary: VocabularyMap) -> None:
        self._vocabulary = vocabulary
        self._tokens: list[int] = []
        self._ids: list[int] = list(vocabulary.begin)
        self._ends: list[int] = []
        """How many ids there are after each token."""

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """The ids of `tokens`; what it begins with like the last ones is not spelt again."""
        same = common_prefix(self._tokens, tokens)
        if same < len(self._tokens):
            del self._ids[self._ends[same - 1] if same else len(self._vocabulary.begin) :]
            del self._tokens[same:], self._ends[same:]
        for token in tokens[same:]:
            self._ids += self._vocabulary.token(token)
            self._tokens.append(token)
            self._ends.append(len(self._ids))
        return self._ids

    def length(self, tokens: int) -> int:
        known = min(tokens, len(self._tokens))
        return self._ends[known - 1] if known else 0
