"""Asking, stopping, answering again, branches: what the transcript and the store hold afterwards."""

from __future__ import annotations

import threading

import pytest
from chat_pilot import chat, words
from chat_script import Play, ScriptedEngine

from spec_local.errors import BackendError
from spec_local.session.store import Store


def roles(prompt: list[dict[str, str]]) -> list[str]:
    return [message["role"] for message in prompt]


async def test_an_answer_is_streamed_and_stored():
    async with chat(Play(tokens=("Hello", ", ", "you", "."))) as c:
        await c.ask("Say hello")
        assert c.texts == ["Say hello", "Hello, you."]
        question, answer = c.dialogue.conversation.path()
        assert (question.text, answer.text, answer.state) == ("Say hello", "Hello, you.", "done")
        assert answer.result["seed"] == 1234
        assert c.dialogue.conversation.title == "Say hello"
        assert c.app.composer.text == ""


async def test_turns_follow_each_other_in_the_prompt():
    async with chat(Play(tokens=("one",)), Play(tokens=("two",))) as c:
        await c.ask("first")
        await c.ask("second")
        assert [m["content"] for m in c.engine.requests[1]["prompt"]] == ["first", "one", "second"]


async def test_escape_keeps_the_partial_answer_with_a_mark():
    gate = threading.Event()
    async with chat(Play(tokens=words(50), gate=gate), Play(tokens=("next",))) as c:
        await c.enter("go")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await c.pilot.press("escape")
        await c.idle()
        answer = c.dialogue.conversation.path()[-1]
        assert answer.state == "stopped"
        assert answer.text == c.texts[1] == "word0 "
        assert "stopped here" in c.screen_text()
        await c.ask("and on")
        assert [m["content"] for m in c.engine.requests[1]["prompt"]] == ["go", "word0 ", "and on"]


async def test_stopping_before_the_first_word_gives_the_message_back():
    gate = threading.Event()

    class Waiting(ScriptedEngine):
        def stream(self, *args, **kwargs):
            stream = super().stream(*args, **kwargs)
            gate.wait(20)
            return stream

    engine = Waiting([Play(tokens=("never",), delay=0.05)])
    async with chat(engine=engine) as c:
        await c.enter("a question")
        await c.until(lambda: engine.requests)
        await c.pilot.press("escape")
        gate.set()
        await c.idle()
        assert c.texts == []
        assert c.app.composer.text == "a question"
        assert c.dialogue.conversation.path() == []
        assert "back in the input" in c.notices
        await c.pilot.press("enter")
        await c.until(lambda: c.texts == ["a question", "never"])


async def test_regenerate_makes_a_branch_and_keeps_the_old_answer():
    async with chat(Play(tokens=("one",)), Play(tokens=("two",))) as c:
        await c.ask("question")
        await c.pilot.press("ctrl+r")
        await c.until(lambda: len(c.engine.requests) == 2)
        await c.idle()
        assert c.texts == ["question", "two"]
        assert c.engine.requests[1]["prompt"] == c.engine.requests[0]["prompt"]
        assert "‹ 2 of 2 ›" in c.screen_text()
        await c.enter("/branch previous")
        await c.until(lambda: c.texts == ["question", "one"])
        assert "‹ 1 of 2 ›" in c.screen_text()


async def test_regenerate_while_streaming_stops_the_first_answer():
    gate = threading.Event()
    async with chat(Play(tokens=words(9), gate=gate), Play(tokens=("two",))) as c:
        await c.enter("question")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await c.pilot.press("ctrl+r")
        await c.until(lambda: c.texts == ["question", "two"])
        await c.idle()
        c.dialogue.conversation.refresh()
        versions = c.dialogue.conversation.siblings(c.dialogue.conversation.path()[-1].id)
        assert [c.dialogue.conversation.message(v).state for v in versions] == ["stopped", "done"]


async def test_editing_an_earlier_message_makes_a_branch():
    async with chat(Play(tokens=("one",)), Play(tokens=("two",)), Play(tokens=("three",))) as c:
        await c.ask("first")
        await c.ask("second")
        await c.pilot.press("ctrl+up", "up", "up", "up", "e")
        await c.until(lambda: c.app.composer.text == "first")
        await c.write("first, better")
        await c.pilot.press("enter")
        await c.until(lambda: c.texts == ["first, better", "three"])
        assert [m["content"] for m in c.engine.requests[2]["prompt"]] == ["first, better"]
        first = c.dialogue.conversation.path()[0]
        await c.dialogue.switch(first.id, -1)
        await c.until(lambda: c.texts == ["first", "one", "second", "two"])


async def test_emptying_the_input_ends_an_edit():
    async with chat(Play(tokens=("one",)), Play(tokens=("two",))) as c:
        await c.ask("first")
        await c.pilot.press("f7")
        await c.until(lambda: c.app.composer.text == "first")
        await c.write("")
        await c.ask("second")
        assert c.texts == ["first", "one", "second", "two"]


async def test_an_edit_does_not_follow_into_another_conversation():
    async with chat(Play(tokens=("one",)), Play(tokens=("two",))) as c:
        await c.ask("first")
        await c.pilot.press("f7")
        await c.until(lambda: c.app.composer.text == "first")
        await c.pilot.press("ctrl+n")
        await c.ask("second")
        assert c.texts == ["second", "two"]


async def test_an_edit_with_a_file_that_cannot_be_attached_is_still_an_edit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.bin").write_bytes(b"\xff")
    async with chat(Play(tokens=("one",)), Play(tokens=("two",))) as c:
        await c.ask("first")
        await c.pilot.press("f7")
        await c.until(lambda: c.app.composer.text == "first")
        await c.write("better @b.bin")
        c.app.composer.completing = False
        await c.pilot.press("enter")
        await c.until(lambda: "not UTF-8" in c.notices)
        await c.write("better")
        await c.pilot.press("enter")
        await c.until(lambda: c.texts == ["better", "two"])


async def test_a_store_that_fails_is_a_message_and_not_the_end(tmp_path):
    gate = threading.Event()
    store = Store(tmp_path / "c.sqlite3")
    async with chat(Play(tokens=words(5), gate=gate), store=store) as c:
        await c.enter("first")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        store._db.execute("DROP TABLE pieces")
        store._db.execute("DROP TABLE messages")
        gate.set()
        await c.until(lambda: not c.dialogue.busy)
        await c.until(lambda: "cannot be" in c.notices)
        assert c.app.is_running


async def test_undo_takes_the_last_question_back():
    async with chat(Play(tokens=("one",))) as c:
        await c.ask("first")
        await c.enter("/undo")
        await c.until(lambda: c.app.composer.text == "first")
        assert c.texts == []


async def test_a_message_sent_while_answering_waits_its_turn():
    gate = threading.Event()
    async with chat(Play(tokens=words(4), gate=gate), Play(tokens=("two",))) as c:
        await c.enter("first")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await c.enter("second")
        assert c.dialogue.queued == "second"
        await c.enter("third")
        assert c.app.composer.text == "third", "only one waits; the other stays in the input"
        gate.set()
        await c.until(lambda: len(c.texts) == 4 and c.texts[3] == "two")
        assert c.texts[2] == "second"


async def test_escape_takes_a_waiting_message_back_and_only_the_next_one_stops_the_answer():
    gate = threading.Event()
    async with chat(Play(tokens=words(4), pattern=((8, 0),), gate=gate), size=(80, 24)) as c:
        await c.enter("first")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await c.enter("second")
        await c.until(lambda: "tok/pass" in c.screen_text(), "the status line has figures")
        assert c.screen_text().splitlines()[-1].endswith("Esc takes it back")
        await c.pilot.press("escape")
        assert c.app.composer.text == "second"
        assert c.dialogue.queued is None
        assert c.dialogue.busy
        assert c.engine.cancels == 0
        assert c.screen_text().splitlines()[-1].endswith("Esc stops")
        await c.pilot.press("escape")
        await c.idle()
        assert c.dialogue.conversation.path()[-1].state == "stopped"
        assert c.app.composer.text == "second"
        assert len(c.engine.requests) == 1


async def test_the_stop_command_stops_the_answer_whatever_waits():
    gate = threading.Event()
    async with chat(Play(tokens=words(4), gate=gate)) as c:
        await c.enter("first")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await c.enter("second")
        await c.enter("/stop")
        await c.idle()
        assert c.dialogue.conversation.path()[-1].state == "stopped"
        assert c.app.composer.text == "second"


async def test_a_message_sent_before_the_model_is_there_waits_for_it():
    hold = threading.Event()
    engine = ScriptedEngine([Play(tokens=("late",))])

    def load(options, progress):
        hold.wait(20)
        return engine

    async with chat(engine=engine, loader=load, ready=False) as c:
        await c.enter("early")
        assert c.dialogue.queued == "early"
        hold.set()
        await c.until(lambda: c.texts == ["early", "late"])


async def test_an_engine_error_stands_in_the_transcript_and_the_chat_goes_on():
    failing = Play(tokens=("half ",), error=BackendError("The device [/] is gone.", "Look [bold]after it."))
    async with chat(failing, Play(tokens=("whole",))) as c:
        await c.ask("question")
        assert c.dialogue.conversation.path()[-1].state == "failed"
        shown = c.screen_text()
        assert "half" in shown
        assert "The device [/] is gone. Look [bold]after it." in shown
        assert "Try again" in shown
        await c.choose("Try again")
        await c.until(lambda: c.texts == ["question", "whole"])


async def test_an_unexpected_error_does_not_end_the_program():
    async with chat(Play(tokens=("half ",), error=RuntimeError("a bug")), Play(tokens=("fine",))) as c:
        await c.ask("question")
        assert "a bug" in c.screen_text()
        await c.ask("again")
        assert c.texts[-1] == "fine"
        assert roles(c.engine.requests[1]["prompt"]) == ["user", "assistant", "user"]


async def test_new_conversation_while_streaming_keeps_the_partial_answer(tmp_path):
    gate = threading.Event()
    store = Store(tmp_path / "c.sqlite3")
    async with chat(Play(tokens=words(9), gate=gate), Play(tokens=("fresh",)), store=store) as c:
        await c.enter("first")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        old = c.dialogue.conversation.id
        assert old is not None
        await c.pilot.press("ctrl+n")
        await c.ask("second")
        assert c.texts == ["second", "fresh"]
        assert [m["content"] for m in c.engine.requests[1]["prompt"]] == ["second"]
        assert [(m.text, m.state) for m in store.messages(old)][1] == ("word0 ", "stopped")


async def test_resume_shows_what_was_there_and_goes_on(tmp_path):
    path = tmp_path / "c.sqlite3"
    async with chat(Play(tokens=("one",)), store=path) as c:
        await c.ask("first")
    latest = Store(path).latest()
    async with chat(Play(tokens=("two",)), store=path, resume=latest) as c:
        await c.until(lambda: c.texts == ["first", "one"])
        await c.ask("second")
        assert [m["content"] for m in c.engine.requests[0]["prompt"]] == ["first", "one", "second"]


async def test_the_picker_finds_a_conversation_by_a_word_in_it(tmp_path):
    async with chat(Play(tokens=("The sieve of Eratosthenes",)), Play(tokens=("other",))) as c:
        await c.ask("primes?")
        await c.pilot.press("ctrl+n")
        await c.ask("weather?")
        await c.enter("/resume eratos")
        await c.until(lambda: len(c.app.screen_stack) == 2)
        await c.pilot.press("enter")
        await c.until(lambda: c.texts == ["primes?", "The sieve of Eratosthenes"])


async def test_long_conversations_show_their_end_and_the_rest_on_request():
    async with chat(Play(tokens=("ok",))) as c:
        for i in range(13):
            await c.ask(f"question {i}")
        identity = c.dialogue.conversation.id
        assert identity is not None
        await c.dialogue.open(identity)
        await c.until(lambda: len(c.texts) == 20)
        assert c.texts[-2] == "question 12"
        assert "6 earlier messages" in c.notices
        await c.dialogue.scene.show(everything=True)
        assert len(c.texts) == 26


@pytest.mark.parametrize("key", ["ctrl+q"])
async def test_leaving_while_streaming_keeps_what_is_there(tmp_path, key):
    path = tmp_path / "c.sqlite3"
    gate = threading.Event()
    async with chat(Play(tokens=words(9), gate=gate), store=path) as c:
        await c.enter("first")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await c.pilot.press(key)
    store = Store(path)
    latest = store.latest()
    assert latest is not None
    assert [(m.text, m.state) for m in store.messages(latest)][1] == ("word0 ", "stopped")
