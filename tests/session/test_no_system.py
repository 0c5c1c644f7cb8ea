"""`--system ""`: no system message where the template allows that, else a word about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_engines import Load, drawn
from tiny_gguf import TEMPLATE, write_transformer

from spec_local.session.generation import Request
from spec_local.session.messages import Message
from spec_local.session.template import ChatTemplate

OWN = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n"
    "{% else %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""With a system message of its own, as Qwen2.5's."""
ALWAYS = OWN.replace("messages[0].role == 'system'", "messages[0].role == 'system' and messages[0].content")
"""The same, but an empty one counts as none."""
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
FOLDED = (
    "{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>user\n{% if loop.first and s %}{{ s }}\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
)
"""The system message leads the first user message, as Gemma's."""
USER = "<|im_start|>user\nHi<|im_end|>\n"
SPEAK = "<|im_start|>assistant\n"
CASES = {
    "none of its own": (TEMPLATE, USER + SPEAK, ""),
    "one of its own": (OWN, f"<|im_start|>system\n<|im_end|>\n{USER}{SPEAK}", "an empty one takes its place"),
    "always one": (ALWAYS, f"<|im_start|>system\nYou are helpful.<|im_end|>\n{USER}{SPEAK}", "cannot be left out"),
    "refuses one": (REFUSES, USER + SPEAK, ""),
    "folds it": (FOLDED, USER, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_an_empty_system_message_is_none(open_engine: Load, tiny_folder: Path, case: str) -> None:
    template, expected, notice = CASES[case]
    path = write_transformer(tiny_folder / f"system-{case.replace(' ', '-')}.gguf", seed=1, template=template)
    engine = open_engine(path, "text")
    ids = engine.vocabulary.tokenize(expected, parse_special=True)
    blank = [Message(role="system", content=""), Message(role="user", content="Hi")]
    for request in (Request("Hi", system=""), Request("Hi", system=" "), Request(blank), Request(blank, system="")):
        tokens, notices = engine.tokenize(request)
        assert tokens == ids
        assert notices == [] if not notice else notice in notices[0]
    assert engine.generate("Hi", system="", sampling=drawn(max_tokens=1)).notices == tuple(notices)


@pytest.mark.parametrize("case", CASES)
def test_a_system_message_that_was_not_asked_for_is_the_templates(case: str) -> None:
    template, _, _ = CASES[case]
    rendered = ChatTemplate(template).render([Message(role="user", content="Hi")])
    assert ("You are helpful" in rendered.text) == (template in (OWN, ALWAYS))
    assert not rendered.notice
