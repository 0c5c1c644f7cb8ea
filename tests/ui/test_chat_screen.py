"""What the screen shows: the panel, provenance, comparison, sizes, markup taken literally, models."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest
from chat_pilot import Chat, chat, words
from chat_script import Play, ScriptedEngine, loader
from textual.geometry import Offset
from textual.selection import Selection

from spec_local.errors import BackendError
from spec_local.session.provenance import Origin, TokenText
from spec_local.speculation.statistics import summarise
from spec_local.ui import figures as show
from spec_local.ui.turn_view import ORIGIN_STYLES, provenance_lines

PATTERN = ((4, 4), (4, 1), (0, 0))


def _shows(c: Chat, text: str) -> bool:
    return text in c.screen_text()


async def test_the_panel_shows_the_figures_of_the_rounds():
    async with chat(Play(tokens=words(40), pattern=PATTERN)) as c:
        await c.ask("q")
        answer = c.dialogue.conversation.path()[-1]
        s = summarise(c.dialogue.store.rounds(answer.id))
        assert s.acceptance_rate is not None
        assert s.tokens_per_pass is not None
        for text in (
            f"{s.acceptance_rate:.0%} of {s.tested}",
            f"{s.tokens_per_pass:.2f}",
            show.speed(s.tokens_per_s),
            show.speed(s.plain_tokens_per_s_estimate),
            show.gain(s.speedup_estimate),
            *(f"{share:.0%}" for share in s.per_position),
        ):
            await c.until(partial(_shows, c, text), text)
        assert answer.result["speculation"]["tested"] == s.tested


async def test_figures_freeze_and_belong_to_their_message():
    async with chat(Play(tokens=words(30), pattern=PATTERN), Play(tokens=words(5))) as c:
        await c.ask("one")
        await c.ask("two")
        first, second = c.app.transcript.turns[1], c.app.transcript.turns[3]
        assert first.figures.statistics.tested > 0
        assert second.figures.statistics.tested == 0
        assert c.app.panel.figures is second.figures
        await c.pilot.press("ctrl+up", "up", "up")
        await c.until(lambda: c.app.panel.figures is first.figures, "the chosen message's figures are shown")


async def test_the_figures_of_an_answer_that_ended_are_drawn_at_once(monkeypatch):
    monkeypatch.setattr("spec_local.ui.gauges._SHARE", 1e9)  # as on a machine that is too slow to draw them again
    async with chat(Play(tokens=words(30), pattern=PATTERN, delay=0.01)) as c:
        await c.ask("q")
        await c.until(lambda: "5 tok, 0.05 s" in c.screen_text(), c.screen_text())
        assert not c.app.gauges.pending


@pytest.mark.parametrize(("tokens", "compared"), [(7, False), (8, True)])
async def test_a_few_tokens_are_not_compared_with_plain_decoding(tokens, compared):
    async with chat(Play(tokens=words(tokens), pattern=((4, 1),))) as c:
        await c.ask("q")
        figures = c.app.transcript.turns[1].figures
        assert figures.statistics.speedup_estimate is not None
        assert ("against plain" in show.summary(figures)) == compared
        assert ("%" in show.compact(figures, 200).replace("% accepted", "").split("ctx")[0]) == compared


async def test_a_small_screen_has_the_figures_in_its_last_line():
    async with chat(Play(tokens=words(30), pattern=PATTERN), size=(80, 24)) as c:
        await c.ask("q")
        assert not c.app.panel.display
        await c.until(lambda: "tok/pass" in c.screen_text().splitlines()[-1])
        assert "tok/s" in c.screen_text().splitlines()[-1]
        await c.pilot.press("f2")
        await c.until(lambda: c.app.panel.display)


async def test_speculation_can_be_switched_off_for_the_next_answer():
    async with chat(Play(tokens=words(10), pattern=PATTERN)) as c:
        await c.pilot.press("f4")
        await c.until(lambda: "speculation off" in c.screen_text())
        await c.ask("plain")
        assert c.engine.requests[0]["speculate"] is False
        assert "switched off for this answer" in c.screen_text()
        assert "plain decoding" in c.screen_text()
        await c.enter("/speculation on")
        await c.ask("fast")
        assert c.engine.requests[1]["speculate"] is True


async def test_provenance_colours_tokens_and_has_a_legend():
    async with chat(Play(tokens=words(6), pattern=PATTERN)) as c:
        await c.ask("q")
        await c.pilot.press("f3")
        await c.until(lambda: "accepted draft" in c.screen_text())
        for name in ("correction", "bonus", "plain"):
            assert name in c.screen_text()
        view = c.app.transcript.turns[1]
        assert [t.origin for t in view.tokens] == [*[Origin.ACCEPTED] * 4, Origin.BONUS, Origin.ACCEPTED]
        lines = provenance_lines(view.tokens, 100)
        assert lines[0].plain == view.text
        assert [span.style for span in lines[0].spans] == [ORIGIN_STYLES[t.origin] for t in view.tokens]
        await c.pilot.press("f3")
        await c.until(lambda: "accepted draft" not in c.screen_text())


def test_blanks_have_no_colour():
    (line,) = provenance_lines([TokenText(Origin.CORRECTION, " else "), TokenText(Origin.PLAIN, " ")], 80)
    assert line.plain.rstrip() == " else"
    assert [(s.start, s.end) for s in line.spans] == [(1, 5)]


async def test_provenance_is_kept_with_the_conversation(tmp_path):
    path = tmp_path / "c.sqlite3"
    async with chat(Play(tokens=words(6), pattern=PATTERN), store=path) as c:
        await c.ask("q")
        tokens, identity = c.app.transcript.turns[1].tokens, c.dialogue.conversation.id
    async with chat(store=path, resume=identity) as c:
        await c.until(lambda: len(c.texts) == 2)
        assert c.app.transcript.turns[1].tokens == tokens
        assert c.app.transcript.turns[1].figures.statistics.tested > 0


async def test_compare_runs_the_last_answer_plain_and_says_that_the_text_is_the_same():
    async with chat(Play(tokens=words(20), pattern=PATTERN)) as c:
        await c.ask("q")
        await c.pilot.press("f5")
        await c.until(lambda: "token for token" in c.notices)
        first, second = c.engine.requests
        assert (first["speculate"], second["speculate"]) == (True, False)
        assert second["prompt"] == first["prompt"]
        assert (second["sampling"].seed, second["sampling"].max_tokens) == (1234, 20)
        assert "Speculation was" in c.notices
        assert len(c.dialogue.conversation.path()) == 2, "a comparison is no turn"


async def test_compare_says_where_texts_part():
    async with chat(Play(tokens=words(20), pattern=PATTERN), Play(tokens=[*words(7), *words(13, "other")])) as c:
        await c.ask("q")
        await c.enter("/compare")
        await c.until(lambda: "part at token 8 of 20" in c.notices)


async def test_compare_of_a_plain_answer_runs_it_with_speculation():
    async with chat(Play(tokens=words(20), pattern=PATTERN)) as c:
        await c.pilot.press("f4")
        await c.ask("q")
        await c.pilot.press("f5")
        await c.until(lambda: "token for token" in c.notices)
        assert [r["speculate"] for r in c.engine.requests] == [False, True]


async def test_compare_without_an_answer_is_a_sentence():
    async with chat() as c:
        await c.pilot.press("f5")
        await c.until(lambda: "no answer to compare" in c.notices)


# Text that looks like markup, everywhere.
LITERAL = "[/] [bold]x[/bold] [link=http://e]y[/] [@click=app.bell]z[/] \\[a] $primary {x}"


async def test_markup_is_text_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = f"{LITERAL}\n\n# {LITERAL}\n\n- {LITERAL}\n\n`{LITERAL}`\n\n```[/]\n{LITERAL}\n```\n\n> {LITERAL}\n"
    failing = Play(tokens=(answer, "x"), error=BackendError(LITERAL, LITERAL))
    async with chat(failing, size=(140, 60), system="") as c:
        await c.enter(f"/system {LITERAL}")
        await c.ask(LITERAL)
        shown = c.screen_text()
        assert shown.count("[bold]x[/bold]") >= 8, shown
        await c.enter("/title [/] [red]t")
        await c.until(lambda: "[/] [red]t" in c.screen_text())
        await c.pilot.press("ctrl+o")
        await c.until(lambda: len(c.app.screen_stack) == 2)
        assert "[/] [red]t" in c.screen_text()
        await c.pilot.press("escape")


async def test_control_characters_of_a_model_do_not_reach_the_terminal():
    async with chat(Play(tokens=("a\x1b]52;c;aGk=\x07b", "\x9b31m", "\x00c\r\n"))) as c:
        await c.ask("q")
        shown = c.screen_text()
        assert not set("\x1b\x07\x9b\x00\r") & set(shown)
        assert "␛]52" in shown


# Case 47: sizes.
SIZES = ((40, 10), (10, 3), (1, 1), (200, 60), (120, 40))


async def test_resizing_loses_nothing_idle_or_streaming():
    gate = threading.Event()
    async with chat(Play(tokens=("| a | b |\n|---|---|\n| c | d |\n",)), Play(tokens=words(60), gate=gate)) as c:
        await c.ask("begin")
        for size in SIZES:
            await c.pilot.resize_terminal(*size)
            await c.pilot.pause()
        await c.enter("second")
        await c.until(lambda: len(c.texts) == 4 and c.texts[3])
        for size in SIZES[:2]:
            await c.pilot.resize_terminal(*size)
            await c.pilot.pause()
        gate.set()
        await c.idle()
        await c.pilot.resize_terminal(120, 40)
        await c.pilot.pause()
        assert c.texts == ["begin", "| a | b |\n|---|---|\n| c | d |\n", "second", "".join(words(60))]
        shown = c.screen_text()
        assert shown.count("begin") == 2, "in the title and once in the transcript"
        assert "word59" in shown


async def test_the_end_is_followed_until_somebody_scrolls_up():
    gate = threading.Event()
    text = [f"line {i}\n\n" for i in range(60)]
    async with chat(Play(tokens=text), Play(tokens=text, gate=gate), size=(80, 20)) as c:
        await c.ask("one")
        transcript = c.app.transcript
        await c.until(lambda: transcript.scroll_y == transcript.max_scroll_y > 0)
        await c.enter("two")
        await c.until(lambda: len(c.texts) == 4 and c.texts[3])
        await c.pilot.press("pageup")
        await c.until(lambda: transcript.scroll_y < transcript.max_scroll_y)
        kept = transcript.scroll_y
        gate.set()
        await c.idle()
        assert transcript.scroll_y == kept, "it let go"
        for _ in range(12):
            await c.pilot.press("pagedown")
        await c.until(lambda: transcript.scroll_y == transcript.max_scroll_y)


@pytest.mark.parametrize("theme", ["textual-light", "nord", "ansi-dark"])
async def test_themes(theme):
    async with chat(Play(tokens=("**b** `c`\n\n```py\nx = 1\n```\n",))) as c:
        await c.ask("q")
        await c.enter(f"/theme {theme}")
        await c.until(lambda: c.app.theme == theme)
        assert "x = 1" in c.screen_text()
        await c.enter("/theme nrod")
        await c.until(lambda: "no theme" in c.notices)
    async with chat() as c:
        assert c.app.theme == theme, "it is kept"


async def test_the_first_picture_comes_before_the_models():
    hold = threading.Event()
    engine = ScriptedEngine()

    def load(options, progress):
        progress("loading target x.gguf", 0.37)
        hold.wait(20)
        return engine

    async with chat(engine=engine, loader=load, ready=False) as c:
        await c.until(lambda: "loading target x.gguf 37%" in c.screen_text())
        assert "Ask something" in c.screen_text()
        hold.set()
        await c.until(lambda: "scripted-target + scripted-draft" in c.screen_text())


async def test_what_goes_on_at_the_first_start_is_a_sentence():
    hold = threading.Event()
    engine = ScriptedEngine()

    def load(options, progress):
        progress("finding out what a pass costs here", 0.0)
        hold.wait(20)
        return engine

    async with chat(engine=engine, loader=load, ready=False) as c:
        await c.until(lambda: "finding out what a pass costs here" in c.screen_text())
        assert "loading finding" not in c.screen_text()
        hold.set()
        await c.until(lambda: "scripted-target + scripted-draft" in c.screen_text())


FIRST_PICTURE = """
import asyncio, sys, threading
from spec_local.session.store import IN_MEMORY, Store
from spec_local.ui.app import ChatApp
from spec_local.errors import UsageError
hold = threading.Event()
HEAVY = {"numpy", "pydantic", "llama_cpp", "markdown_it", "pygments.lexers", "jinja2"}
def prepare():
    hold.wait(20)
    raise UsageError("That cannot be.")
async def main():
    app = ChatApp(prepare, Store(IN_MEMORY))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        shown = "".join(strip.text for strip in app.screen._compositor.render_strips())
        assert "Ask something" in shown and "Speculation" in shown
        print("loaded:", *sorted(HEAVY & set(sys.modules)))
        hold.set()
        while app.failure is None:
            await pilot.pause(0.01)
asyncio.run(main())
"""


def test_the_first_picture_waits_for_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", FIRST_PICTURE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "loaded:"


async def test_deleting_a_conversation_asks_first():
    async with chat() as c:
        await c.ask("q")
        identity = c.dialogue.conversation.id
        for keys, left in ((["enter"], 1), (["down", "enter"], 0)):
            await c.enter("/delete")
            await c.until(lambda: len(c.app.screen_stack) == 2)
            await c.pilot.press(*keys)
            await c.until(lambda: len(c.dialogue.store.find()) == left)  # noqa: B023 - waited for here
        assert c.texts == []
        assert identity not in [f.id for f in c.dialogue.store.find()]


async def test_selected_text_is_what_is_shown():
    async with chat(Play(tokens=("**bold** and `code`\n\nsecond",))) as c:
        await c.ask("q")
        view = c.app.transcript.turns[1]
        assert view.get_selection(Selection(Offset(5, 0), Offset(3, 2))) == ("and code\n\nsec", "\n")


async def test_notices_of_the_engine_are_shown_once():
    engine = ScriptedEngine(notices=["The [draft] is on a CPU."])
    async with chat(engine=engine, loader=loader(engine)) as c:
        await c.ask("q")
        assert c.notices.count("The [draft] is on a CPU.") == 1
