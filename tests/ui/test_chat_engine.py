"""The chat over real engines: real caches and kernels under a random model of a few hundred kilobytes."""

from __future__ import annotations

import random
import threading
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_pilot import PATIENCE_S, chat

from spec_local.session.engine import Engine
from spec_local.session.loading import load_models
from spec_local.session.options import EngineOptions
from spec_local.session.store import IN_MEMORY, Store
from spec_local.ui.app import ChatApp

pytestmark = pytest.mark.usefixtures("own_folders")


class Watched(Engine):
    """An engine that counts how many calls are inside it at once, and can be stopped at a round."""

    inside = most = 0
    stop_at: dict[str, int] = {}  # noqa: RUF012 - set by a test, for every engine of it

    def _enter(self, step: int) -> None:
        with _GUARD:
            Watched.inside += step
            Watched.most = max(Watched.most, Watched.inside)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        step = self.speculator.step

        def watched(sequences):
            self._enter(1)
            try:
                records = step(sequences)
                if len(sequences[0].rounds) == Watched.stop_at.get("round"):
                    self.cancel()
                return records
            finally:
                self._enter(-1)

        self.speculator.step = watched  # type: ignore[method-assign]


_GUARD = threading.Lock()


@asynccontextmanager
async def real_chat(target, draft, tmp_path, **options):
    Watched.inside = Watched.most = 0
    Watched.stop_at = {}
    chosen = EngineOptions(target=str(target), draft=str(draft), threads=1, n_ctx=options.pop("n_ctx", 512), **options)

    def load(asked, progress):
        return Watched(load_models(asked if asked.target else chosen, progress))

    async with chat(loader=load, store=Store(IN_MEMORY), ready=False) as c:
        await c.until(lambda: c.dialogue.facts is not None)
        c.dialogue.conversation.set_sampling("temperature", 0)
        c.dialogue.conversation.set_sampling("max_tokens", 40)
        yield c
    assert Watched.most <= 1, "two calls into the engine at once"


def fresh_answer(target, messages) -> tuple[int, ...]:
    options = EngineOptions(target=str(target), draft="none", threads=1, n_ctx=512)
    with Engine(load_models(options)) as engine:
        from spec_local.sampling.params import Sampling

        return engine.generate(messages, sampling=Sampling(temperature=0.0, max_tokens=40)).token_ids


async def asked(c, text: str) -> None:
    count = len(c.dialogue.conversation.path())
    await c.enter(text)
    await c.until(lambda: len(c.dialogue.conversation.path()) > count or not c.dialogue.busy)
    await c.idle()


# Case 49: after a stop at any moment the next answer is what a fresh program gives for the same history.
@pytest.mark.parametrize("at_round", [0, 1, 3])
async def test_after_a_stop_the_history_and_the_caches_agree(tiny_target, tiny_draft, tmp_path, at_round):
    async with real_chat(tiny_target, tiny_draft, tmp_path) as c:
        await asked(c, "abcd the first question")
        Watched.stop_at = {"round": at_round}
        await asked(c, "the second one")
        Watched.stop_at = {}
        stopped = c.dialogue.conversation.path()[-1]
        if c.app.composer.text:  # not a whole character had come
            assert c.app.composer.text == "the second one"
            assert at_round <= 1
            c.app.composer.clear_all()
        else:
            assert stopped.state == "stopped"
        await asked(c, "and on")
        path = c.dialogue.conversation.path()
        assert [m.role for m in path] == ["user", "assistant"] * (len(path) // 2), "roles alternate"
        history = [{"role": m.role, "content": m.text} for m in path[:-1]]
        assert tuple(path[-1].result["token_ids"]) == fresh_answer(tiny_target, history)
        assert path[-1].result["usage"]["cached_tokens"] > 0, "the unchanged prefix is not computed again"


async def test_turns_and_branches_prefill_only_what_is_new(tiny_target, tiny_draft, tmp_path):
    async with real_chat(tiny_target, tiny_draft, tmp_path, n_ctx=1024) as c:
        await asked(c, "abcd the first question of some length, to be kept")
        first = c.dialogue.conversation.path()[-1].result["usage"]["prompt_tokens"]
        await asked(c, "second")
        # At least the first prompt: this model's random bytes are not the tokens that its text makes when read again.
        assert c.dialogue.conversation.path()[-1].result["usage"]["cached_tokens"] >= first - 1
        await c.pilot.press("ctrl+r")
        await c.until(lambda: c.dialogue.busy or "of 2 ›" in c.screen_text())
        await c.idle()
        usage = c.dialogue.conversation.path()[-1].result["usage"]
        assert usage["prompt_tokens"] - usage["cached_tokens"] <= 1, "the same prompt is there already"


# Case 12: a long conversation goes on; what is dropped is said; the system message stays.
async def test_a_conversation_longer_than_the_context_goes_on(tiny_target, tiny_draft, tmp_path):
    async with real_chat(tiny_target, tiny_draft, tmp_path, n_ctx=512) as c:
        c.dialogue.conversation.set_system("Answer as the system says.")
        for i in range(8):
            await asked(c, f"{i} abcd the question " * 4)
            assert c.dialogue.conversation.path()[-1].state == "done"
        assert "no longer fit the context and are left out" in c.notices
        usage = c.dialogue.conversation.path()[-1].result["usage"]
        assert usage["prompt_tokens"] + usage["completion_tokens"] <= 512
        before = c.texts
        await asked(c, "far too long " * 300)
        assert "too long" in c.notices
        assert c.app.composer.whole_text == "far too long " * 300
        assert c.texts == before
        c.app.composer.clear_all()
        await asked(c, "short")
        assert c.dialogue.conversation.path()[-1].state == "done"


async def test_compare_on_a_real_engine(tiny_target, tiny_draft, tmp_path):
    async with real_chat(tiny_target, tiny_draft, tmp_path, draft_length=3) as c:
        c.dialogue.conversation.set_sampling("temperature", 0.8)
        await asked(c, "abcd the question")
        assert c.dialogue.conversation.path()[-1].result["speculation"]["tested"] > 0
        await c.pilot.press("f5")
        await c.until(lambda: "token for token" in c.notices, c.notices)


# Case 51: whatever is asked for while an answer comes, one thing happens at a time and nothing breaks.
async def test_commands_in_the_middle_of_answers(tiny_target, tiny_draft, tmp_path):
    dice = random.Random(7)
    async with real_chat(tiny_target, tiny_draft, tmp_path) as c:
        app: ChatApp = c.app
        for step in range(50):
            what = dice.choice(["send", "send", "again", "again twice", "new", "stop", "model", "compare", "branch"])
            if what == "send":
                await c.enter(f"question {step}")
            elif what.startswith("again"):
                for _ in range(what.count("twice") + 1):
                    await c.pilot.press("ctrl+r")
            elif what == "new":
                await c.pilot.press("ctrl+n")
                c.dialogue.conversation.set_sampling("max_tokens", 40)
            elif what == "stop":
                await c.pilot.press("escape")
            elif what == "model":
                c.dialogue.load(EngineOptions(target=str(tiny_target), draft="text", n_ctx=512, threads=1))
            elif what == "compare":
                await c.pilot.press("f5")
            else:
                await c.enter("/branch previous")
            app.composer.clear_all()
            await c.pilot.pause(dice.random() * 0.05)
        await c.until(lambda: not c.dialogue.busy)
        app.composer.clear_all()
        await c.pilot.press("ctrl+n")
        c.dialogue.conversation.set_sampling("max_tokens", 5)
        await c.enter("still there?")
        await c.until(lambda: len(c.texts) == 2 and not c.dialogue.busy)
        assert c.dialogue.conversation.path()[-1].state == "done"
    assert PATIENCE_S
