"""The families' table: how each template renders, and how each reply is read, in pieces of any length."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st
from template_samples import CALL, SAMPLES, TOOL, Sample

from spec_local.session.families import CHANNEL_TAGS, PYTHON_TAG, TAGS, calls_of, thinking_of
from spec_local.session.reply import Parser, make_parser
from spec_local.session.template import ChatTemplate

SIZES = (1, 2, 3, 7, 1000)


def _parser(sample: Sample, tools: tuple[Any, ...] = (), *, opened: bool | None = None) -> Parser:
    thinking, calls = thinking_of(sample.source, ()), calls_of(sample.source)
    if opened is None:
        opened = thinking is not None and not thinking.channels and sample.ends.rstrip().endswith(thinking.open)
    return make_parser(thinking, calls, opened=opened, spelt=TAGS, tools=tools)


def _parts(events: Any) -> tuple[str, str, list[Any]]:
    thought, answer, calls = "", "", []
    for kind, what in events:
        if kind == "thinking":
            thought += what
        elif kind == "answer":
            answer += what
        else:
            calls += what
    return thought, answer, calls


def _read(parser: Parser, reply: str, size: int) -> tuple[str, str, list[Any]]:
    pieces = (
        ["".join(piece) for piece in itertools.batched(reply, size)]
        if hasattr(itertools, "batched")
        else [reply[i : i + size] for i in range(0, len(reply), size)]
    )
    events = [event for piece in pieces for event in parser.push(piece)]
    return _parts([*events, *parser.finish()])


@pytest.mark.parametrize("name", SAMPLES)
def test_each_template_is_of_its_family_and_ends_as_documented(name: str) -> None:
    sample = SAMPLES[name]
    thinking, calls = thinking_of(sample.source, ()), calls_of(sample.source)
    assert (thinking.family if thinking else "plain") == sample.family
    assert (calls.family if calls else None) == sample.calls
    text = ChatTemplate(sample.source).render([{"role": "user", "content": "Hi"}]).text
    assert text.endswith(sample.ends)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.replies])
def test_replies_are_read_into_the_same_parts_in_any_pieces(name: str, size: int) -> None:
    for reply, thought, answer in SAMPLES[name].replies:
        for tools in ((), (TOOL,)):
            assert _read(_parser(SAMPLES[name], tools), reply, size) == (thought, answer, []), reply


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.call_replies])
def test_calls_are_read_in_any_pieces(name: str, size: int) -> None:
    sample = SAMPLES[name]
    for reply in sample.call_replies:
        _, answer, calls = _read(_parser(sample, (TOOL,)), reply, size)
        assert (calls, answer) == (CALL, ""), reply
        assert _read(_parser(sample), reply, size)[2] == []  # without tools nothing is a call


@pytest.mark.parametrize("size", SIZES)
def test_text_around_calls_and_several_of_them(size: int) -> None:
    sample = SAMPLES["qwen2.5"]
    call = sample.call_replies[0]
    thought, answer, calls = _read(_parser(sample, (TOOL,)), f"Let me see.\n{call}\n{call}\n", size)
    assert (thought, answer, calls) == ("", "Let me see.", CALL * 2)
    broken = '<tool_call>\n{"name": "get_weather", "arg'
    assert _read(_parser(sample, (TOOL,)), broken, size) == ("", broken, [])
    broken = '<tool_call>\n{"name": 5}\n</tool_call> ok'
    assert _read(_parser(sample, (TOOL,)), broken, size) == ("", broken, [])


def test_a_tag_that_is_a_token_is_only_that_token() -> None:
    thinking = thinking_of("<think>", ())
    parser = make_parser(thinking, None, spelt=())
    events = [*parser.push_tag("<think>", "<think>"), *parser.push("say </think>"), *parser.push_tag("</think>")]
    events += [*parser.push("\n\nYes "), *parser.push_tag("</think>", "</think>"), *parser.finish()]
    assert _parts(events) == ("say </think>", "Yes </think>", [])


PARTS = st.lists(
    st.sampled_from(
        [*sorted(TAGS), *CHANNEL_TAGS, PYTHON_TAG, "thought\n", "final", "analysis", "x", " ", "\n", "{", "<", "é"]
    ),
    max_size=14,
).map("".join)


@given(st.sampled_from(sorted(SAMPLES)), PARTS, st.sampled_from([(), (TOOL,)]), st.integers(1, 9))
def test_pieces_change_nothing_and_nothing_raises(name: str, reply: str, tools: tuple[Any, ...], size: int) -> None:
    whole = _read(_parser(SAMPLES[name], tools), reply, 10_000)
    assert _read(_parser(SAMPLES[name], tools), reply, size) == whole


@given(st.sampled_from(["chatml", "gemma-3"]), PARTS)
def test_an_unknown_family_is_plain_text(name: str, reply: str) -> None:
    assert _read(_parser(SAMPLES[name], (TOOL,)), reply, 3) == ("", reply, [])
