"""The input: keys, pastes of every kind, completion, history, attachments, commands."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from chat_pilot import chat, words
from chat_script import Play, ScriptedEngine
from textual import events

from spec_local.sampling.params import Sampling
from spec_local.ui.commands import COMMANDS, parse
from spec_local.ui.completion import CompletionList


async def paste(c, text: str) -> None:
    c.app.composer.post_message(events.Paste(text))
    await c.pilot.pause()


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter"])
async def test_a_new_line_is_not_a_send(key):
    async with chat() as c:
        await c.pilot.press("a", key, "b")
        assert c.app.composer.text == "a\nb"
        await c.pilot.press("enter")
        await c.until(lambda: c.engine.requests)
        assert c.engine.requests[0]["prompt"][0]["content"] == "a\nb"
        await c.idle()


async def test_the_input_grows_to_a_cap():
    async with chat() as c:
        heights = []
        for _ in range(14):
            await c.pilot.press("ctrl+j")
            heights.append(c.app.composer.size.height)
        assert heights[:3] == [2, 3, 4]
        assert heights[-1] == 10


# Case 45: whatever is pasted, nothing is sent before Enter, and then all of it.
PASTES = {
    "three lines": "one\ntwo\nthree",
    "two thousand lines": "\n".join(f"line {i}" for i in range(2000)),
    "one long line": "x" * 200_000,
    "tabs": "\tif x:\n\t\treturn",
    "a trailing line end": "text\n",
    "control characters": "a\x1b[31mred\x1b[0m\x07b",
    "markup": "[bold]no[/] [/] \\[x] [link=http://x]y[/link]",
    "emoji": "👩🏽‍🚀 क्षि 한국어",
}


@pytest.mark.parametrize("text", PASTES.values(), ids=PASTES.keys())
async def test_a_paste_arrives_whole_and_only_on_enter(text):
    async with chat(engine=ScriptedEngine(n_ctx=10**6)) as c:
        begin = time.monotonic()
        await paste(c, text)
        assert time.monotonic() - begin < 5
        assert c.engine.requests == []
        assert c.app.composer.whole_text == text
        await c.pilot.press("enter")
        await c.until(lambda: c.engine.requests)
        assert c.engine.requests[0]["prompt"][0]["content"] == text
        await c.idle()
        assert "\x1b" not in c.screen_text()


@pytest.mark.parametrize("ends", ["\r\n", "\r"])
async def test_line_ends_of_a_paste_become_line_feeds(ends):
    async with chat() as c:
        await paste(c, f"one{ends}two{ends}")
        assert c.app.composer.whole_text == "one\ntwo\n"


async def test_a_paste_among_words_and_another_paste_keep_their_places():
    async with chat(engine=ScriptedEngine(n_ctx=10**6)) as c:
        await c.pilot.press("a", "space")
        await paste(c, "1\n" * 100)
        await c.pilot.press("space", "b", "space")
        await paste(c, "2\n" * 100)
        assert "⟦paste 1: 101 lines⟧" in c.screen_text()
        assert c.app.composer.whole_text == f"a {'1' + chr(10)}" + "1\n" * 99 + " b " + "2\n" * 100


async def test_a_paste_while_an_answer_comes():
    gate = threading.Event()
    async with chat(Play(tokens=words(5), gate=gate)) as c:
        await c.enter("go")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await paste(c, PASTES["two thousand lines"])
        gate.set()
        await c.idle()
        assert c.app.composer.whole_text == PASTES["two thousand lines"]
        assert c.texts[1] == "".join(words(5))


async def test_a_paste_beyond_the_context_is_refused_with_its_length_and_stays_in_the_input():
    async with chat(Play(tokens=("fine",)), engine=ScriptedEngine(n_ctx=1000)) as c:
        text = "word " * 3000
        await paste(c, text)
        await c.pilot.press("enter")
        await c.until(lambda: "too long" in c.notices)
        await c.idle()
        assert "3004 tokens" in c.notices
        assert c.app.composer.whole_text == text
        assert c.texts == []
        c.app.composer.clear_all()
        await c.ask("short")
        assert len(c.texts) == 2


async def test_history_of_prompts(tmp_path):
    path = tmp_path / "c.sqlite3"
    async with chat(store=path) as c:
        await c.ask("first")
        await c.ask("second\nof two lines")
    async with chat(store=path) as c:
        await c.pilot.press("n", "e", "w", "up")
        assert c.app.composer.text == "second\nof two lines"
        await c.pilot.press("up", "up")
        assert c.app.composer.text == "first"
        await c.pilot.press("down", "down", "down")
        assert c.app.composer.text == "new", "what was being written is still there"


async def test_commands_complete():
    async with chat() as c:
        await c.pilot.press("slash", "r", "e", "g")
        await c.until(lambda: c.app.query_one(CompletionList).display)
        assert "/regenerate" in c.screen_text()
        await c.pilot.press("tab")
        assert c.app.composer.text == "/regenerate"
        await c.pilot.press("escape")
        assert not c.app.query_one(CompletionList).display


async def test_enter_does_a_command_that_is_written_out_and_completes_one_that_is_not():
    async with chat() as c:
        await c.pilot.press("slash", "k", "e")
        await c.until(lambda: c.app.query_one(CompletionList).display)
        await c.pilot.press("enter")
        assert c.app.composer.text == "/keys"
        await c.pilot.press("enter")
        await c.until(lambda: len(c.app.screen_stack) == 2)
        assert c.app.composer.text == ""


async def test_values_of_commands_complete():
    async with chat() as c:
        await c.write("/set temp")
        await c.pilot.press("tab")
        assert c.app.composer.text == "/set temperature "
        await c.write("/set temperature 0.25")
        await c.pilot.press("enter")
        await c.until(lambda: c.dialogue.conversation.settings == {"temperature": 0.25})
        await c.ask("q")
        assert c.engine.requests[0]["sampling"].temperature == 0.25


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("temperature=0", {"temperature": 0.0}),
        ("top-k = 5", {"top_k": 5}),
        ("stop ==", {"stop": ("==",)}),
    ],
)
async def test_values_are_set_with_an_equals_sign_too(text, settings):
    async with chat() as c:
        await c.enter(f"/set {text}")
        await c.until(lambda: "from the next answer on" in c.notices)
        sampling = c.dialogue.conversation.sampling(Sampling())
        assert {name: getattr(sampling, name) for name in settings} == settings


async def test_the_table_of_values_fits_beside_the_panel():
    async with chat(size=(100, 40)) as c:
        c.dialogue.base = Sampling(temperature=0.5)
        await c.enter("/set")
        await c.until(lambda: "set at start" in c.screen_text())
        assert c.app.panel.display
        rows = [row.split("│")[0].strip(" ▎") for row in c.screen_text().splitlines()]
        for name in Sampling.model_fields:
            row = next(row for row in rows if row.split()[:1] == [name])
            assert row.endswith(("default", "set at start", "model file")), row


async def test_paths_complete_and_are_attached(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes [draft].txt").write_text("the contents\n")
    (tmp_path / "sub").mkdir()
    async with chat() as c:
        for key in ("@", "n"):
            c.app.composer.insert(key)
        await c.until(lambda: c.app.query_one(CompletionList).display)
        await c.pilot.press("tab")
        assert c.app.composer.text == '@"notes [draft].txt" '
        await c.pilot.press("enter")
        await c.until(lambda: c.engine.requests)
        await c.idle()
        content = c.engine.requests[0]["prompt"][0]["content"]
        assert content == '@"notes [draft].txt" \n\nnotes [draft].txt:\n```txt\nthe contents\n```'
        assert "+ notes [draft].txt, 1 line" in c.screen_text()
        assert c.texts[0] == '@"notes [draft].txt" '


async def test_enter_sends_a_path_that_is_written_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    async with chat() as c:
        c.app.composer.insert("see @a.txt")
        await c.until(lambda: c.app.query_one(CompletionList).display)
        await c.pilot.press("enter")
        await c.until(lambda: c.engine.requests)
        await c.idle()
        assert c.texts[0] == "see @a.txt"


async def test_a_file_that_cannot_be_attached_leaves_the_message_in_the_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.bin").write_bytes(b"\xff\x00")
    async with chat() as c:
        await c.enter("see @b.bin")
        await c.until(lambda: "not UTF-8" in c.notices)
        assert c.app.composer.text == "see @b.bin"
        assert c.engine.requests == []


async def test_a_mistyped_path_is_refused_at_once_and_other_mentions_are_sent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gate = threading.Event()
    async with chat(Play(tokens=words(3), gate=gate)) as c:
        await c.enter("@question.tx what is it")
        await c.until(lambda: "There is no file question.tx." in c.notices)
        assert c.app.composer.text == "@question.tx what is it"
        assert c.engine.requests == []
        await c.enter("ask @ada about @property and `@question.tx`")
        await c.until(lambda: c.engine.requests)
        await c.enter("see @./missing")
        await c.until(lambda: "There is no file ./missing." in c.notices)
        assert c.dialogue.queued is None, "it is refused before it waits"
        assert c.app.composer.text == "see @./missing"
        gate.set()
        await c.idle()


async def test_an_unknown_command_names_the_nearest_and_keeps_the_text():
    async with chat() as c:
        await c.enter("/regenrate")
        await c.until(lambda: "Did you mean /regenerate?" in c.notices)
        assert c.app.composer.text == "/regenrate"


@pytest.mark.parametrize(
    "text", ["/usr/bin is a folder", "/", "/ not a command", " /new", "/new\nline", "/* comment */"]
)
async def test_what_only_looks_like_a_command_is_a_message(text):
    assert parse(text) is None


async def test_system_message_export_and_title(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with chat(Play(tokens=("yes",))) as c:
        await c.enter("/system Answer [briefly].")
        await c.until(lambda: "System message: Answer [briefly]." in c.notices)
        await c.ask("q")
        assert c.engine.requests[0]["system"] == "Answer [briefly]."
        await c.enter("/title A [bold]title[/]")
        await c.until(lambda: "A [bold]title[/]" in c.screen_text())
        await c.enter("/export out.json")
        await c.until(lambda: "Written to" in c.notices)
        whole = json.loads((tmp_path / "out.json").read_text())
        assert (whole["title"], whole["system"]) == ("A [bold]title[/]", "Answer [briefly].")
        assert [m["text"] for m in whole["messages"]] == ["q", "yes"]
        assert whole["messages"][1]["tokens"] == [{"text": "yes", "origin": "plain"}]


async def test_copying_answers_and_code_blocks():
    code = "Look:\n\n```py\nx = 1\n```\n\nand\n\n```\ny\n```\n"
    async with chat(Play(tokens=(code,))) as c:
        await c.enter("/copy")
        await c.until(lambda: "no answer to copy" in c.notices)
        c.app.composer.clear_all()
        await c.ask("q")
        await c.pilot.press("f8")
        assert c.app.clipboard == code
        await c.enter("/copy 2")
        await c.until(lambda: c.app.clipboard == "y\n")
        await c.enter("/copy 3")
        await c.until(lambda: "code blocks 1 to 2" in c.notices)


async def copied(monkeypatch: Any, helper: Any, says: str) -> float:
    """Copy with F8 while `helper` is the system's clipboard; what is said, and how long F8 held up the screen."""
    import sys
    import time
    from types import SimpleNamespace

    from spec_local.ui import clipboard

    monkeypatch.setitem(sys.modules, "pyperclip", SimpleNamespace(copy=helper))
    monkeypatch.setattr(clipboard, "HELPER_S", 0.5)
    async with chat(Play(tokens=("yes",))) as c:
        await c.ask("q")
        started = time.monotonic()
        await c.pilot.press("f8")
        held = time.monotonic() - started
        await c.until(lambda: says in c.app.status_line._flash)
        assert c.app.clipboard == "yes"
    return held


async def test_a_clipboard_helper_that_hangs_freezes_nothing(monkeypatch):
    hanging = threading.Event()
    held = await copied(monkeypatch, lambda _: hanging.wait(20), "was sent to the terminal")
    assert held < 5
    hanging.set()


async def test_words_about_the_clipboard_are_those_of_what_happened(monkeypatch):
    def none(_: str) -> None:
        raise RuntimeError("no clipboard")

    await copied(monkeypatch, none, "was sent to the terminal")
    got: list[str] = []
    await copied(monkeypatch, got.append, "The answer is on the clipboard.")
    assert got == ["yes"]


async def test_ctrl_c_stops_then_asks_then_leaves():
    gate = threading.Event()
    async with chat(Play(tokens=words(9), gate=gate)) as c:
        await c.enter("go")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await c.pilot.press("ctrl+c")
        await c.idle()
        assert c.app.is_running
        assert c.dialogue.conversation.path()[-1].state == "stopped"
        await c.pilot.press("ctrl+c")
        assert "Ctrl+C again leaves" in c.screen_text()
        await c.pilot.press("ctrl+c")
        await c.until(lambda: not c.app.is_running or c.app._exit)


async def test_every_command_is_in_the_keys_panel_and_the_palette():
    async with chat(size=(120, 90)) as c:
        await c.pilot.press("f1")
        await c.until(lambda: len(c.app.screen_stack) == 2)
        shown = c.screen_text()
        palette = {command.title for command in c.app.get_system_commands(c.app.screen)}
        for command in COMMANDS:
            assert f"/{command.name}" in shown, command.name
            assert f"/{command.name}" in palette
        await c.pilot.press("escape")
        await c.until(lambda: len(c.app.screen_stack) == 1)


def test_no_two_commands_share_a_name_or_a_key():
    for names in (
        [c.name for c in COMMANDS],
        [k for c in COMMANDS for k in c.keys],
        [k for c in COMMANDS for k in c.message_keys],
    ):
        assert len(names) == len(set(names))
