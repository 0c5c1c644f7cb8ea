"""Input lines: every fault has its own word, every good line gets through."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from spec_local.batch import lines
from spec_local.batch.failures import failure_type
from spec_local.batch.prompt_template import PromptTemplate
from spec_local.batch.records import BadLine, Item, Layout, read_items
from spec_local.errors import UsageError


def read(data: bytes, **layout: Any) -> list[Item | BadLine]:
    return list(read_items(io.BytesIO(data), Layout(**layout)))


def one(data: bytes, **layout: Any) -> Item:
    (item,) = read(data, **layout)
    assert isinstance(item, Item), item
    return item


def fault(data: bytes, **layout: Any) -> tuple[str, str]:
    (item,) = read(data, **layout)
    assert isinstance(item, BadLine), item
    return failure_type(item.error), item.error.message


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        (b"{bad", "invalid_json", "column 2"),
        (b'{"prompt": "a"} x', "invalid_json", "column 17"),
        (b"[]", "not_an_object", "a list"),
        (b'"str"', "not_an_object", "a text"),
        (b"null", "not_an_object", "null"),
        (b"7", "not_an_object", "a number"),
        (b"{}", "missing_prompt", "prompt"),
        (b'{"prompt": null}', "missing_prompt", "prompt"),
        (b'{"prompt": 5}', "wrong_type", "prompt is a number"),
        (b'{"prompt": ""}', "empty_prompt", "empty"),
        (b'{"prompt": " \\n\\t"}', "empty_prompt", "empty"),
        (b'{"prompt": "a\xffb"}', "invalid_utf8", "0xff at offset 13"),
        (b'{"prompt": "\\ud800"}', "lone_surrogate", "'prompt'"),
        (b'{"prompt": "a", "deep": [{"x": "\\udfff"}]}', "lone_surrogate", "'deep'"),
        (b'{"prompt": "a", "\\ud800": 1}', "lone_surrogate", "ud800"),
        (b'{"prompt": "a", "x": NaN}', "not_a_number", "NaN"),
        (b'{"prompt": "a", "x": -Infinity}', "not_a_number", "Infinity"),
        (b'{"prompt": "a", "x": 1e999}', "not_a_number", "1e999"),
        (b'{"prompt": "a", "x": ' + b"9" * 5000 + b"}", "invalid_json", "number"),
        (b'{"prompt": "a", "prompt": "b"}', "invalid_json", "twice"),
        (b'{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "two_prompts", "both"),
        (b'{"messages": []}', "empty_prompt", "no text"),
        (b'{"messages": [{"role": "user", "content": ""}]}', "empty_prompt", "no text"),
        (b'{"messages": "hello"}', "wrong_type", "messages is a text"),
        (b'{"messages": ["hello"]}', "wrong_type", "messages[0]"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "wrong_type", "messages[0].content"),
        (b'{"messages": [{"content": "a"}]}', "wrong_type", "messages[0].role"),
        (b'{"prompt": "a", "id": 1.5}', "wrong_type", "id"),
        (b'{"prompt": "a", "id": true}', "wrong_type", "id is true"),
        (b'{"prompt": "a", "system": 5}', "wrong_type", "system"),
        (b'{"prompt": "a", "temperature": "hot"}', "invalid_sampling", "temperature"),
        (b'{"prompt": "a", "temperature": -1}', "invalid_sampling", "temperature"),
        (b'{"prompt": "a", "temperature": true}', "invalid_sampling", "temperature"),
        (b'{"prompt": "a", "top_k": 1.5}', "invalid_sampling", "top_k"),
        (b'{"prompt": "a", "seed": -1}', "invalid_sampling", "seed"),
        (b'{"prompt": "a", "json_schema": "x"}', "wrong_type", "json_schema"),
        (b'{"prompt": "a", "json_schema": {}, "grammar": "x"}', "invalid_grammar", "both"),
        (b"[" * 100_000, "invalid_json", "deep"),
    ],
)
def test_every_fault_has_its_word(line: bytes, kind: str, says: str) -> None:
    got_kind, message = fault(line)
    assert got_kind == kind
    assert says in message


def test_a_fault_costs_its_line_only_and_keeps_number_and_id() -> None:
    items = read(b'{"prompt": "a"}\n\n{"id": "x", "prompt": 5}\n   \n{"prompt": "b"}')
    assert [(item.line, item.id, type(item)) for item in items] == [(1, None, Item), (3, "x", BadLine), (5, None, Item)]


def test_bad_byte_is_reported_with_both_offsets() -> None:
    _, bad = read(b'{"prompt": "a"}\n{"prompt": "\xe4"}\n')
    assert isinstance(bad, BadLine)
    assert "offset 12 of the line, 28 of the input" in bad.error.message


@pytest.mark.parametrize("data", [b'\xef\xbb\xbf{"prompt": "a"}', b'{"prompt": "a"}\r\n', b'{"prompt": "a"}'])
def test_byte_order_mark_crlf_and_missing_final_newline(data: bytes) -> None:
    assert one(data).prompt == "a"


def test_offsets_count_the_byte_order_mark() -> None:
    kind, message = fault(b"\xef\xbb\xbf\xff")
    assert kind == "invalid_utf8"
    assert "offset 0 of the line, 3 of the input" in message


def test_utf16_is_one_error_for_the_whole_input() -> None:
    with pytest.raises(UsageError, match="UTF-16"):
        read('{"prompt": "a"}\n'.encode("utf-16"))


def test_a_line_without_end_is_refused_without_being_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 2**20)

    class Endless(io.RawIOBase):
        """10 MB of one line, then a good one."""

        sent = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            limit = 10 * 2**20
            if self.sent < limit:
                buffer[:] = b"x" * len(buffer)
                self.sent += len(buffer)
                return len(buffer)
            tail = b'\n{"prompt": "a"}\n' if self.sent < limit + 2**40 else b""
            self.sent += 2**40
            buffer[: len(tail)] = tail
            return len(tail)

    bad, good = read_items(io.BufferedReader(Endless(), 2**20), Layout())
    assert isinstance(bad, BadLine)
    assert failure_type(bad.error) == "line_too_long"
    assert isinstance(good, Item)
    assert good.line == 2


def test_fields_of_a_line() -> None:
    line = {
        "id": 7, "system": "s", "messages": [{"role": "user", "content": "hi", "name": "x"}], "temperature": 0,
        "stop": "END", "logit_bias": {"12": -100}, "seed": 0, "max_tokens": None, "label": {"x": [1, None]},
        "temprature": 1,
    }  # fmt: skip
    item = one(json.dumps(line).encode())
    assert item.id == 7
    assert item.system == "s"
    assert item.prompt == ({"role": "user", "content": "hi", "name": "x"},)
    assert item.sampling == {"temperature": 0.0, "stop": ("END",), "logit_bias": {12: -100.0}, "seed": 0}
    assert item.fields == line
    assert item.unknown == ("label", "temprature")


def test_surrogate_pairs_are_characters() -> None:
    assert one(b'{"prompt": "\\ud83d\\ude00"}').prompt == "\N{GRINNING FACE}"


def test_plain_text_is_one_prompt_a_line() -> None:
    data = 'erste\r\n\n  \n{"prompt": 1}\n“dritte”'.encode()
    items = read(data, format="text")
    assert [(item.line, item.prompt) for item in items if isinstance(item, Item)] == [
        (1, "erste"), (4, '{"prompt": 1}'), (5, "“dritte”"),
    ]  # fmt: skip
    assert fault(b"a\xff", format="text")[0] == "invalid_utf8"


def test_template() -> None:
    template = PromptTemplate("{{x}} Summarise in {n} words: {text}{tags}")
    assert template.fields == ["n", "text", "tags"]
    item = one(b'{"text": "T {n}", "n": 3, "tags": ["\xc3\xa4"]}', template=template)
    assert item.prompt == '{x} Summarise in 3 words: T {n}["ä"]'
    assert one(b"hello", format="text", template=PromptTemplate("Say {text}/{prompt}")).prompt == "Say hello/hello"
    assert fault(b'{"n": 1, "text": "a"}', template=template)[0] == "missing_field"
    assert fault(b'{"n": null, "text": "a", "tags": 1}', template=template)[0] == "wrong_type"
    assert fault(b'{"x": " "}', template=PromptTemplate("{x}"))[0] == "empty_prompt"
    assert fault(b'{"x": "a", "messages": []}', template=PromptTemplate("{x}"))[0] == "two_prompts"


@pytest.mark.parametrize("text", ["{", "a}", "{}", "{ }", "{a{b}}"])
def test_templates_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="template"):
        PromptTemplate(text)


def test_template_reads_no_attributes() -> None:
    assert fault(b'{"x": "a"}', template=PromptTemplate("{x.__class__}"))[0] == "missing_field"


def test_csv() -> None:
    data = b'\xef\xbb\xbfid,prompt,note\r\n1,"one, ""quoted""",n\r\n,"two\nlines",\r\n\r\n'
    data += b"3,\xff,x\r\n4,ok\r\n5,  ,x\r\n6,six,x"
    items = read(data, format="csv")
    assert [(item.line, item.id, item.prompt) for item in items if isinstance(item, Item)] == [
        (2, "1", 'one, "quoted"'), (3, None, "two\nlines"), (9, "6", "six"),
    ]  # fmt: skip
    faults = {item.line: failure_type(item.error) for item in items if isinstance(item, BadLine)}
    assert faults == {6: "invalid_utf8", 7: "invalid_csv", 8: "empty_prompt"}


def test_csv_columns() -> None:
    assert one(b"question\nwhy?\n", format="csv").prompt == "why?"
    assert one(b"q,a\nwhy?,no\n", format="csv", column="a").prompt == "no"
    assert one(b"q,a\nwhy?,no\n", format="csv", template=PromptTemplate("{q} {a}")).prompt == "why? no"
    assert read(b"\n\nq,a\n", format="csv", column="q") == []
    assert read(b"", format="csv") == []
    for layout, says in (({}, "no column 'prompt'; it has: q, a"), ({"column": "x"}, "no column 'x'")):
        with pytest.raises(UsageError, match=says):
            read(b"q,a\n1,2\n", format="csv", **layout)
    with pytest.raises(UsageError, match="twice"):
        read(b"a,a\n1,2\n", format="csv", column="a")


def test_csv_quote_without_end_is_one_error_with_its_line() -> None:
    items = read(b'prompt\ngood\n"bad\nand more\n', format="csv")
    assert [item.line for item in items] == [2, 3]
    assert isinstance(items[1], BadLine)
    assert failure_type(items[1].error) == "invalid_csv"


def test_json_field_as_prompt() -> None:
    assert one(b'{"q": "why?"}', column="q").prompt == "why?"
    assert "neither q nor messages" in fault(b'{"prompt": "why?"}', column="q")[1]
