"""Record a session of the chat on real models, as SVG pictures: the application itself, driven key by key.

    python scripts/record_chat.py [--output docs/chat] [--size 120x40] [-m NAME] [-d NAME] [--threads N]

Asks for a change in an attached file, stops, answers again, shows where the tokens came from, edits the question, goes
on with the conversation in a new program, compares with plain decoding and looks at the models. Of the user's files
only models and what was measured with them are read, and none is written.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from spec_local.paths import cache_folder, models_folder
from spec_local.sampling.params import Sampling
from spec_local.session.options import EngineOptions
from spec_local.session.reply_options import ReplyOptions
from spec_local.session.store import Store
from spec_local.ui.app import ChatApp

FILE = "stack.py"
CODE = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def peek(self):
        return self.items[-1]

    def is_empty(self):
        return len(self.items) == 0
"""
ONLY = "and leave the rest as it is. Answer with the whole file."
QUESTION = f"Rename the class in @{FILE} to Pile {ONLY}"
EDITED = f"Rename the method peek in @{FILE} to top {ONLY}"


class Recorder:
    """Drives the application and takes pictures of it."""

    def __init__(self, app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
        self._app, self._pilot, self._folder = app, pilot, folder

    async def until(self, condition: Callable[[], object], seconds: float = 900) -> None:
        """Let it run until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.picture("stuck")
                raise TimeoutError("The session does not get on; the last picture shows where.")
            await self._pilot.pause(0.05)
        await self._pilot.pause(0.3)

    async def ready(self) -> None:
        """Wait for the models."""
        await self.until(lambda: self._app.dialogue.facts is not None)

    async def done(self) -> None:
        """Wait for the answer."""
        await self.until(lambda: not self._app.dialogue.busy)

    async def words(self, count: int) -> None:
        """Wait for so many words of an answer."""
        turns = self._app.transcript
        await self.until(lambda: len(turns.turns) > 1 and len(turns.turns[-1].text.split()) >= count)

    async def enter(self, text: str) -> None:
        """Write and send."""
        self._app.composer.load_whole(text)
        self._app.composer.completing = False
        await self._pilot.pause()
        await self._pilot.press("enter")

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self._pilot.press(*keys)
        await self._pilot.pause(0.3)

    def text(self) -> str:
        """What the screen shows."""
        return "\n".join(strip.text for strip in self._app.screen._compositor.render_strips())

    def picture(self, name: str) -> None:
        """Take a picture."""
        path = self._folder / f"{name}.svg"
        picture = self._app.export_screenshot(title="spec-local chat")
        # The picture must not fetch a font from anywhere.
        picture = re.sub(r"@font-face *{[^}]*}", "", picture).replace("Fira Code", "DejaVu Sans Mono")
        path.write_text(picture, encoding="utf-8")
        print(path, flush=True)


async def record(options: EngineOptions, sampling: Sampling, folder: Path, size: tuple[int, int]) -> None:
    """The session."""
    os.environ["SPEC_LOCAL_MODELS"] = str(models_folder())
    measured = [cache_folder() / kind for kind in ("costs", "numerics", "probes")]
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        os.environ["SPEC_LOCAL_HOME"] = home
        for folder_before in filter(Path.is_dir, measured):
            shutil.copytree(folder_before, cache_folder() / folder_before.name)
        Path(FILE).write_text(CODE, encoding="utf-8")
        path = Path(home) / "conversations.sqlite3"
        app = ChatApp(lambda: (options, sampling, ReplyOptions()), Store(path))
        async with app.run_test(size=size) as pilot:
            r = Recorder(app, pilot, folder)
            await r.ready()
            r.picture("1-start")
            await r.enter(QUESTION)
            await r.words(20)
            r.picture("2-answering")
            await r.press("escape")
            await r.done()
            r.picture("3-stopped")
            await r.press("ctrl+r")
            await r.done()
            r.picture("4-another-answer")
            await r.press("f3")
            r.picture("5-provenance")
            await r.press("f3", "f7")
            await r.enter(EDITED)
            await r.done()
        store = Store(path)
        app = ChatApp(lambda: (options, sampling, ReplyOptions()), store, resume=store.latest())
        async with app.run_test(size=size) as pilot:
            r = Recorder(app, pilot, folder)
            await r.ready()
            await r.until(lambda: len(app.transcript.turns) == 2)
            await r.enter("/compare")
            await r.until(lambda: app.dialogue.busy)
            await r.done()
            r.picture("6-edited-resumed-compared")
            app.theme = "textual-light"
            await r.press("f6")
            await r.until(lambda: "on this machine" in r.text())
            r.picture("7-models")


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/chat"))
    parser.add_argument("--size", default="120x40", help="columns and rows")
    parser.add_argument("-m", "--target")
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=240)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    arguments.output = arguments.output.resolve()
    columns, rows = map(int, arguments.size.split("x"))
    options = EngineOptions(target=arguments.target, draft=arguments.draft, threads=arguments.threads)
    sampling = Sampling(max_tokens=arguments.max_tokens)
    asyncio.run(record(options, sampling, arguments.output, (columns, rows)))


if __name__ == "__main__":
    main()
