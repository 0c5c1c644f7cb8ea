"""A worker dies in the middle of an answer: the chat says so, keeps everything, and the next turn works."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chat_pilot import Chat, chat
from running_worker import RunningWorker
from slow_link import SlowLink
from textual.widgets import Button

from spec_local.session.options import EngineOptions
from spec_local.session.store import IN_MEMORY, Store
from spec_local.ui.engine_thread import load_engine

pytestmark = pytest.mark.usefixtures("own_folders")
BOUND_S = 10.0


@asynccontextmanager
async def chat_over(worker: RunningWorker, target: Path, draft: Path) -> AsyncIterator[Chat]:
    link = SlowLink(worker.endpoint)
    options = EngineOptions(target=str(target), draft=str(draft), threads=1, n_ctx=1024, rpc=(link.endpoint,))

    async with chat(loader=load_engine, store=Store(IN_MEMORY), ready=False, options=options) as c:
        await c.until(lambda: c.dialogue.facts is not None)
        link.delay_s = 0.1  # so that no answer is done before the worker is killed, however slow the screen is
        for name, value in (("temperature", 0), ("max_tokens", 400), ("min_tokens", 400)):
            c.dialogue.conversation.set_sampling(name, value)
        yield c
    link.close()


async def killed_mid_answer(c: Chat, worker: RunningWorker) -> str:
    """Returns what was written when the worker died."""
    await c.enter("Tell me")
    await c.until(lambda: len(c.texts) == 2 and len(c.texts[1]) > 10)
    worker.kill()
    died = time.monotonic()
    await c.until(lambda: c.dialogue.current is None)
    assert time.monotonic() - died < BOUND_S
    question, answer = c.dialogue.conversation.path()
    assert (question.text, answer.state) == ("Tell me", "failed")
    assert "A worker was lost in the middle of a pass" in answer.error and "does not answer like" in answer.error
    assert len(answer.text) > 10, "what was written stays"
    for name in ("max_tokens", "min_tokens"):
        c.dialogue.conversation.set_sampling(name, 8)
    return answer.text


async def press(c: Chat, label: str) -> None:
    await c.until(lambda: any(str(button.label) == label for button in c.app.query(Button)))
    next(button for button in reversed(c.app.query(Button)) if str(button.label) == label).press()


async def test_the_next_turn_works_once_the_worker_is_back(tiny_target: Path, tiny_draft: Path) -> None:
    worker = RunningWorker()
    async with chat_over(worker, tiny_target, tiny_draft) as c:
        text = await killed_mid_answer(c, worker)
        await c.enter("Are you there?")
        await c.until(lambda: len(c.dialogue.conversation.path()) == 4 and c.dialogue.current is None)
        assert "does not answer like a worker" in c.dialogue.conversation.path()[-1].error, "it is not back yet"
        again = RunningWorker(port=worker.port)
        try:
            await c.enter("And now?")
            await c.until(lambda: c.dialogue.conversation.path()[-1].state == "done")
            path = c.dialogue.conversation.path()
            assert [m.text for m in path if m.role == "user"] == ["Tell me", "Are you there?", "And now?"]
            assert path[1].text == text
            assert c.dialogue.models.doing == ""
        finally:
            again.stop()


async def test_one_can_go_on_without_it(tiny_target: Path, tiny_draft: Path) -> None:
    worker = RunningWorker()
    async with chat_over(worker, tiny_target, tiny_draft) as c:
        text = await killed_mid_answer(c, worker)
        await press(c, "Go on without workers")
        await c.until(lambda: c.dialogue.facts is not None and not c.dialogue.models.busy)
        await c.enter("And here?")
        await c.until(lambda: c.dialogue.conversation.path()[-1].state == "done")
        assert [m.text for m in c.dialogue.conversation.path()][:3] == ["Tell me", text, "And here?"]
