"""The pair check from headers: cases 14, 15 and 17."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_local.errors import PairError
from spec_local.models_manifest.gguf_header import Header, read_header
from spec_local.models_manifest.pair_check import PairReport, check_pair, require_pair

Write = Callable[..., Path]
BASE = ["!", "<s>", "<|im_end|>", "Ġthe", "Ċ", "é"]


@pytest.fixture
def check(tmp_path: Path, write_model: Write) -> Callable[..., PairReport]:
    """`check(target, draft)`: the report for two vocabularies, each a (tokens, changes) or just tokens."""

    def header(name: str, spec: object) -> Header:
        tokens, changes = spec if isinstance(spec, tuple) else (spec, {})
        return read_header(write_model(tmp_path / f"{name}.gguf", tokens, **changes))

    return lambda target, draft: check_pair(header("target", target), header("draft", draft))


def padded(count: int) -> tuple[list[str], dict[str, list[int]]]:
    tokens = BASE + [f"[PAD{n}]" for n in range(len(BASE), count)]
    return tokens, {"token_type": [1] * len(BASE) + [5] * (count - len(BASE))}


def test_equal_vocabularies_are_accepted(check: Callable[..., PairReport]) -> None:
    report = check(BASE, BASE)
    assert report.ok and report.common == 6 and report.first_difference is None
    assert "target.gguf (6 tokens)" in report.message and "draft.gguf (6 tokens)" in report.message


@pytest.mark.parametrize(("target", "draft"), [(151936, 152064), (152064, 151936)])
def test_padded_tails_are_accepted_in_both_directions(
    check: Callable[..., PairReport], target: int, draft: int
) -> None:
    """Case 14."""
    report = check(padded(target), padded(draft))
    assert report.ok and report.common == 151936
    assert any("128 unused entries more" in note for note in report.notes)


def test_a_draft_that_shares_hardly_anything_is_refused_with_everything_a_person_needs(
    check: Callable[..., PairReport],
) -> None:
    """Both files, both sizes, how much is shared, the first differing id with both texts, and a way out."""
    report = check(BASE + [f"t{n}" for n in range(64)], BASE[:3] + [f"d{n}" for n in range(77)])
    assert not report.ok
    assert report.shared is not None
    assert report.first_difference is not None and report.first_difference.id == 3
    for part in (
        "target.gguf",
        "draft.gguf",
        "70 tokens",
        "80 tokens",
        "id: 3",
        "' the'",
        "'d0'",
        "share only 3 tokens",
    ):
        assert part in report.message
    assert "4.3 % of the target's 70 and 3.8 % of the draft's 80; under 5 %" in report.message
    assert "-d text" in report.hint


def test_too_small_a_share_of_either_vocabulary_is_refused(check: Callable[..., PairReport]) -> None:
    """A draft of single bytes shares all it has, and can still say hardly anything of what the target says."""
    few, many = [f"t{n}" for n in range(4)], [f"t{n}" for n in range(100)]
    for target, draft in ((many, few[::-1]), (few[::-1], many), (many, few)):
        assert not check(target, draft).ok
    assert check(many, [f"t{n}" for n in range(5)]).ok


def test_another_vocabulary_that_shares_enough_can_draft(check: Callable[..., PairReport]) -> None:
    report = check(BASE, ["<s>", "Ġa", "Ċ", "Ġthe", "<|im_end|>"])
    assert report.ok and report.shared is not None and not report.shared.same_ids
    assert report.first_difference is None
    assert report.other_vocabulary == (
        "The draft has another vocabulary: it shares 4 tokens, 67 % of the target's 6 and 80 % of the draft's 5, "
        "and proposes only those."
    )
    assert report.other_vocabulary in report.message
    assert report.notes == ("The draft is as large as the target, which cannot make anything faster.",)
    assert check(BASE, BASE).other_vocabulary == ""


def test_require_pair_raises_one_error(tmp_path: Path, write_model: Write) -> None:
    target = read_header(write_model(tmp_path / "t.gguf", BASE))
    draft = read_header(write_model(tmp_path / "d.gguf", [f"other{n}" for n in range(6)]))
    assert require_pair(target, target).ok
    with pytest.raises(PairError, match="First differing id: 0") as caught:
        require_pair(target, draft)
    assert caught.value.hint


def test_bos_ids_may_differ_where_nobody_adds_them(check: Callable[..., PairReport]) -> None:
    """Case 17a."""
    report = check((BASE, {"bos_token_id": 1}), (BASE, {"bos_token_id": 0}))
    assert report.ok and any("BOS differs (1 '<s>' and 0 '!')" in note for note in report.notes)


def test_bos_added_on_one_side_only_is_refused(check: Callable[..., PairReport]) -> None:
    """Case 17b."""
    report = check((BASE, {"add_bos_token": True}), BASE)
    assert not report.ok and "the target adds BOS to every text and the draft does not" in report.message
    report = check(BASE, (BASE, {"add_bos_token": True}))
    assert not report.ok and "the draft adds BOS" in report.message
    report = check((BASE, {"add_bos_token": True}), (BASE, {"add_bos_token": True, "bos_token_id": 0}))
    assert not report.ok and "1 '<s>' and 0 '!'" in report.message
    report = check((BASE, {"add_bos_token": True}), (BASE, {"add_bos_token": True}))
    assert report.ok


def test_eos_ids_may_differ_and_the_target_decides(check: Callable[..., PairReport]) -> None:
    """Case 17c."""
    report = check((BASE, {"eos_token_id": 2}), (BASE, {"eos_token_id": 0}))
    assert report.ok and any("EOS differs" in note and "target decides" in note for note in report.notes)


def test_another_tokenizer_type_is_refused(check: Callable[..., PairReport]) -> None:
    """Case 17d."""
    report = check(BASE, (BASE, {"ggml__model": "rwkv"}))
    assert not report.ok and "different types, 'gpt2' and 'rwkv'" in report.message
    assert report.shared is None
    report = check((BASE, {"ggml__model": "rwkv"}), ([*BASE[:-1], "x"], {"ggml__model": "rwkv"}))
    assert not report.ok and "1 of 6 ids mean different text" in report.message


def test_kinds_may_differ_except_for_bytes(check: Callable[..., PairReport]) -> None:
    report = check(BASE, (BASE, {"token_type": [1, 3, 3, 1, 1, 4]}))
    assert report.ok and any(note.startswith("Ids 1, 2, 5 have the same text") for note in report.notes)
    tokens = ["<0x0A>", *BASE[1:]]
    report = check((tokens, {"token_type": [6, 1, 1, 1, 1, 1]}), tokens)
    assert report.ok and report.shared is not None and not report.shared.same_ids
    assert report.shared.shared == 5, "the byte is not the text that spells it"


def test_a_place_unused_in_one_model_is_no_difference(check: Callable[..., PairReport]) -> None:
    """Later releases of a family give meaning to ids earlier ones kept free."""
    report = check([*BASE, "<think>"], ([*BASE, "[PAD6]"], {"token_type": [1] * 6 + [5]}))
    assert report.ok and any(note.startswith("Id 6 stands for a token") for note in report.notes)


def test_real_tokens_after_the_drafts_last_are_noted(check: Callable[..., PairReport]) -> None:
    report = check([*BASE, "<tool>", "<call>"], BASE)
    assert report.ok and report.shared is not None and report.shared.same_ids
    assert (report.shared.shared, report.shared.of_target, report.shared.of_draft) == (6, 0.75, 1.0)
    assert any("has tokens the draft lacks: ids 6, 7, such as '<tool>'" in note for note in report.notes)
    report = check(BASE, [*BASE, "<tool>"])
    assert report.ok and any("never asked for those" in note for note in report.notes)


def test_special_tokens_behind_the_drafts_last_are_noted(check: Callable[..., PairReport]) -> None:
    """A larger model of the family that also sees images has tokens for them."""
    report = check(([*BASE, "<image>"], {"token_type": [1] * 6 + [4]}), BASE)
    assert report.ok
    assert report.common == 6
    assert any("special tokens the draft lacks: id 6, such as '<image>'" in note for note in report.notes)


def test_what_is_odd_but_right_is_noted(tmp_path: Path, write_model: Write) -> None:
    target = read_header(write_model(tmp_path / "t.gguf", BASE))
    assert any("same file" in note for note in check_pair(target, target).notes)
    draft = read_header(write_model(tmp_path / "d.gguf", BASE, llama__context_length=128, ggml__pre="llama-bpe"))
    notes = " ".join(check_pair(target, draft).notes)
    assert "as large as the target" in notes and "128 tokens of context" in notes and "pre-tokenizers differ" in notes


def test_a_file_without_vocabulary_is_refused(check: Callable[..., PairReport]) -> None:
    report = check(BASE, (BASE, {"ggml__tokens": None, "token_type": None}))
    assert not report.ok and "the draft file has no vocabulary" in report.message


def test_the_report_is_plain_data(check: Callable[..., PairReport]) -> None:
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(check(BASE, BASE)), default=str))["ok"] is True
