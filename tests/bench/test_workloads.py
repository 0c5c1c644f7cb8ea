"""Built-in workloads and a person's own prompts."""

from __future__ import annotations

import pytest

from spec_local.bench.workloads import BenchPrompt, builtin_workloads, choose_workloads, parse_prompts
from spec_local.errors import UsageError


def prompts(text: str) -> list[object]:
    (workload,) = parse_prompts(text, "mine.txt")
    assert workload.name == workload.title == "mine.txt"
    return [prompt.prompt for prompt in workload.prompts]


def test_seven_kinds_of_text_with_five_prompts_each():
    workloads = builtin_workloads()
    assert [w.name for w in workloads] == ["code", "edit", "chat", "summary", "translate", "arithmetic", "json"]
    for workload in workloads:
        assert len(workload.prompts) >= 5
        assert len({p.name for p in workload.prompts}) == len(workload.prompts)
        assert all(isinstance(p.prompt, str) and len(p.prompt) > 40 for p in workload.prompts)
    texts = [p.prompt for w in workloads for p in w.prompts]
    assert len(set(map(str, texts))) == len(texts)
    for name in ("edit", "summary", "translate", "json"):  # what is to be worked on is in the prompt
        (workload,) = choose_workloads([name])
        assert all(len(str(p.prompt)) > 400 for p in workload.prompts)


def test_workloads_are_chosen_by_name_and_cut():
    assert [w.name for w in choose_workloads(["json", "code"])] == ["code", "json"]
    assert len(choose_workloads(["chat"])[0].first(2).prompts) == 2
    with pytest.raises(UsageError, match=r"no workload 'poems'.*There are code, edit"):
        choose_workloads(["poems"])


def test_plain_text_one_prompt_a_line():
    assert prompts("first question\nsecond question\n") == ["first question", "second question"]
    assert prompts("\n\nonly one\n\n") == ["only one"]


def test_plain_text_one_prompt_a_paragraph():
    assert prompts("first line\nof one\n\n\n  second\r\n\r\nthird") == ["first line\nof one", "second", "third"]


def test_plain_text_between_lines_of_dashes():
    assert prompts("---\ncode:\n\ndef f():\n    pass\n---\n\nnext\n--- \n") == ["code:\n\ndef f():\n    pass", "next"]


def test_json_lines_with_everything():
    lines = [
        '{"prompt": "hello", "id": "x", "workload": "talk"}',
        "",
        '{"messages": [{"role": "user", "content": "again"}], "system": "short"}',
        '{"prompt": "hello", "id": "x", "workload": "talk"}',
    ]
    talk, mine = parse_prompts("\n".join(lines), "mine.jsonl")
    assert (talk.name, [p.name for p in talk.prompts]) == ("talk", ["x", "x (line 4)"])
    assert mine.prompts == (BenchPrompt("3", [{"role": "user", "content": "again"}], "short"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no prompt in mine"),
        (" \n \n", "no prompt in mine"),
        ("---\n---\n", "no prompt in mine"),
        ('{"prompt": "a"}\n{bad', "Line 2 of mine is not JSON"),
        ('{"prompt": "a"}\n[]', "Line 2 of mine is no JSON object"),
        ('{"question": "a"}', "Line 1 of mine asks nothing"),
        ('{"prompt": 5}', "Line 1 of mine asks nothing"),
        ('{"prompt": " "}', "Line 1 of mine asks nothing"),
        ('{"prompt": "a", "messages": []}', "asks nothing|messages"),
        ('{"messages": [{"role": "user"}]}', "Line 1 of mine asks nothing"),
        ('{"prompt": "a", "system": 3}', "workload and system are texts"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, words: str):
    if text == '{"prompt": "a", "messages": []}':
        with pytest.raises(UsageError, match="asks nothing"):
            parse_prompts(text, "mine")
        return
    with pytest.raises(UsageError, match=words):
        parse_prompts(text, "mine")
