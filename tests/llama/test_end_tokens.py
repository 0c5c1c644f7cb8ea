"""Which tokens end an answer: those made for it, and no ordinary token that only looks like one."""

from __future__ import annotations

import gguf
import pytest
from tiny_gguf import END_OF_TEXT, END_OF_TURN, N_VOCAB, write_transformer

from spec_local.errors import ModelError
from spec_local.llama.model import Model, Offload


@pytest.mark.parametrize("kind", ["NORMAL", "USER_DEFINED"])
def test_an_ordinary_html_tag_ends_nothing_and_is_text(tmp_path, kind):
    path = write_transformer(tmp_path / "m.gguf", extra=[("</s>", gguf.TokenType[kind])])
    with Model(path) as model:
        vocabulary = model.vocabulary
        assert vocabulary._lib.llama_vocab_is_eog(vocabulary._handle, N_VOCAB), "llama.cpp itself thinks so"
        assert N_VOCAB not in vocabulary.end_ids
        assert vocabulary.piece(N_VOCAB) == b"</s>"
        assert vocabulary.text([N_VOCAB, N_VOCAB]) == "</s></s>"
        assert {END_OF_TEXT, END_OF_TURN} <= vocabulary.end_ids
        assert vocabulary.piece(END_OF_TURN) == b""
        assert vocabulary.piece(END_OF_TURN, special=True) == b"<|im_end|>"


def test_a_control_token_of_that_text_ends_an_answer(tmp_path):
    path = write_transformer(tmp_path / "m.gguf", extra=[("</s>", gguf.TokenType.CONTROL)])
    with Model(path) as model:
        assert N_VOCAB in model.vocabulary.end_ids
        assert model.vocabulary.piece(N_VOCAB) == b""


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct", "gemma-3-270m"])
def test_the_header_tells_the_ends_that_the_engine_uses(name):
    from spec_local.models_manifest import read_header, resolve_model

    try:
        path = resolve_model(name).path
    except ModelError as error:
        pytest.skip(str(error))
    with Model(path, Offload(devices=("none",), repack=False)) as model:
        assert read_header(path).tokenizer.end_ids() == model.vocabulary.end_ids


@pytest.mark.models
@pytest.mark.slow
def test_both_ends_of_qwen_and_not_its_html_tag():
    from spec_local.models_manifest import resolve_model

    try:
        path = resolve_model("qwen2.5-coder-1.5b-instruct").path
    except ModelError as error:
        pytest.skip(str(error))
    with Model(path, Offload(devices=("none",), repack=False)) as model:
        assert {151643, 151645} <= model.vocabulary.end_ids
        assert 128247 not in model.vocabulary.end_ids
        assert model.vocabulary.piece(128247) == b"</s>"
