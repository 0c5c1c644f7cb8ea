"""A template is a stranger's program: it reaches nothing, changes nothing, and ends."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given, settings, strategies as st

from spec_local.errors import TemplateError
from spec_local.session import sandbox
from spec_local.session.messages import Message
from spec_local.session.template import CHATML, ChatTemplate


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 0.2)


CHAT = [Message(role="user", content="hello"), Message(role="assistant", content="hi")]

ESCAPES = [
    "{{ messages.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages[0].__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__code__.co_consts }}",
    "{{ strftime_now.__closure__ }}",
    "{{ (messages | attr('__class__')) }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ '%s' % messages.__class__ }}",
    "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
    "{{ messages[0].update({'content': 'x'}) }}",
    "{{ messages[0].pop('content') }}",
    "{{ namespace.__init__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ tojson.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}{{ x }}",
    "{% extends 'x' %}",
]
SLOW = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = ns.x * 99 %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x | replace('a', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x.join(ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] | join(ns.x) %}{% endfor %}",
    "{{ 'a' * 999999999 }}",
    "{{ 999999999 * 'a' }}",
    "{{ 9 ** 9 ** 9 ** 9 }}",
    "{% set ns = namespace(x=9) %}{% for i in range(90) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ 'a'.center(999999999) }}",
    "{{ 'a' | center(999999999) }}",
    "{{ 'a'.zfill(999999999) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ '\\t'.expandtabs(999999999) }}",
    "{{ 'a' | indent(999999999, true) }}",
    "{{ range(999999999) | list }}",
    "{{ messages | tojson(indent=999999999) }}",
    "{{ lipsum(n=999999) }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ messages | tojson(indent='x' * 99999) | length }}{{ raise_exception('x' * 99999) }}",
    "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{{ [0] | batch(999999999, 0) | list }}",
    "{{ 'x' | wordwrap(1) }}{{ ('x ' * 90000) | wordwrap(1, wrapstring='y' * 90000) }}",
    "{{ messages | map('string') | map('center', 999999999) | list }}",
]


def _text_or_sentence(source: str, messages: list[Message]) -> str:
    """What a template makes, or how it is refused."""
    try:
        return ChatTemplate(source).render(messages).text
    except TemplateError as error:
        sentence = error.message
    assert sentence.startswith("The chat template of ")
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize("source", ESCAPES)
def test_no_template_leaves_its_sandbox(source: str) -> None:
    """It fails with a sentence, or makes nothing of what it asked for: never an object, a file or a command."""
    messages = [Message(**message) for message in CHAT]
    text = _text_or_sentence(source, messages)
    assert not any(word in text for word in ("<class", "<function", "<module", "root:", "uid=", "object at"))
    assert messages == CHAT


@pytest.mark.parametrize("source", SLOW)
def test_every_template_ends_in_bounded_time_and_space(source: str) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.thread_time()
    assert len(_text_or_sentence(source, CHAT)) < 5_000_000
    assert time.thread_time() - started < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


def test_the_time_limit_names_the_time_and_leaves_no_trace_function() -> None:
    assert sys.gettrace() is None
    with pytest.raises(TemplateError, match=r"fails: it takes more than 0.2 s"):
        ChatTemplate(SLOW[0]).render(CHAT)
    assert sys.gettrace() is None
    text = ChatTemplate(CHATML).render(CHAT).text
    assert text.startswith("<|im_start|>user\nhello")


def test_long_conversations_are_no_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template may do all that real ones do, on as much text as a context can hold."""
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 2.0)
    source = (
        "{%- set ns = namespace(last=-1, text='') %}{%- for m in messages %}{%- if m.role == 'user' %}"
        "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
        "{{- '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>' ~ '\\n' }}"
        "{%- set ns.text = ns.text ~ m.role %}{%- if loop.index0 == ns.last %}{{ m.content | length }}{% endif %}"
        "{%- endfor %}{{ messages[0].content.split(' ') | length }}{{ messages | selectattr('role', 'equalto', 'user')"
        " | map(attribute='content') | join(' ') | replace('a', 'b') | length }}{{ {'a': 1} | tojson }}{{ 'x' * 3 }}"
    )
    many = [Message(role=("user", "assistant")[i % 2], content="a word " * 100) for i in range(1001)]
    text = ChatTemplate(source).render(many).text
    assert text.endswith('{"a": 1}xxx')
    assert len(text) > 700_000


SAYS = ["%999999999d", "{:999999999}", "%*d {:{}}", "1234567890123", "9" * 5000, "{{ 9 ** 9 ** 9 }}", "<x>" * 50]


@pytest.mark.parametrize("said", SAYS)
def test_what_a_conversation_says_trips_no_limit(said: str) -> None:
    """Widths and numbers are limited where the template writes them, not where a person does."""
    source = (
        "{% for m in messages %}{{ '%s: %s' % (m.role, m.content) }}{{ '{}'.format(m.content) }}"
        "{{ '%s' | format(m.content) }}{{ m.content | trim | indent(2) | string }}{{ m.content | tojson }}"
        "{{ n | default(0) }}{{ n | string }}{{ n | tojson }}{{ n | round }}{{ m.content.strip() ~ n }}{% endfor %}"
    )
    arguments = {"n": 123_456_789_012}
    text = ChatTemplate(source).render([Message(role="user", content=said)], arguments=arguments).text
    assert text.count(said) >= 6
    assert "123456789012" in text


def test_a_template_that_cannot_be_compiled_is_a_sentence() -> None:
    for source in ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ " + "-" * 20000 + "1 }}", "x" * 3_000_000):
        with pytest.raises(TemplateError, match="chat template"):
            ChatTemplate(source).render(CHAT)


FRAGMENTS = st.lists(
    st.sampled_from(
        [*ESCAPES[:8], "{% for m in messages %}", "{% endfor %}", "{{ m.content }}", "{% if x %}", "{% endif %}", "{{",
         "}}", "{%", "%}", "|", "'", "messages", "[0]", ".role", "x ~ y", "{# c #}", "\x00", "\u202e",
         "{% set a = 1 %}"]
    )
    | st.text(max_size=8),
    max_size=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(FRAGMENTS)
def test_any_source_is_a_text_or_a_sentence(fragments: list[str]) -> None:
    _text_or_sentence("".join(fragments), CHAT)
