"""Models in the chat: fetching, loading, choosing, and what a person is told meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest
from chat_pilot import chat, words
from chat_script import Play, ScriptedEngine

from spec_local.errors import Aborted, BackendError
from spec_local.models_manifest import NotPulledError
from spec_local.sampling import Sampling
from spec_local.session.options import EngineOptions
from spec_local.ui.completion import CompletionList
from spec_local.ui.events import EngineFacts
from spec_local.ui.model_picker import Choice, ModelLists, ModelPicker, Row, narrowed


async def test_a_missing_model_is_offered_and_fetched_inside():
    engine = ScriptedEngine()
    here = threading.Event()
    pulled = []

    def load(options, progress):
        if not here.is_set():
            raise NotPulledError("the-model is not on this machine yet.", "the-model", 1_600_000_000)
        return engine

    def pull(name, progress):
        pulled.append(name)
        progress(400_000_000, 1_600_000_000, "downloading the-model.gguf")
        here.set()

    async with chat(engine=engine, loader=load, puller=pull, ready=False) as c:
        await c.until(lambda: "Fetch the-model (1.6 GB)" in c.screen_text())
        assert pulled == [], "nothing is fetched without a yes"
        await c.choose("Fetch")
        await c.until(lambda: c.dialogue.facts is not None)
        assert pulled == ["the-model"]
        assert "is here now" in c.notices
        assert "not on this machine yet" in c.notices, "what was said stays"
        assert "Fetch the-model" not in c.screen_text(), "there is nothing to choose any more"


async def test_a_fetch_can_be_stopped():
    stopped = threading.Event()

    def pull(name, progress):
        try:
            while True:
                progress(1, 2, "downloading")
                stopped.wait(0.01)
        finally:
            stopped.set()

    async with chat(puller=pull) as c:
        await c.enter("/pull qwen2.5-coder-1.5b")
        await c.until(lambda: "fetching qwen2.5-coder-1.5b" in c.dialogue.models.doing)
        await c.pilot.press("escape")
        await c.until(lambda: "was stopped" in c.notices)
        assert stopped.is_set()


async def test_another_model_while_streaming_stops_the_answer_and_loads_once():
    first, second = ScriptedEngine([Play(tokens=words(50), delay=0.02)]), ScriptedEngine(name="other-target")
    engines = iter((first, second))
    async with chat(engine=first, loader=lambda o, p: next(engines)) as c:
        await c.enter("go")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        c.dialogue.load(EngineOptions(target="other-target"))
        await c.until(lambda: c.dialogue.facts is not None)
        assert first.closed
        assert c.dialogue.conversation.path()[-1].state == "stopped" or c.dialogue.busy is False
        assert "other-target" in c.screen_text()
        await c.enter("more")
        await c.until(lambda: len(second.requests) == 1)
        await c.idle()


@pytest.mark.parametrize(
    ("draft", "drafters", "title"),
    [
        ("small", ["model", "text"], "big + small"),
        ("small", ["model"], "big + small"),
        (None, ["text"], "big + text"),
        (None, [], "big"),
    ],
)
def test_the_title_names_what_drafts_and_nothing_where_nothing_does(draft, drafters, title):
    model = {"target": "big", "draft": draft, "drafters": drafters}
    assert EngineFacts(model, 512, (), Sampling(), {}).title == title


async def test_a_load_that_fails_offers_ways_on():
    good = ScriptedEngine()
    tries = []

    def load(options, progress):
        tries.append(options)
        if len(tries) == 1:
            raise BackendError("No memory [/] left.", "Close something.")
        return good

    async with chat(engine=good, loader=load, ready=False) as c:
        await c.until(lambda: "No memory [/] left." in c.screen_text())
        await c.choose("Try again")
        await c.until(lambda: c.dialogue.facts is not None)


async def test_loading_can_be_stopped_and_the_chat_stays():
    engine = ScriptedEngine()
    waits = threading.Event()

    def load(options, progress):
        if not waits.is_set():
            while progress("loading target x.gguf", 0.2):
                waits.wait(0.01)
            raise Aborted("Loading was cancelled.")
        return engine

    async with chat(engine=engine, loader=load, ready=False) as c:
        await c.until(lambda: "loading target" in c.screen_text())
        await c.pilot.press("escape")
        await c.until(lambda: "Loading was stopped." in c.notices)
        waits.set()
        await c.choose("Try again")
        await c.until(lambda: c.dialogue.facts is not None)


class Lists:
    """What the picker asks for."""

    def targets(self):
        return [
            Row("Here", "", None, heading=True),
            Row("the-pair", "with small", Choice(None, "auto", "the-pair")),
            Row("big [x]", "1 GB", Choice("big [x]", "auto"), target="big [x]"),
        ]

    def drafts(self, target):
        return [
            Row("automatic", "", Choice(target, "auto")),
            Row("other", "49135 of 49152 ids mean [different] text.", None),
            Row("small", "", Choice(target, "small")),
        ]


async def test_the_model_picker_greys_out_drafts_that_do_not_fit():
    async with chat() as c:
        chosen: list[Choice | None] = []
        c.app.push_screen(ModelPicker(Lists), chosen.append)  # type: ignore[arg-type]
        await c.until(lambda: "What shall run?" in c.screen_text() and "big [x]" in c.screen_text())
        await c.pilot.press("down", "enter")
        await c.until(lambda: "What shall draft for big [x]?" in c.screen_text())
        assert "ids mean [different] text." in c.screen_text()
        await c.pilot.press("down", "enter")  # over the one that is greyed out
        await c.until(lambda: chosen)
        assert chosen == [Choice("big [x]", "small")]


def test_reasons_come_from_the_pair_check(tiny_target, tiny_draft, tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_LOCAL_MODELS", str(tmp_path))
    lists = ModelLists()
    assert lists.refusal(tiny_target, tiny_draft) == ""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert "broken.gguf" in lists.refusal(tiny_target, tmp_path / "broken.gguf")


ROWS = [
    Row("Here", "", None, heading=True),
    Row("qwen-coder", "1 GB", Choice("qwen-coder", "auto")),
    Row("llama", "2 GB", Choice("llama", "auto")),
    Row("To fetch", "", None, heading=True),
    Row("qwen-large", "40 GB", Choice("qwen-large", "auto")),
]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", ["Here", "qwen-coder", "llama", "To fetch", "qwen-large"]),
        ("LLA", ["Here", "llama"]),
        ("qwen gb", ["Here", "qwen-coder", "To fetch", "qwen-large"]),
        ("large", ["To fetch", "qwen-large"]),
        ("none such", []),
    ],
)
def test_lines_are_narrowed_and_headings_go_with_their_last_line(text, left):
    assert [row.label for row in narrowed(ROWS, text)] == left


async def test_the_picker_is_narrowed_by_typing_and_marks_what_is_loaded():
    class Long(Lists):
        def targets(self):
            return ROWS

    async with chat() as c:
        chosen: list[Choice | None] = []
        c.app.push_screen(ModelPicker(Long, frozenset({"llama"})), chosen.append)  # type: ignore[arg-type]
        await c.until(lambda: "● llama" in c.screen_text())
        await c.pilot.press(*"large")
        await c.until(lambda: "qwen-coder" not in c.screen_text())
        assert "To fetch" in c.screen_text()
        await c.pilot.press("enter")
        await c.until(lambda: chosen)
        assert chosen == [Choice("qwen-large", "auto")]


@pytest.mark.parametrize(("loaded", "heading"), [("model-2", True), ("model-70", False)])
async def test_the_picker_begins_at_what_is_loaded_and_shows_what_is_above_it(loaded, heading):
    class Long(Lists):
        def targets(self):
            return [ROWS[0], *(Row(f"model-{i}", "", Choice(f"model-{i}", "auto")) for i in range(80))]

    async with chat() as c:
        c.app.push_screen(ModelPicker(Long, frozenset({loaded})))  # type: ignore[arg-type]
        await c.until(lambda: f"● {loaded}" in c.screen_text())
        await c.until(lambda: ("Here" in c.screen_text()) == heading)


def test_what_is_on_this_machine_comes_first(tiny_target, tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_LOCAL_MODELS", str(tmp_path))
    (tmp_path / "mine.gguf").write_bytes(tiny_target.read_bytes())
    rows = ModelLists().targets()
    at = [row.label for row in rows].index
    assert at("Models on this machine") < at("mine.gguf") < at("Pairs to fetch") < at("Models to fetch")
    assert "Pairs on this machine" not in [row.label for row in rows], "a heading without lines"


def missing(options, progress):
    raise NotPulledError("the-model is not on this machine yet.", "the-model", None)


async def test_without_a_model_a_message_stays_in_the_input_and_the_reason_is_said():
    async with chat(loader=missing, ready=False) as c:
        await c.until(lambda: "Fetch the-model" in c.screen_text())
        await c.enter("hello")
        await c.until(lambda: "No model is loaded." in c.notices)
        assert c.app.composer.text == "hello"
        assert c.dialogue.queued is None
        assert c.texts == []


async def test_a_choice_that_is_not_made_stays_open():
    async with chat(loader=missing, ready=False, size=(80, 40)) as c:
        await c.choose("Choose a model")
        await c.until(lambda: len(c.app.screen_stack) == 2)
        await c.pilot.press("escape")
        await c.until(lambda: len(c.app.screen_stack) == 1)
        assert "Fetch the-model" in c.screen_text()
        assert c.app.composer.has_focus


async def test_choices_are_reached_with_tab_and_left_by_escape_or_by_writing():
    async with chat(loader=missing, ready=False, size=(100, 30)) as c:
        await c.until(lambda: "Tab chooses above" in c.screen_text())
        await c.pilot.press("tab")
        await c.until(lambda: "Enter does it" in c.screen_text())
        await c.pilot.press("escape")
        await c.until(lambda: c.app.composer.has_focus)
        await c.pilot.press("tab", "down", "h", "e", "y")
        await c.until(lambda: c.app.composer.text == "hey")
        assert c.app.composer.has_focus


async def test_all_choices_are_seen_on_a_narrow_screen():
    async with chat(loader=missing, ready=False, size=(40, 24)) as c:
        await c.until(lambda: "Try again" in c.screen_text())
        assert "Choose a model" in c.screen_text()


async def test_a_choice_that_cannot_be_done_is_a_sentence():
    busy = threading.Event()

    def pull(name, progress):
        while not busy.wait(0.01):
            progress(1, 2, "downloading")

    async with chat(loader=missing, puller=pull, ready=False) as c:
        await c.until(lambda: c.app.transcript.open_offer is not None)
        offer = c.app.transcript.open_offer
        assert offer is not None
        fetch = offer.choices[0]
        c.dialogue.pull("the-model")
        await c.until(lambda: c.dialogue.models.busy)
        offer.post_message(type(offer).Chosen(fetch.act))  # pressed at the very moment
        await c.until(lambda: "is being fetched already" in c.notices)
        await c.pilot.press("escape")
        await c.until(lambda: not c.dialogue.busy)


async def test_models_complete():
    async with chat() as c:
        await c.write("/model smollm2-135m-in")
        await c.until(lambda: c.app.query_one(CompletionList).display)
        await c.pilot.press("tab")
        assert c.app.composer.text == "/model smollm2-135m-instruct"


async def test_a_message_that_waits_is_seen():
    gate = threading.Event()
    async with chat(Play(tokens=words(4), gate=gate), Play(tokens=("two",))) as c:
        await c.enter("first")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        await c.enter("the [second]\none")
        await c.until(lambda: "waiting  the [second] one" in c.screen_text())
        gate.set()
        await c.until(lambda: len(c.texts) == 4)
        assert "waiting  the" not in c.screen_text()


async def test_leaving_while_something_takes_long_says_so_and_a_second_time_leaves_at_once():
    hold, engine = threading.Event(), ScriptedEngine()

    def load(options, progress):
        hold.wait(20)  # a step that cannot be broken off
        return engine

    async with chat(engine=engine, loader=load, ready=False) as c:
        await c.until(lambda: c.dialogue.models.busy)
        await c.pilot.press("ctrl+q")
        await c.until(lambda: "leaving after this pass" in c.screen_text())
        assert not c.app._exit
        await c.pilot.press("ctrl+q")
        await c.until(lambda: c.app._exit)
        hold.set()
        await asyncio.to_thread(c.app.engine_thread.close)
