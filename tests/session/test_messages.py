# ruff: noqa: E501
"""Conversations as programs send them: roles, parts, nulls, calls; and an answer that is to be continued."""

from __future__ import annotations

from typing import Any

import pytest
from template_samples import SAMPLES

from spec_local.errors import TemplateError
from spec_local.session.messages import MessageError, normalise
from spec_local.session.template import ChatTemplate


def _text(name: str, *messages: dict[str, Any], **how: Any) -> str:
    return ChatTemplate(SAMPLES[name].source, eos="</s>").render(normalise(messages), **how).text


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("role", ["User", "human", "function", "", "model", 7])
def test_an_unknown_role_is_refused_by_its_name(role: Any) -> None:
    with pytest.raises(MessageError, match=r"messages\[1\]\.role cannot be") as caught:
        normalise([USER, {"role": role, "content": "x"}])
    assert "developer" in caught.value.hint
    with pytest.raises(MessageError, match=r"messages\[0\]\.role is missing"):
        normalise([{"content": "x"}])


def test_a_developer_is_the_system_unless_the_template_knows_better() -> None:
    turns = {"role": "developer", "content": "Be brief."}, USER
    assert "<|im_start|>system\nBe brief.<|im_end|>" in _text("chatml", *turns)
    assert "<|start|>developer<|message|># Instructions\nBe brief." in _text("gpt-oss", *turns)
    assert "<start_of_turn>user\nBe brief.\n\nHi" in _text("gemma-3", *turns)


def test_content_may_be_parts_or_null() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    assert normalise([{"role": "user", "content": parts}])[0]["content"] == "abc"
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    (turn,) = normalise([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert turn["content"] == ""
    assert turn["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "content": None}, "messages[0].content is null"),
        ({"role": "user"}, "messages[0] has no content"),
        ({"role": "assistant", "content": None}, "messages[0].content is null"),
        ({"role": "user", "content": 5}, "messages[0].content is a number"),
        ({"role": "user", "content": {"a": 1}}, "messages[0].content is an object"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "of the type 'image_url'"),
        ({"role": "user", "content": [{"type": "text"}]}, "a part without a text"),
        ({"role": "user", "content": [1]}, "messages[0].content[0] is a number"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "only an assistant calls tools"),
        ({"role": "assistant", "content": "", "tool_calls": "f"}, "must be a list"),
        ({"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}, "names no function"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "is no JSON",
        ),
        ("Hi", "messages[0] is a text"),
    ],
)
def test_what_is_no_message_is_named(message: Any, said: str) -> None:
    with pytest.raises(MessageError) as caught:
        normalise([message])
    assert said in caught.value.message


def test_a_trailing_answer_is_continued() -> None:
    last = {"role": "assistant", "content": "One, two "}
    assert _text("chatml", USER, last).endswith("<|im_start|>assistant\nOne, two ")
    assert _text("qwen2.5", USER, last).endswith("<|im_start|>assistant\nOne, two ")
    assert _text("gemma-3", USER, last).endswith("<start_of_turn>model\nOne, two ")
    assert _text("mistral", USER, last).endswith("[INST]Hi[/INST]One, two ")
    assert _text("gpt-oss", USER, last).endswith("<|channel|>final<|message|>One, two ")
    assert _text("chatml", USER, {"role": "assistant", "content": ""}) == _text("chatml", USER)
    thought = {**last, "reasoning_content": "count"}
    assert _text("qwen3", USER, thought).endswith("<think>\ncount\n</think>\n\nOne, two ")
    with pytest.raises(TemplateError, match="leaves out an assistant's message"):
        ChatTemplate("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}").render(
            normalise([USER, last])
        )
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    with pytest.raises(TemplateError, match="assistant's that calls tools"):
        _text("qwen2.5", USER, {"role": "assistant", "content": "", "tool_calls": [call]})


def test_training_tags_are_ignored_and_their_body_is_rendered() -> None:
    turns = [USER, {"role": "assistant", "content": "Yo"}, USER]
    assert "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user" in _text("smollm3", *turns)
    source = (
        "{% for m in messages %}{% generation %}{% set x = m.content %}{{ x }};{% endgeneration %}{% endfor %}{{ x }}"
    )
    assert ChatTemplate(source).render(normalise([USER, USER])).text == "Hi;Hi;"  # and what is set in it stays in it


def test_what_real_templates_use() -> None:
    source = (
        "{%- macro m(a, b='-') -%}{{ a }}{{ b }}{%- endmacro -%}{%- set ns = namespace(n=0) -%}"
        "{%- for x in [1, 2, 3] -%}{%- if x == 2 -%}{%- continue -%}{%- endif -%}{%- set ns.n = ns.n + x -%}{%- endfor -%}"
        "{{ m(ns.n) }}{{ {'b': [1], 'a': '<é>'} | tojson(indent=1, sort_keys=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}"
        "{{ 'é' | tojson(ensure_ascii=true) }}{{ documents is none }}{{ tools is none }}{{ strftime_now('%Y') | length }}"
        "{{ {'a': 1}.items() | list | length }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
        "{{ joiner('x')() }}{{ messages[0].content.split('H')[1] }}"
    )
    text = ChatTemplate(source).render(normalise([USER])).text
    assert text == '4-{\n "a": "<é>",\n "b": [\n  1\n ]\n}[1,2]"\\u00e9"TrueTrue411i'


def test_a_template_that_takes_parts_only_is_given_parts() -> None:
    source = "{% for m in messages %}{{ m.role }}:{% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}{% endfor %}"
    assert (
        ChatTemplate(source).render(normalise([USER, {"role": "user", "content": "there"}])).text == "user:Hiuser:there"
    )


def test_results_of_tools_need_a_place() -> None:
    turns = [USER, {"role": "tool", "content": "7", "tool_call_id": "x"}]
    with pytest.raises(TemplateError, match="no place for the result of a tool"):
        _text("gemma-3", *turns)
    assert "<tool_response>\n7\n</tool_response>" in _text("qwen2.5", *turns)
