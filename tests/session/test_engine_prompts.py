"""Prompts of every kind and length: chat, raw, messages, templates, up to the context and beyond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_engines import PROMPT, Load, drawn
from tiny_gguf import END_OF_TURN, TEMPLATE, TURN, write_transformer

from spec_local.errors import ContextFullError, TemplateError, UsageError
from spec_local.session.generation import Request
from spec_local.session.messages import Message


@pytest.mark.parametrize("prompt", ["", "  \n ", []])
def test_an_empty_prompt_is_refused(open_engine: Load, prompt: Any) -> None:
    engine = open_engine()
    with pytest.raises(UsageError, match="prompt is empty"):
        engine.generate(prompt)
    with pytest.raises(UsageError, match="prompt is empty"):
        engine.generate("", raw=True)


def test_prompts_up_to_the_context_and_beyond(open_engine: Load) -> None:
    engine = open_engine(n_ctx=64)
    text = "z" * 200
    with pytest.raises(ContextFullError, match="64 tokens long; the context holds 64") as caught:
        engine.generate(text[:64], raw=True)
    assert "--n-ctx" in caught.value.hint
    assert engine.generate("z", raw=True, sampling=drawn(max_tokens=2)).finish_reason == "length"  # and it goes on
    for room in (1, 2, 3, 4, 5, 6, 9):
        result = engine.generate(text[: 64 - room], raw=True, sampling=drawn(max_tokens=None))
        assert (result.finish_reason, result.limit) in (("length", "context"), ("stop", None))
        assert result.prompt_tokens + len(result.token_ids) <= 64
        assert result.limit is None or result.prompt_tokens + len(result.token_ids) == 64


@pytest.mark.parametrize("n_ctx", [100, 200, 257])
@pytest.mark.parametrize("draft", ["none", "text", None])
def test_any_context_length_is_filled_to_its_end(open_engine: Load, n_ctx: int, draft: str | None) -> None:
    engine = open_engine(n_ctx=n_ctx, draft=draft)
    bias = dict.fromkeys(engine.vocabulary.end_ids, -100.0)
    result = engine.generate(PROMPT, sampling=drawn(max_tokens=None, logit_bias=bias))
    assert engine.n_ctx == n_ctx == result.model["n_ctx"]
    assert (result.finish_reason, result.limit) == ("length", "context")
    assert result.prompt_tokens + len(result.token_ids) == n_ctx


def test_a_prompt_longer_than_the_batch(open_engine: Load) -> None:
    expected = None
    for batch_size in (512, 64, 16, 1):
        engine = open_engine(batch_size=batch_size, pad_width=0)
        for length in (15, 16, 17, 63, 64, 65, 150):
            result = engine.generate("y" * length, raw=True, sampling=drawn(temperature=0.0, max_tokens=8))
            assert result.prompt_tokens == length
            assert result.finish_reason in ("length", "stop")
        expected = expected or result.token_ids
        assert result.token_ids == expected


def test_chat_raw_and_messages_make_the_prompt_they_should(open_engine: Load) -> None:
    engine = open_engine()
    as_text, _ = engine.tokenize(Request("Hi", system="Be brief."))
    as_messages, _ = engine.tokenize(
        Request([Message(role="system", content="Be brief."), Message(role="user", content="Hi")])
    )
    assert as_text == as_messages
    assert as_text.count(TURN) == 3
    raw, _ = engine.tokenize(Request("Hi<|im_end|>", raw=True))
    assert raw[-1] == END_OF_TURN
    assert TURN not in raw
    with pytest.raises(UsageError, match="raw prompt is one text"):
        engine.generate([Message(role="user", content="Hi")], raw=True)


def test_exactly_one_begin_token(open_engine: Load, tiny_folder: Path) -> None:
    template = "{{ bos_token }}" + TEMPLATE
    path = write_transformer(tiny_folder / "adds-bos.gguf", seed=1, add_bos=True, template=template)
    engine = open_engine(path, "text")
    bos = engine.vocabulary.bos
    for request in (
        Request("Hi"),
        Request("Hi", raw=True),
        Request("<|endoftext|>Hi", raw=True),
    ):
        tokens, notices = engine.tokenize(request)
        assert (tokens[0], tokens.count(bos), notices) == (bos, 1, [])


def test_a_model_without_a_template_says_which_is_used(open_engine: Load, tiny_folder: Path, tmp_path: Path) -> None:
    path = write_transformer(tiny_folder / "bare.gguf", seed=1, template=None)
    engine = open_engine(path, "text")
    result = engine.generate("Hi", sampling=drawn(max_tokens=2))
    assert any("ChatML" in notice for notice in result.notices)
    assert not any("ChatML" in n for n in engine.generate("Hi", raw=True, sampling=drawn(max_tokens=2)).notices)
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}")
    engine = open_engine(path, "text", chat_template=str(own))
    result = engine.generate("Hi", sampling=drawn(max_tokens=2))
    assert (result.prompt_tokens, result.notices) == (2, ())


def test_a_broken_template_is_reported_at_load(open_engine: Load, tiny_folder: Path, tmp_path: Path) -> None:
    path = write_transformer(tiny_folder / "broken-template.gguf", seed=1, template="{% for %}")
    engine = open_engine(path, "text")
    assert any("syntax error" in notice for notice in engine.notices)
    with pytest.raises(TemplateError, match="syntax error"):
        engine.generate("Hi")
    assert engine.generate("Hi", raw=True, sampling=drawn(max_tokens=2)).finish_reason == "length"
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% if %}")
    for template, match in ((broken, "syntax error"), (tmp_path / "none.jinja", "cannot be read")):
        with pytest.raises(TemplateError, match=match):
            open_engine(chat_template=str(template))
