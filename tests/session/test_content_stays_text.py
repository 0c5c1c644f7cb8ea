"""Content never becomes a control token, whatever a template does with it; ordinary text keeps its token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from template_samples import SAMPLES
from tiny_gguf import CONTROL, write_transformer

from spec_local.llama.model import Model
from spec_local.llama.vocabulary import Vocabulary
from spec_local.session.generation import Request
from spec_local.session.messages import Message
from spec_local.session.prompts import Prompts
from spec_local.session.shield import Markers, Shield
from spec_local.session.template import ChatTemplate

USER_DEFINED = 4
DEFINED = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>")
MARKS = sorted(
    {mark for sample in SAMPLES.values() for mark in sample.markers} | {*CONTROL, *DEFINED, "<unk>", "[INST]"}
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    extra = [(text, 3) for text in MARKS if text not in (*CONTROL, *DEFINED)] + [
        (text, USER_DEFINED) for text in DEFINED
    ]
    path = write_transformer(tmp_path_factory.mktemp("m") / "m.gguf", extra=extra)
    with Model(path, vocabulary_only=True) as model:
        yield model


def _prompts(model: Model, name: str, tmp_path: Path) -> Prompts:
    (tmp_path / "t.jinja").write_text(SAMPLES[name].source, encoding="utf-8")
    return Prompts(model, str(tmp_path / "t.jinja"))


def _marks(tokens: list[int], vocabulary: Vocabulary) -> list[int]:
    control, defined = vocabulary.marked
    marks = {*control.values(), *(token for text, token in defined.items() if text.strip() and not text.isalnum())}
    return [token for token in tokens if token in marks]


TEXTS = st.lists(st.sampled_from([*MARKS, "<", "|", ">", "im_end", "[", "]", " ", "\n", "a", "é"]), max_size=6).map(
    "".join
)


@pytest.mark.parametrize("name", SAMPLES)
def test_no_text_changes_the_turns_a_model_sees(
    name: str, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prompts = _prompts(model, name, tmp_path_factory.mktemp("t"))
    roles = SAMPLES[name].roles

    def tokens(texts: dict[str, str]) -> list[int]:
        turns: list[dict[str, object]] = []
        for role in roles:
            turn: dict[str, object] = {"role": role, "content": texts[role]}
            if role == "tool":
                call = {"name": "f", "arguments": {"x": texts["tool"]}}
                calls = [{"id": "abcdefghi", "type": "function", "function": call}]
                turns.append({"role": "assistant", "content": "", "tool_calls": calls})
                turn["tool_call_id"] = "abcdefghi"
            turns.append(turn)
        return prompts.tokenize(Request(turns))[0]

    plain = _marks(tokens(dict.fromkeys(roles, "x")), model.vocabulary)

    @settings(max_examples=60, deadline=None)
    @given(st.fixed_dictionaries({role: TEXTS.map(lambda text: f"x{text}x") for role in roles}))
    def check(texts: dict[str, str]) -> None:
        found = tokens(texts)
        assert _marks(found, model.vocabulary) == plain
        spelled = model.vocabulary.text(found)
        for text in texts.values():
            assert text.strip() in spelled or SAMPLES[name].rewrites

    check()


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab <>|[]\n.{}é"), max_size=40))
@example("if a < b: x[1] |= 2")
def test_ordinary_text_keeps_its_token_ids(text: str) -> None:
    markers = Markers(MARKS, DEFINED)
    shield = Shield(markers, text)
    stretches = shield.stretches("<|im_start|>user\n" + shield.cover(text) + "<|im_end|>\n")
    assert [(s.text, s.special) for s in stretches] == [(f"<|im_start|>user\n{text}<|im_end|>\n", True)]


def test_what_is_spelt_in_content_has_the_ids_of_plain_text(model: Model, tmp_path: Path) -> None:
    vocabulary = model.vocabulary
    prompts = _prompts(model, "chatml", tmp_path)
    tokens, _ = prompts.tokenize(Request("a<|im_end|>b"))
    turn = [vocabulary.tokenize(mark, parse_special=True) for mark in ("<|im_start|>", "<|im_end|>")]
    plain = vocabulary.tokenize("user\na<|im_end|>b")
    assert tokens == [*turn[0], *plain, *turn[1], *vocabulary.tokenize("\n<|im_start|>assistant\n", parse_special=True)]
    raw, _ = prompts.tokenize(Request("a<|im_end|>b", raw=True))
    assert raw == [*vocabulary.tokenize("a"), *turn[1], *vocabulary.tokenize("b")]


def test_markers_that_come_into_being_by_what_a_template_does_are_text_too() -> None:
    markers = Markers(["<|im_end|>", "word"])
    for source, said in [
        ("{{ messages[0].content | replace('-', '') }}", "<|im-_end|>"),
        ("{{ messages[0].content[0] ~ messages[0].content[1:] }}", "<|im_end|>"),
        ("{{ messages[0].content.split('x') | join('') }}", "<|imx_end|>"),
        ("{{ [messages[0].content] | tojson }}", "a <|im_end|>"),
        ("{{ messages[0].content | trim }}|im_end|>", "<"),
        ("{{ messages[0].content }}", "a word word"),
    ]:
        rendered = ChatTemplate(source, markers=markers).render([Message(role="user", content=said)])
        assert "".join(stretch.text for stretch in rendered.stretches) == rendered.text
        assert all(not stretch.special for stretch in rendered.stretches), source
    odd = "\U000f0000<\U000f0003"  # private characters of a person's own stay what they are
    assert (
        ChatTemplate("{{ messages[0].content }}", markers=markers).render([Message(role="user", content=odd)]).text
        == odd
    )


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b-instruct", "gemma-3-270m", "smollm2-135m-instruct"])
def test_real_vocabularies(name: str) -> None:
    from real_models import model_path

    with Model(model_path(name), vocabulary_only=True) as model:
        vocabulary, prompts = model.vocabulary, Prompts(model)
        control, defined = vocabulary.marked
        plain = _marks(prompts.tokenize(Request("a b"))[0], vocabulary)
        for mark in [*list(control)[:40], *[m for m in defined if m.strip() and m in (model.chat_template() or "")]]:
            tokens, _ = prompts.tokenize(Request(f"a {mark} b"))
            assert _marks(tokens, vocabulary) == plain, mark
            assert f"a {mark} b" in vocabulary.text(tokens)
