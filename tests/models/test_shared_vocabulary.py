"""Partners of two vocabularies: by bytes, one to one, control tokens apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spec_local.models_manifest.gguf_header import read_header
from spec_local.models_manifest.shared_vocabulary import SharedVocabulary, share_text
from spec_local.models_manifest.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Tokenizer

Write = Callable[..., Path]
Make = Callable[..., Tokenizer]
Entry = tuple[str, int]


@pytest.fixture
def make(tmp_path: Path, write_model: Write) -> Make:
    """`make(entries, model="gpt2", **changes)`: a tokenizer read from a file."""
    counter = iter(range(99))

    def tokenizer(entries: list[Entry], model: str = "gpt2", **changes: object) -> Tokenizer:
        changes = {"bos_token_id": None, "eos_token_id": 0, **changes}
        path = tmp_path / f"{next(counter)}.gguf"
        texts, kinds = [text for text, _ in entries], [kind for _, kind in entries]
        return read_header(write_model(path, texts, token_type=kinds, ggml__model=model, **changes)).tokenizer

    return tokenizer


def pairs(shared: SharedVocabulary) -> dict[int, int]:
    """Draft id → target id."""
    return {draft: target for draft, target in enumerate(shared.partners) if target >= 0}


def test_notations_are_undone(make: Make) -> None:
    bpe = make([("<|end|>", CONTROL), ("Ġthe", NORMAL), ("Ċ", NORMAL), ("Ã©", NORMAL), ("x", NORMAL)])
    pieces = make([("é", NORMAL), ("▁the", NORMAL), ("<0x0A>", BYTE), ("y", NORMAL), ("<|end|>", CONTROL)], "llama")
    assert bpe.spelled() == [b"<|end|>", b" the", b"\n", "é".encode(), b"x"]
    assert pieces.spelled() == ["é".encode(), b" the", b"\n", b"y", b"<|end|>"]
    shared = share_text(bpe, pieces)
    assert pairs(shared) == {0: 3, 1: 1, 2: 2, 4: 0}
    assert (shared.shared, shared.target_tokens, shared.draft_tokens) == (4, 5, 5)
    assert pairs(share_text(pieces, bpe)) == {3: 0, 1: 1, 2: 2, 0: 4}
    assert shared.pieces() == {"é".encode(): 0, b" the": 1, b"\n": 2, b"y": 3}


def test_a_control_token_is_not_the_text_of_its_name(make: Make) -> None:
    target = make([("</s>", CONTROL), ("<unk>", UNKNOWN), ("a", NORMAL)], eos_token_id=2)
    draft = make([("a", NORMAL), ("</s>", NORMAL), ("<unk>", CONTROL)], eos_token_id=0)
    assert pairs(share_text(target, draft)) == {0: 2, 2: 1}


def test_of_several_the_first_has_the_partner(make: Make) -> None:
    target = make([("a", NORMAL), ("a", USER_DEFINED), ("b", NORMAL)])
    draft = make([("x", NORMAL), ("<0x61>", BYTE), ("▁", NORMAL), ("a", NORMAL), ("a", NORMAL)], "llama")
    assert pairs(share_text(target, draft)) == {3: 0}, "a token of text before a byte"
    assert share_text(target, draft).pieces()[b"a"] == 3


def test_what_nobody_uses_has_no_partner_and_does_not_count(make: Make) -> None:
    padding = [("[PAD1]", NORMAL), ("<unused7>", CONTROL), ("gone", UNUSED)]
    target, draft = make([("a", NORMAL), *padding]), make([("b", NORMAL), *padding, ("a", NORMAL)])
    shared = share_text(target, draft)
    assert pairs(shared) == {4: 0}
    assert (shared.target_tokens, shared.draft_tokens) == (1, 2)


def test_turns_that_end_under_other_names_are_partners_and_no_part_of_the_share(make: Make) -> None:
    target = make([("a", NORMAL), ("<|im_end|>", CONTROL)], eos_token_id=1)
    draft = make([("<eos>", CONTROL), ("<end_of_turn>", CONTROL), ("a", NORMAL)], tokenizer__ggml__eot_token_id=1)
    shared = share_text(target, draft)
    assert pairs(shared) == {1: 1, 2: 0}
    assert shared.shared == 1
    known = make([("<eos>", CONTROL), ("<|im_end|>", CONTROL), ("a", NORMAL)], eos_token_id=0)
    assert pairs(share_text(target, known)) == {1: 1, 2: 0}, "one that has its partner by name gets no other"


@pytest.mark.parametrize("text", ["<0x>", "<0xZZ>", "byte", "<0x1FF>", ""])
def test_a_byte_token_that_names_no_byte_stands_for_its_text(make: Make, text: str) -> None:
    assert make([("a", NORMAL), (text, BYTE)], "llama").spelled() == [b"a", text.encode()]
