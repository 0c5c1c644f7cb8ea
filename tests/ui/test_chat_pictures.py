"""What the main states look like, as text. `SPEC_LOCAL_PICTURES=write pytest …` draws them anew: look at them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from chat_pilot import chat
from chat_script import Play, ScriptedEngine

from spec_local.errors import BackendError
from spec_local.models_manifest import NotPulledError
from spec_local.ui.app import ChatApp

FOLDER = Path(__file__).parent / "pictures"
ANSWER = (
    "Here is a function, with `range`:\n\n",
    "```python\n",
    "def primes(limit):\n",
    "    sieve = [True] * limit\n",
    "    return sieve\n",
    "```\n\n",
    "1. Every number starts as a *candidate*.\n",
    "2. Multiples are crossed out:\n",
    "   - from the square on,\n",
    "   - the smaller ones are gone.\n\n",
    "| limit | primes |\n",
    "|------:|:------:|\n",
    "| 10 | 4 |\n",
    "\n> It is about 2200 years old.\n",
)
PATTERN = ((4, 4), (2, 1), (0, 0), (3, 3))


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that differs from run to run."""
    monkeypatch.setattr(ChatApp, "_measure_memory", lambda self: None)


def compare(name: str, picture: str) -> None:
    path = FOLDER / f"{name}.txt"
    if os.environ.get("SPEC_LOCAL_PICTURES") == "write":
        FOLDER.mkdir(exist_ok=True)
        path.write_text(picture + "\n", encoding="utf-8")
    assert picture + "\n" == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_pictures(size: tuple[int, int]) -> None:
    tag = f"{size[0]}x{size[1]}"
    async with chat(Play(tokens=ANSWER, pattern=PATTERN), size=size) as c:
        c.app.composer.cursor_blink = False
        await c.until(lambda: "scripted-target" in c.screen_text())
        compare(f"empty-{tag}", c.screen_text())
        await c.ask("Write a function that lists primes, please")
        figures = c.app.transcript.turns[1].figures
        await c.until(lambda: figures.ttft_s == 0.06 and not c.app.gauges.pending)
        c.app.gauges.draw()
        await c.pilot.pause()
        compare(f"answer-{tag}", c.screen_text())
        await c.pilot.press("f3")
        await c.until(lambda: "accepted draft" in c.screen_text())
        compare(f"provenance-{tag}", c.screen_text())
        await c.pilot.press("f3", "f1")
        await c.until(lambda: "Writing" in c.screen_text())
        compare(f"keys-{tag}", c.screen_text())


def _missing(options: object, progress: object) -> ScriptedEngine:
    raise NotPulledError("the-model is not on this machine yet (1.1 GB).", "the-pair", 1_600_000_000)


async def test_picture_of_a_model_that_is_missing() -> None:
    async with chat(loader=_missing, ready=False, size=(80, 24)) as c:
        c.app.composer.cursor_blink = False
        await c.until(lambda: "Tab chooses above" in c.screen_text())
        compare("missing-80x24", c.screen_text())


async def test_picture_of_a_stop_an_edit_and_what_waits() -> None:
    gate = threading.Event()
    plays = Play(tokens=("The first word", " and more"), gate=gate), Play(tokens=("x",), gate=gate)
    async with chat(*plays, size=(80, 24)) as c:
        c.app.composer.cursor_blink = False
        await c.enter("Tell me about rivers")
        await c.until(lambda: "The first word" in c.screen_text())
        await c.enter("and then about [lakes]")
        await c.until(lambda: "waiting  and then" in c.screen_text())
        c.app.gauges.draw()
        await c.pilot.pause()
        compare("waiting-80x24", c.screen_text())
        await c.pilot.press("escape", "escape")
        await c.idle()
        c.app.composer.clear_all()
        await c.pilot.press("f7")
        await c.until(lambda: "Esc keeps the old one" in c.screen_text())
        compare("stopped-80x24", c.screen_text())


async def test_picture_of_an_error() -> None:
    failing = Play(tokens=("Half of an answer",), error=BackendError("The device [/] is gone.", "Look after it."))
    async with chat(failing, size=(80, 24)) as c:
        c.app.composer.cursor_blink = False
        await c.ask("Tell me about rivers")
        await c.until(lambda: "Try again" in c.screen_text())
        c.app.gauges.draw()
        await c.pilot.pause()
        compare("error-80x24", c.screen_text())
