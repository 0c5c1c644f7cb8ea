"""Driving the chat in tests: an application over a scripted engine, and waiting instead of guessing times."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from chat_script import Play, ScriptedEngine, loader
from textual.pilot import Pilot

from spec_local.sampling.params import Sampling
from spec_local.session.options import EngineOptions
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.store import IN_MEMORY, Store
from spec_local.ui.app import ChatApp
from spec_local.ui.dialogue import Dialogue
from spec_local.ui.transcript import ChoiceButton, Notice

PATIENCE_S = 90.0
"""A test machine may be very busy; nothing here depends on how long something takes."""


async def wait_until(pilot: Pilot[Any], condition: Callable[[], Any], what: str = "") -> None:
    """Let the application run until the condition holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_S} s in vain: {what or condition}"
        await pilot.pause(0.01)
    await pilot.pause()


class Chat:
    """What tests look at and do."""

    def __init__(self, app: ChatApp, pilot: Pilot[Any], engine: ScriptedEngine) -> None:
        self.app, self.pilot, self.engine = app, pilot, engine

    @property
    def dialogue(self) -> Dialogue:
        return self.app.dialogue

    @property
    def texts(self) -> list[str]:
        """The messages shown, in order."""
        return [view.text for view in self.app.transcript.turns]

    @property
    def notices(self) -> str:
        """All notices, errors included, with their hints."""
        return "\n".join(f"{n.text}\n{n.hint}" for n in self.app.transcript.query(Notice))

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        await wait_until(self.pilot, condition, what)

    async def write(self, text: str) -> None:
        """Put a text into the input."""
        self.app.composer.load_whole(text)
        await self.pilot.pause()

    async def enter(self, text: str) -> None:
        """Write and send."""
        await self.write(text)
        self.app.composer.completing = False
        await self.pilot.press("enter")

    async def ask(self, text: str) -> None:
        """Write, send, and wait for the end of the answer."""
        asked = len(self.engine.requests)
        await self.enter(text)
        await self.until(lambda: len(self.engine.requests) > asked, "the question reaches the engine")
        await self.idle()

    async def choose(self, label: str) -> None:
        """Press the button that begins like this, with the keys."""

        def found() -> ChoiceButton | None:
            offer = self.app.transcript.open_offer
            return next((c for c in offer.choices if str(c.label).startswith(label)), None) if offer else None

        await self.until(lambda: found() is not None, f"something offers {label}")
        await self.pilot.press("tab")
        choice = found()
        assert choice is not None
        while not choice.has_focus:
            await self.pilot.press("down")
        await self.pilot.press("enter")

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        await self.until(lambda: not self.dialogue.busy and self.dialogue.queued is None, "nothing is under way")

    def screen_text(self) -> str:
        """What the screen shows, as text."""
        height = self.app.size.height
        lines = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in lines[:height])


@asynccontextmanager
async def chat(
    *plays: Play,
    size: tuple[int, int] = (120, 40),
    store: Store | Path | None = None,
    engine: ScriptedEngine | None = None,
    ready: bool = True,
    options: EngineOptions | None = None,
    **more: Any,
) -> AsyncIterator[Chat]:
    """An application with a scripted engine; leaving it checks that the engine was never used twice at once."""
    engine = engine or ScriptedEngine(list(plays) or [Play()])
    opened = Store(store) if isinstance(store, Path) else store or Store(IN_MEMORY)
    more.setdefault("loader", loader(engine))
    app = ChatApp(lambda: (options or EngineOptions(), Sampling(), ReplyOptions()), opened, **more)
    async with app.run_test(size=size) as pilot:
        made = Chat(app, pilot, engine)
        if ready:
            await made.until(lambda: app.dialogue.facts is not None, "the engine is loaded")
        yield made
    assert engine.most_active <= 1, "two decodes at once"
    assert not app.engine_thread._thread.is_alive(), "the engine's thread was not joined"


def words(count: int, word: str = "word") -> Sequence[str]:
    """That many tokens."""
    return [f"{word}{i} " for i in range(count)]
