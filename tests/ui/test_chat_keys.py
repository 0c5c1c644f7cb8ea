"""Where the keys are, what they do there, and what the last line says about them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from chat_pilot import Chat, chat, words
from chat_script import Play
from textual import events
from textual.color import Color

from spec_local.speculation.round import Round
from spec_local.ui.figures import TurnFigures, compact
from spec_local.ui.markdown_document import MarkdownDocument
from spec_local.ui.turn_view import TurnView


async def test_an_edit_puts_what_is_being_written_aside_and_gives_it_back():
    async with chat(Play(tokens=("one",)), Play(tokens=("two",))) as c:
        await c.ask("first")
        await c.write("half a thought")
        await c.pilot.press("f7")
        await c.until(lambda: c.app.composer.text == "first")
        assert "Esc keeps the old one" in c.screen_text()
        await c.pilot.press("escape")
        await c.until(lambda: c.app.composer.text == "half a thought")
        assert c.app.input.editing is None
        await c.pilot.press("f7", "!", "enter")
        await c.until(lambda: c.texts == ["first!", "two"])
        await c.until(lambda: c.app.composer.text == "half a thought")


async def test_escape_stops_an_answer_before_it_leaves_an_edit():
    async with chat(Play(tokens=("one",)), Play(tokens=words(500), delay=0.02)) as c:
        await c.ask("first")
        await c.enter("second")
        await c.until(lambda: len(c.texts) == 4 and c.texts[3])
        await c.pilot.press("f7", "escape")
        await c.idle()
        assert c.dialogue.conversation.path()[-1].state == "stopped"
        assert c.app.input.editing is not None


async def test_the_palette_takes_a_command_with_an_argument_to_the_input():
    async with chat() as c:
        await c.write("my talk")
        await c.pilot.press("ctrl+p")
        await c.until(lambda: len(c.app.screen_stack) == 2)
        await c.pilot.press(*"title")
        await c.until(lambda: "name the conversation" in c.screen_text())
        await asyncio.sleep(0.3)  # the palette searches a moment after the last key
        await c.pilot.press("enter")
        await c.until(lambda: c.app.composer.text == "/title my talk")


async def test_a_chosen_message_says_what_its_keys_do_and_writing_goes_to_the_input():
    async with chat(Play(tokens=("one",))) as c:
        await c.ask("first")
        await c.pilot.press("ctrl+up")
        await c.until(lambda: "r again · e edit · c copy" in c.screen_text())
        await c.pilot.press("H", "i")
        await c.until(lambda: c.app.composer.text == "Hi")
        assert c.app.composer.has_focus
        assert "Enter sends" in c.screen_text()


async def test_a_paste_goes_to_the_input_wherever_the_keys_are():
    async with chat(Play(tokens=("one",))) as c:
        await c.ask("first")
        await c.pilot.press("ctrl+up")
        assert not c.app.composer.has_focus
        c.app.post_message(events.Paste("pasted"))  # as the terminal's driver does
        await c.until(lambda: c.app.composer.text == "pasted")


async def test_tab_in_the_input_does_not_jump_to_the_first_message():
    async with chat(Play(tokens=words(400))) as c:
        await c.ask("first")
        await c.pilot.press("tab")
        assert c.app.composer.has_focus


async def test_the_last_line_says_that_there_is_more_below():
    async with chat(Play(tokens=[f"line {i}\n\n" for i in range(60)]), size=(100, 20)) as c:
        await c.ask("go")
        await c.until(lambda: c.app.transcript.max_scroll_y > 0)
        assert "PgDn" not in c.screen_text()
        await c.pilot.press("pageup")
        await c.until(lambda: "PgDn goes on" in c.screen_text())
        for _ in range(3):
            await c.pilot.press("pagedown")
        await c.until(lambda: "PgDn" not in c.screen_text())


def _says(c: Chat, text: str) -> bool:
    return text in c.notices


async def test_what_a_command_says_is_seen_wherever_the_transcript_is():
    async with chat(Play(tokens=[f"line {i}\\n\\n" for i in range(60)]), size=(100, 20)) as c:
        await c.ask("go")
        for text, said in (("/set", "temperature "), ("/set temperature hot", "cannot be")):
            await c.pilot.press("pageup", "pageup")
            await c.until(lambda: "PgDn goes on" in c.screen_text())
            await c.enter(text)
            await c.until(partial(_says, c, said))
            await c.until(lambda: "PgDn" not in c.screen_text())


@pytest.mark.parametrize("width", [0, 8, 14, 24, 40, 60, 100])
def test_figures_in_one_line_give_way_instead_of_being_cut(width):
    record = Round("text", 5, 4, 4, 3, 4, 0.0, 0.1, 0.0, "", plain_s=0.1)
    figures = TurnFigures([record] * 3, prompt_tokens=100, n_ctx=400)
    line = compact(figures, width)
    assert len(line) <= width
    assert "…" not in line
    if width >= 14:
        assert "40.0 tok/s" in line
    if width == 100:
        assert line == "text 4 · 4.00 tok/pass · 75% accepted · 40.0 tok/s · +300% · ctx 28%"


def test_the_dash_that_begins_a_list_makes_no_heading_of_the_line_above():
    (line, *_) = MarkdownDocument("The parts are:\n-").lines(60)
    assert line.plain == "The parts are:"
    assert line.spans == []


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "solarized-light", "catppuccin-latte", "nord"])
async def test_the_grounds_of_code_and_of_questions_can_be_told_from_the_page(theme):
    async with chat(Play(tokens=("text\n\n```py\nx = 1\n```\n",))) as c:
        c.app.theme = theme
        await c.ask("q")
        await c.pilot.pause()
        question, answer = c.app.transcript.turns

        def ground(view: TurnView, word: str) -> tuple[Color, int]:
            for line, strip in enumerate(view.render_lines(view.size.region)):
                for segment in strip:
                    if word in segment.text:
                        assert segment.style is not None
                        assert segment.style.bgcolor is not None
                        return Color.from_rich_color(segment.style.bgcolor), line
            raise AssertionError(word)

        page = ground(answer, "text")[0].brightness
        assert abs(ground(answer, "1")[0].brightness - page) > 0.02
        assert abs(ground(question, "q")[0].brightness - page) > 0.02
