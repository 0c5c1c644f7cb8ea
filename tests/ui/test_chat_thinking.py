"""What a model thinks, in the chat: one line that a key opens, never part of the next prompt."""

from __future__ import annotations

import json
import threading

import pytest
from chat_pilot import chat
from chat_script import Play

from spec_local.errors import UsageError
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.store_records import StoredMessage
from spec_local.ui.turn_view import TurnView

THINKS = Play(thoughts=("Hm", ", two", " and two"), tokens=("It is", " four", "."), pattern=((2, 1), (0, 0)))


async def test_thinking_is_one_line_that_a_key_opens():
    async with chat(THINKS, Play(tokens=("Yes.",))) as c:
        await c.ask("2 + 2?")
        assert c.texts == ["2 + 2?", "It is four."]
        assert "▸ thought for 2 s, 3 tokens" in c.screen_text()
        assert "Hm, two" not in c.screen_text()
        await c.pilot.press("ctrl+up", "enter")
        await c.pilot.pause()
        assert "▾ thought for 2 s, 3 tokens" in c.screen_text()
        assert "Hm, two and two" in c.screen_text()
        await c.pilot.press("enter")
        await c.pilot.pause()
        assert "Hm, two" not in c.screen_text()
        await c.pilot.press("escape")
        await c.ask("Sure?")
        assert [m["content"] for m in c.engine.requests[1]["prompt"]] == ["2 + 2?", "It is four.", "Sure?"]


async def test_the_line_grows_while_the_model_thinks():
    gate = threading.Event()
    async with chat(Play(thoughts=("one ", "two ", "three "), tokens=("done",), gate=gate)) as c:
        await c.enter("go")
        await c.until(lambda: "thinking for 0 s, 1 token" in c.screen_text())
        gate.set()
        await c.idle()
        assert "▸ thought for 2 s, 3 tokens" in c.screen_text()
        answer = c.dialogue.conversation.path()[-1]
        assert (answer.text, answer.result["reasoning"]) == ("done", "one two three ")
        tokens = c.dialogue.store.tokens(answer.id)
        assert [token.text for token in tokens] == ["done"]


async def test_set_thinking_reaches_the_engine_and_is_kept():
    async with chat(Play(), Play(), Play()) as c:
        await c.ask("a")
        assert c.engine.requests[0]["reply"] == ReplyOptions()
        for command in (
            "/set thinking off",
            '/set template_args {"reasoning_effort": "low"}',
            "/set thinking-budget 9",
        ):
            await c.enter(command)
            await c.idle()
        await c.ask("b")
        given = ReplyOptions(thinking="off", thinking_budget=9, template_args={"reasoning_effort": "low"})
        assert c.engine.requests[1]["reply"] == given
        await c.enter("/set")
        await c.idle()
        assert "thinking           off" in c.screen_text()
        await c.enter("/unset thinking")
        await c.idle()
        await c.ask("c")
        assert c.engine.requests[2]["reply"] == given.model_copy(update={"thinking": "auto"})
        with pytest.raises(UsageError, match="thinking cannot be used"):
            c.dialogue.conversation.set_sampling("thinking", "perhaps")


def test_calls_of_tools_are_shown_as_such():
    call = {"id": "x", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": "Paris"})}}
    message = StoredMessage(1, 1, None, "assistant", "", "done", 0.0, result={"tool_calls": [call]})
    lines = [line.plain for line in TurnView(message).build(80)]
    assert '→ weather({"city": "Paris"})' in lines
