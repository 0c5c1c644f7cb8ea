"""Random requests over three slots of one engine, with random drafts, stops and cancels, against an engine of its own.

Caches are kept in f32: how cells of other sequences lie between one's own then changes no decision.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Request
from spec_local.session.loop import Ticket
from spec_local.session.options import EngineOptions
from spec_local.speculation.controller import FixedController

SLOTS = 3
WORDS = ("the ", "abcd ", "inn ", "on ", "an ", "re ", "q", "w ", "😀", "é")
SOURCES = (("model", "text"), ("text", "model"), ("model",), ("text",))


@pytest.fixture
def engines(tiny_target: Path, tiny_draft: Path) -> Iterator[tuple[Engine, Engine]]:
    common: dict[str, Any] = {
        "n_ctx": 200,
        "threads": 1,
        "pad_width": 24,
        "batch_size": 32,
        "flash_attn": "off",
        **dict.fromkeys(("cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v"), "f32"),
    }
    speculative = EngineOptions(**common, draft_n_ctx=150, draft_length=7, parallel=SLOTS)
    with (
        load(tiny_target, draft=tiny_draft, options=speculative) as engine,
        load(tiny_target, draft="none", options=EngineOptions(**common)) as plain,
    ):
        yield engine, plain


def _sampling(chance: random.Random) -> Sampling:
    return Sampling(
        temperature=chance.choice((0.0, 0.8)),
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=chance.randrange(100),
        max_tokens=chance.choice((0, 3, 20, 60, None)),
        repeat_penalty=chance.choice((1.0, 1.3)),
        stop=chance.choice(((), ("ab",), ("e", "the"))),
    )


def test_everybody_gets_what_plain_decoding_gives(engines: tuple[Engine, Engine]) -> None:
    engine, plain = engines
    chance = random.Random(1)
    texts, ends = ["the abcd on an inn"], set()
    for _ in range(15):
        engine.speculator.controller = FixedController(chance.choice(SOURCES), chance.randint(0, 7))
        tickets: list[Ticket] = []
        for _ in range(chance.randint(1, SLOTS + 2)):
            prompt = chance.choice(texts)[: chance.randint(0, 90)] + "".join(chance.choices(WORDS, k=3))
            raw, speculate = chance.random() < 0.7, chance.random() < 0.9
            request = Request(prompt, _sampling(chance), raw=raw, speculate=speculate)
            tickets.append(engine.submit(request, lambda _event: None))
            tickets[-1].generation.sequence.live = chance.random() < 0.5
        while engine.loop.step():
            if chance.random() < 0.01:
                engine.cancel()
            if chance.random() < 0.01:
                tickets[0].cancel()
        running = [ticket.generation for ticket in tickets]
        last = {generation.sequence.slot: generation for generation in running}
        for generation in running:
            request, result = generation.request, engine.result(generation)
            texts = [*texts, request.prompt + result.text][-20:]  # type: ignore[operator]
            ends.add(result.finish_reason)
            plain.speculator.release(0)
            expected = plain.generate(request.prompt, sampling=request.sampling, raw=request.raw)
            assert result.token_ids == expected.token_ids[: len(result.token_ids)]
            if result.finish_reason != "cancelled":
                assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
                assert (result.finish_reason, result.limit) == (expected.finish_reason, expected.limit)
            if result.token_ids and last[generation.sequence.slot] is generation:
                held = engine.loaded.target.length(generation.sequence.slot)
                assert held == result.prompt_tokens + len(result.token_ids) - 1
    assert ends == {"stop", "length", "cancelled"}
    assert not engine.speculator.off
