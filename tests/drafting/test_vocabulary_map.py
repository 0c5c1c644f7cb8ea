"""The map between two vocabularies: rows, spelling, and histories that grow and are cut back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spec_local.drafting.vocabulary_map import NO_PARTNER, Spelling, VocabularyMap

TARGET = [b"a", b"b", b"ab", b"abc", b" the", b"\xc3\xa9", b"\xc3", b"<begin>", b"", b"z"]
DRAFT = [b"<draft begin>", b" th", b"e", b"b", b"a", b"ab", b"c", b"\xc3", b"\xa9", b"unknown to the target"]
PARTNERS = [TARGET.index(text) if text in TARGET else NO_PARTNER for text in DRAFT]


def other(**options: object) -> VocabularyMap:
    pieces = {text: id for id, text in enumerate(DRAFT) if id}
    return VocabularyMap(
        len(TARGET),
        len(DRAFT),
        PARTNERS,
        text=TARGET.__getitem__,
        pieces=lambda: pieces,
        **options,  # type: ignore[arg-type]
    )


def spelt(ids: list[int]) -> bytes:
    return b"".join(DRAFT[id] for id in ids)


def test_a_row_is_put_in_the_targets_order_and_what_the_draft_lacks_has_no_chance() -> None:
    logits = np.arange(len(DRAFT), dtype=np.float32)
    vocabulary = other()
    for shift in (0.0, 5.0):  # the buffer is used again
        row = vocabulary.row(logits + np.float32(shift))
        assert row.dtype == np.float32
        assert row.shape == (len(TARGET),)
        for token, text in enumerate(TARGET):
            assert row[token] == (DRAFT.index(text) + shift if text in DRAFT else -np.inf)


@pytest.mark.parametrize("draft", [8, 12])
def test_of_the_same_ids_a_row_is_a_slice(draft: int) -> None:
    vocabulary = VocabularyMap(8, draft)
    logits = np.arange(draft, dtype=np.float32)
    assert vocabulary.row(logits).tolist() == logits[:8].tolist()
    assert np.shares_memory(vocabulary.row(logits), logits)
    assert vocabulary.same_ids


def test_what_a_shorter_draft_lacks_at_the_end_has_no_chance() -> None:
    vocabulary = VocabularyMap(10, 8)
    assert vocabulary.row(np.ones(8, np.float32)).tolist() == [1.0] * 8 + [-np.inf] * 2
    assert not vocabulary.same_ids


def test_of_the_same_ids_a_history_is_not_even_copied() -> None:
    tokens = [1, 2, 3]
    spelling = Spelling(VocabularyMap(8, 12))
    assert spelling.ids(0, tokens) is tokens
    assert spelling.length(0, 2) == 2


def test_tokens_after_the_drafts_last_one_are_spelt() -> None:
    texts = {8: b"ab", 9: b"?"}
    vocabulary = VocabularyMap(10, 8, text=texts.__getitem__, pieces=lambda: {b"a": 3, b"b": 4})
    assert vocabulary.spell([7, 8, 0, 9, 1]) == [7, 3, 4, 0, 1]


def test_a_token_without_a_partner_is_spelt_by_the_longest_pieces() -> None:
    vocabulary = other()
    assert [spelt([*vocabulary.token(token)]) for token in range(6)] == TARGET[:6]
    assert vocabulary.token(TARGET.index(b"abc")) == (DRAFT.index(b"ab"), DRAFT.index(b"c"))
    assert vocabulary.token(TARGET.index(b" the")) == (DRAFT.index(b" th"), DRAFT.index(b"e"))
    assert vocabulary.token(TARGET.index(b"\xc3\xa9")) == (DRAFT.index(b"\xc3"), DRAFT.index(b"\xa9"))
    assert vocabulary.token(TARGET.index(b"")) == ()
    assert vocabulary.token(TARGET.index(b"z")) == (), "bytes that the draft has no token for are left out"


def test_each_model_reads_its_own_begin_of_text() -> None:
    begin = TARGET.index(b"<begin>")
    vocabulary = other(begin=[0], silent=[begin])
    assert vocabulary.spell([begin, 0]) == [0, DRAFT.index(b"a")]
    assert vocabulary.spell([0]) == [0, DRAFT.index(b"a")], "the draft's stands in front if the target has none"
    paired = VocabularyMap(2, 2, [1, 0], silent=[1])
    assert paired.row(np.ones(2, np.float32))[1] == -np.inf, "what is not read is not proposed either"


def test_two_tokens_cannot_have_one_partner() -> None:
    with pytest.raises(AssertionError, match="one partner"):
        VocabularyMap(3, 3, [0, 0, 1])


@given(st.lists(st.lists(st.integers(0, len(TARGET) - 1), max_size=12), min_size=1, max_size=6))
def test_a_history_is_followed_however_it_changes(histories: list[list[int]]) -> None:
    """The ids are those of the whole text, and a beginning of the tokens is a beginning of the ids."""
    vocabulary = other(begin=[0])
    spelling = Spelling(vocabulary)
    for tokens in histories:
        ids = list(spelling.ids(3, tokens))
        assert ids == vocabulary.spell(tokens)
        for length in range(1, len(tokens) + 1):
            beginning = vocabulary.spell(tokens[:length])
            assert spelling.length(3, length) == len(beginning)
            assert ids[: len(beginning)] == beginning
        assert spelling.length(3, 0) == 0
        assert spelling.length(3, len(tokens) + 5) == spelling.length(3, len(tokens))
    assert spelling.length(4, 7) == 0, "a slot that was never seen"
