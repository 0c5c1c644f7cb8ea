"""Case 46: long answers stay smooth. What is measured is work, in processor time, and the delay of a key."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from chat_pilot import chat
from chat_script import Play

from spec_local.ui.markdown_document import MarkdownDocument, code_blocks
from spec_local.ui.turn_view import TurnView

PARTS = (
    "A paragraph with **bold** words, `code`, a [link](https://e.org) and *more* of it, long enough to be wrapped. "
    * 3,
    "```python\ndef f(x):\n    return [i * x for i in range(10) if i % 2]\n```",
    "| a | b | c |\n|---|--:|:-:|\n| one | two | three |\n| four | five | six |",
    "- item one\n- item two\n  - inner item\n- item three",
    "> a quotation\n> of two lines",
    "## A heading",
)


def document(tokens: int) -> list[str]:
    """That many tokens of mixed Markdown, about four characters each."""
    text = ""
    n = 0
    while len(text) < tokens * 4:
        text += PARTS[n % len(PARTS)] + "\n\n"
        n += 1
    return [text[i : i + 4] for i in range(0, tokens * 4, 4)]


def shapes() -> dict[str, str]:
    return {
        "mixed": "".join(document(250)),
        "one list": "".join(f"{i}. item {i} with *some* text\n" for i in range(1, 30)),
        "one table": "| a | b |\n|---|---|\n" + "| one | two |\n" * 25,
        "one fence": "```python\n" + "def f():\n    '''doc'''\n    return 1\n\n" * 20 + "```\nafter",
        "one paragraph": "word *and* `more` " * 60,
        "loose list": "".join(f"- item {i}\n\n  second paragraph\n\n" for i in range(20)) + "end",
        "setext and rules": "Title\n=====\n\ntext\n\n---\n\nSub\n---\n\n***\n" * 8,
        "nested": "> - a\n>   ```\n>   x\n>   ```\n> - b\n\n1. one\n\n   | a |\n   |---|\n   | b |\n\n2. two\n" * 6,
        "unclosed": "text **bold\n\n```js\nlet x = `a\n\n- not a list",
        "html and markup": "<b>x</b> [/] [bold]y\n\n<div>\n\n&amp; \\* [a]: b\n",
        "wide characters": "| 名前 | 値 |\n|---|---|\n| 日本語 | 🧑‍🚀 |\n\n" + "漢字かな交じり文" * 30,
    }


@pytest.mark.parametrize("name", shapes())
@pytest.mark.parametrize("step", [3, 40])
def test_a_growing_document_makes_the_lines_of_a_whole_one(name, step):
    text = shapes()[name]
    growing = MarkdownDocument()
    for i in range(0, len(text), step):
        growing.append(text[i : i + step])
        if i % (step * 5) == 0:
            growing.lines(60)
    whole = MarkdownDocument(text)
    for width in (60, 24):
        ours, one_shot = growing.lines(width), whole.lines(width)
        assert [line.plain for line in ours] == [line.plain for line in one_shot]
        assert [line.spans for line in ours] == [line.spans for line in one_shot]
    assert growing.source == text
    assert growing.code_blocks() == code_blocks(text)


@pytest.mark.parametrize("name", shapes())
@pytest.mark.parametrize("width", [1, 2, 3, 5, 9, 20, 33, 80])
def test_no_line_is_wider_than_asked_for(name, width):
    for line in MarkdownDocument(shapes()[name]).lines(width):
        assert line.cell_length <= width, line.plain


async def streamed(tokens: int) -> tuple[float, list[float], str]:
    """Stream that many tokens at 200/s with a key every 0.1 s.

    Returns:
        Processor seconds, the delay of every key in seconds, and the text.
    """
    text = document(tokens)
    async with chat(Play(tokens=text, pattern=((0, 0),), delay=0.005), size=(120, 40)) as c:
        delays = []
        await c.enter("go")
        await c.until(lambda: len(c.texts) == 2 and c.texts[1])
        begin_cpu = time.process_time()
        while c.dialogue.busy:
            begin = time.monotonic()
            before = len(c.app.composer.text)
            # The key goes the way of a real one: into the queue, behind whatever the application is doing.
            driver: Any = c.app._driver
            driver.send_message(key_x())  # type: ignore[no-untyped-call]
            while len(c.app.composer.text) == before:
                await asyncio.sleep(0.002)
                assert time.monotonic() - begin < 10
            delays.append(time.monotonic() - begin)
            if before > 40:
                c.app.composer.clear_all()  # its own length is not what is measured
            await asyncio.sleep(0.1)
        cpu = time.process_time() - begin_cpu
        view = c.app.transcript.turns[1]
        assert isinstance(view, TurnView)
        width = view.size.width
        one_shot = [line.plain for line in MarkdownDocument(view.text).lines(width - sum(view.MARGINS))]
        assert [line.plain for line in view.lines(width)][: len(one_shot)] == one_shot
        return cpu, delays, view.text


def key_x():
    from textual import events

    return events.Key("x", "x")


@pytest.mark.slow
async def test_four_thousand_tokens_are_smooth_and_linear():
    cpu_half, _, _ = await streamed(2000)
    cpu, delays, text = await streamed(4000)
    if cpu >= 2.5 * cpu_half:  # one of the two may have met a busy moment; what is quadratic stays so
        cpu_half, cpu = (await streamed(2000))[0], (await streamed(4000))[0]
    assert text == "".join(document(4000))
    delays.sort()
    print(
        f"processor {cpu_half:.2f} s and {cpu:.2f} s; keys: median {delays[len(delays) // 2] * 1000:.0f} ms, "
        f"worst {delays[-1] * 1000:.0f} ms of {len(delays)}"
    )
    assert cpu < 2.5 * cpu_half  # linear is 2, quadratic 4
    assert delays[int(len(delays) * 0.98)] < 0.2
