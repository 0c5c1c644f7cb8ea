"""Which tokens two vocabularies share: those that stand for the same bytes, and control tokens of the same name.

A draft of another vocabulary can propose what it shares with the target, and only that. Partners are found by bytes, so
` the` of byte-level BPE and `▁the` of SentencePiece are one token. They are one to one: where several entries of a
vocabulary stand for the same bytes, the first of them has the partner.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from spec_local.models_manifest.tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    WORD_MARKED,
    Tokenizer,
    is_unused,
)

USEFUL = 0.05
"""Least share of either vocabulary that a pair must have in common.

At 5 % of their tokens in common, 65 to 80 of 100 tokens of English prose and Python code still have a partner (the
vocabularies of Qwen2.5, SmolLM2 and Gemma 3, the draft's cut to its first merges), so that a draft which is right
wherever it can be breaks off after two or three tokens. With less it cannot pay: at 1 % it is every second token, at
0.2 %, the bytes alone, one in five. Real pairs lie far above it: SmolLM2 and Gemma share 18 % of Gemma's vocabulary.
"""


@dataclass(frozen=True, slots=True)
class _Entries:
    """The tokens of a vocabulary that are in use, by what they stand for."""

    text: dict[bytes, int]
    byte: dict[bytes, int]
    control: dict[bytes, int]
    count: int
    """How many, those included that stand for the same as an earlier one."""


@dataclass(slots=True, eq=False)
class SharedVocabulary:
    """What two vocabularies have in common."""

    shared: int
    """Tokens that both have."""
    target_tokens: int
    """Tokens of the target's vocabulary that are in use: padding does not count."""
    draft_tokens: int
    same_ids: bool
    """Whether what both have, has the same id in both, so that ids need no translation."""
    partners: array[int]
    """By draft id, the target's id of the same token, -1 where it has none; empty where `same_ids`."""
    draft: Tokenizer = field(repr=False)
    _entries: _Entries | None = field(default=None, repr=False)

    @property
    def of_target(self) -> float:
        """The share of the target's tokens that the draft has too."""
        return self.shared / self.target_tokens if self.target_tokens else 0.0

    @property
    def of_draft(self) -> float:
        """The share of the draft's tokens that the target has too."""
        return self.shared / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def useful(self) -> bool:
        """Whether enough is shared for drafts to pay."""
        return min(self.of_target, self.of_draft) >= USEFUL

    @property
    def figures(self) -> str:
        """How much is shared, in words."""
        return (
            f"{self.shared} tokens, {_percent(self.of_target)} of the target's {self.target_tokens} and "
            f"{_percent(self.of_draft)} of the draft's {self.draft_tokens}"
        )

    def as_dict(self) -> dict[str, int | float | bool]:
        """Plain JSON types."""
        return {
            "tokens": self.shared,
            "target_tokens": self.target_tokens,
            "draft_tokens": self.draft_tokens,
            "of_target": self.of_target,
            "of_draft": self.of_draft,
            "same_ids": self.same_ids,
        }

    def pieces(self) -> dict[bytes, int]:
        """The draft's tokens of text by their bytes: what any text can be spelt with."""
        if self._entries is None:
            self._entries = _entries(self.draft)
        return {**self._entries.byte, **self._entries.text}


def comparable(tokenizer: Tokenizer) -> bool:
    """Whether it is known how this tokenizer writes bytes."""
    return tokenizer.model == "gpt2" or tokenizer.model in WORD_MARKED


def share_ids(target: Tokenizer, draft: Tokenizer) -> SharedVocabulary:
    """What two vocabularies have in common, in which every id that both use means the same."""
    common = min(target.n_vocab, draft.n_vocab)
    used = [_in_use(tokenizer) for tokenizer in (target, draft)]
    shared = sum(a and b for a, b in zip(used[0][:common], used[1][:common], strict=True))
    return SharedVocabulary(shared, sum(used[0]), sum(used[1]), True, array("i"), draft)


def share_text(target: Tokenizer, draft: Tokenizer) -> SharedVocabulary:
    """What two vocabularies have in common, whatever their ids are. Both must be `comparable`."""
    ours, theirs = _entries(target), _entries(draft)
    pairs: list[tuple[int, int]] = []
    for a, b, keys in (
        (ours.text, theirs.text, ours.text.keys() & theirs.text.keys()),
        (ours.control, theirs.control, ours.control.keys() & theirs.control.keys()),
        (ours.byte, theirs.byte, ours.byte.keys() & theirs.byte.keys()),
        # One that has a byte token for what is an ordinary token of the other.
        (ours.text, theirs.byte, (ours.text.keys() - theirs.text.keys()) & (theirs.byte.keys() - ours.byte.keys())),
        (ours.byte, theirs.text, (theirs.text.keys() - ours.text.keys()) & (ours.byte.keys() - theirs.byte.keys())),
    ):
        pairs += [(a[key], b[key]) for key in keys]
    partners = array("i", [-1]) * draft.n_vocab
    for target_id, draft_id in pairs:
        partners[draft_id] = target_id
    ends = _turn_end(target), _turn_end(draft)
    if ends[0] is not None and ends[1] is not None and ends[0] not in partners and partners[ends[1]] < 0:
        partners[ends[1]] = ends[0]  # they end a turn under different names; no part of what is shared
    return SharedVocabulary(len(pairs), ours.count, theirs.count, False, partners, draft, theirs)


def _entries(tokenizer: Tokenizer) -> _Entries:
    found = _Entries({}, {}, {}, sum(used := _in_use(tokenizer)))
    by_kind = {
        NORMAL: found.text,
        USER_DEFINED: found.text,
        BYTE: found.byte,
        CONTROL: found.control,
        UNKNOWN: found.control,
    }
    for id, (text, kind) in enumerate(zip(tokenizer.spelled(), tokenizer.kinds(), strict=True)):
        if used[id] and text:
            by_kind.get(kind, found.text).setdefault(text, id)
    return found


def _in_use(tokenizer: Tokenizer) -> list[bool]:
    return [not is_unused(text, kind) for text, kind in zip(tokenizer.tokens(), tokenizer.kinds(), strict=True)]


def _turn_end(tokenizer: Tokenizer) -> int | None:
    """The token that ends a turn; of a file that names none, the one that ends a text."""
    return tokenizer.eos if tokenizer.eot is None else tokenizer.eot


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"
