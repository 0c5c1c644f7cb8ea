"""Chat templates: what models bring, what they refuse, and what is done when they bring none or a broken one."""

from __future__ import annotations

import pytest

from spec_local.errors import TemplateError
from spec_local.session.messages import Message
from spec_local.session.template import CHATML, ChatTemplate, Rendered, merge_system

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "<start_of_turn>{{ role }}\n{{ message['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def _rendered(rendered: Rendered) -> tuple[str, str]:
    return rendered.text, rendered.notice


def _messages(*turns: str) -> list[Message]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [Message(role=roles[turn[0]], content=turn[2:]) for turn in turns]


def test_chatml_is_used_and_said_where_there_is_none() -> None:
    for source in (None, ""):
        template = ChatTemplate(source)
        assert "ChatML" in template.notice
        text, notice = _rendered(template.render(_messages("s:Be brief.", "u:Hi")))
        assert (
            text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        assert notice == ""
    assert ChatTemplate(CHATML).notice == ""


def test_begin_token_and_roles() -> None:
    text, notice = _rendered(ChatTemplate(GEMMA, bos="<bos>").render(_messages("u: Hi ", "a:Hello", "u:Bye")))
    assert text == (
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
    assert notice == ""


def test_a_refused_system_message_goes_into_the_first_user_turn_and_is_noted() -> None:
    messages = _messages("s:Be brief.", "u:Hi", "a:Hello", "u:Bye")
    text, notice = _rendered(ChatTemplate(GEMMA).render(messages))
    assert "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>" in text
    assert "no system message" in notice
    assert messages[0]["role"] == "system"  # the conversation itself is left alone


def test_a_conversation_that_stays_refused_is_one_clear_sentence() -> None:
    template = ChatTemplate(GEMMA, origin="gemma.gguf")
    for messages in (_messages("u:Hi", "u:Again"), _messages("s:Be brief.", "u:Hi", "u:Again"), _messages("s:Alone")):
        with pytest.raises(TemplateError) as caught:
            template.render(messages)
        assert "gemma.gguf refuses this conversation: " in caught.value.message
        assert "\n" not in caught.value.message
        assert caught.value.hint
    text = template.render(_messages("u:Hi")).text  # and the template goes on working
    assert "Hi" in text


def test_merging_system_messages() -> None:
    assert merge_system(_messages("s:A", "u:Hi", "s:B")) == _messages("u:A\n\nB\n\nHi")
    assert merge_system(_messages("u:Hi")) == _messages("u:Hi")
    assert merge_system(_messages("s:A")) == _messages("s:A")


def test_a_syntax_error_is_found_when_the_template_is_made() -> None:
    with pytest.raises(TemplateError, match=r"template of broken\.gguf has a syntax error in line 2") as caught:
        ChatTemplate("fine\n{% for %}", origin="broken.gguf")
    assert "--chat-template" in caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[99].content }}",
        "{{ 1 / 0 }}",
        "{{ messages | nosuchfilter }}",
        "{{ messages[0].content + 1 }}",
        "{{ undefined.attribute.more }}",
        "{% include 'other' %}",
        "{{ messages[0].content.no_such_method() }}",
        "{{ namespace() + 1 }}",
        "{{ messages[0]['content'].encode('no-such-codec') }}",
        "{{ strftime_now(5) }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_whatever_a_template_does_wrong_is_a_sentence(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source, origin="odd.gguf").render(_messages("u:Hi"))
    assert "odd.gguf" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '%s' | format(messages.__class__) }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    """It fails, or what it reached for is not there."""
    messages = _messages("u:Hi")
    try:
        text = ChatTemplate(source).render(messages).text
    except TemplateError:
        return
    assert text == ""
    assert messages == _messages("u:Hi")


def test_features_that_templates_of_models_use() -> None:
    source = (
        "{%- set ns = namespace(n=0) -%}"
        "{%- for m in messages -%}{%- if m.role == 'system' -%}{%- continue -%}{%- endif -%}"
        "{%- set ns.n = ns.n + 1 -%}{{ ns.n }}:{{ m.content | trim }};{%- endfor -%}"
        "{{ {'a': 'é', 'b': [1, 2]} | tojson }}{{ strftime_now('%Y')[:2] }}"
        "{%- if tools is not none %}tools{% endif -%}{{ eos_token }}"
    )
    text = ChatTemplate(source, eos="</s>").render(_messages("s:x", "u: Hi ", "a:Yo", "u:No")).text
    assert text == '1:Hi;2:Yo;3:No;{"a": "é", "b": [1, 2]}20</s>'
