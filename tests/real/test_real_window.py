"""Case 1 and 4 on Gemma 3 270M: a sliding window passed by a wide margin, rejections there, and other conversations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_models import THREADS, model_path
from toy_drafters import FunctionDrafter

from spec_local.language_model import Chunk, MemoryKind
from spec_local.llama.memory_probe import classify
from spec_local.llama.model import Model
from spec_local.llama.model_context import ContextOptions, ModelContext
from spec_local.llama.padded import open_context
from spec_local.sampling import Sampling
from spec_local.session.engine import load
from spec_local.session.options import EngineOptions
from spec_local.speculation.controller import FixedController

pytestmark = [pytest.mark.models, pytest.mark.slow]
GEMMA = "gemma-3-270m"
TEXT = "The river ran past the mill, and the miller counted the sacks: " + ", ".join(map(str, range(1, 500)))
WIDTH = 8


@pytest.fixture(scope="module")
def path() -> Path:
    return model_path(GEMMA)


def test_rejections_far_past_the_window_leave_the_right_state(path: Path) -> None:
    """Oracle O3: drafts are rejected at 100 to 1200 tokens, and what comes next is what a fresh cache says.

    Passes of one width give the same bits, so the two must agree to the last one.
    """
    with Model(path) as model:
        assert 0 < model.n_swa < 1000
        tokens = model.vocabulary.tokenize(TEXT)[:1300]
        live, fresh = (
            open_context(model, ContextOptions(n_ctx=1400, threads=THREADS, pad_width=WIDTH)) for _ in range(2)
        )
        assert classify(live).kind is MemoryKind.ANYWHERE
        at = 0
        for stop in (100, 500, 600, 1200):
            for context in (live, fresh):
                _feed(context, tokens[at : stop - 4])
            for position in range(stop - 4, stop):  # one token stands, six are rejected
                live.decode([Chunk(0, [tokens[position], *[7] * 6], 7)])
                live.trim(0, position + 1)
                fresh.decode([Chunk(0, [tokens[position]], 1)])
            assert live.length(0) == fresh.length(0) == stop
            row = live.decode([Chunk(0, [tokens[stop]], 1)])[0]
            right = fresh.decode([Chunk(0, [tokens[stop]], 1)])[0]
            assert float(np.abs(row - right).max()) < 1e-3
            at = stop + 1
        live.trim(0, 300)  # regenerate an early turn
        fresh.trim(0, 0)
        _feed(fresh, tokens[:300])
        row, right = (context.decode([Chunk(0, [tokens[300]], 1)])[0] for context in (live, fresh))
        assert float(np.abs(row - right).max()) < 3.0  # prefilled in other widths, so to rounding only
        assert int(row.argmax()) == int(right.argmax())
        live.close()
        fresh.close()


def test_a_window_cache_of_its_own_size_says_where_it_can_be_cut(path: Path) -> None:
    with Model(path) as model:
        tokens = model.vocabulary.tokenize(TEXT)[:1300]
        context = open_context(model, ContextOptions(n_ctx=1400, n_batch=64, threads=THREADS, whole_window=False))
        assert classify(context).kind is MemoryKind.WINDOW
        _feed(context, tokens[:1200])
        assert context.foothold(0, 1195) == 1195
        assert context.foothold(0, 100) == 0
        context.trim(0, 1195)
        assert context.length(0) == 1195
        context.close()


def test_answers_past_the_window_and_other_conversations(path: Path) -> None:
    """Padded to one width, with junk drafted every round: the very tokens of plain decoding, in every conversation."""
    junk = FunctionDrafter(lambda tokens, limit: [tokens[-1]] * limit, "junk")
    prompt = TEXT[:1300]
    sampling = Sampling(temperature=0.0, seed=0, max_tokens=24)
    options = EngineOptions(n_ctx=2048, threads=THREADS, pad_width=WIDTH, draft_length=6)
    with load(path, draft="text", options=options) as engine:
        speculator = engine.speculator
        own, controller = dict(speculator.drafters), speculator.controller

        def answer(text: str, drafted: bool) -> tuple[int, ...]:
            speculator.drafters = {"junk": junk, **own} if drafted else {}
            speculator.controller = FixedController(["junk"], 6) if drafted else FixedController((), 0)
            return engine.generate(text, sampling=sampling, raw=True).token_ids

        texts = [prompt, "Write hello world in C.", prompt, prompt + " and then"]
        plain = []
        for text in texts:
            speculator.release(0)
            plain.append(answer(text, False))
        speculator.release(0)
        assert [answer(text, True) for text in texts] == plain
        assert not speculator.off
        speculator.controller = controller


def _feed(context: ModelContext, tokens: list[int]) -> None:
    for start in range(0, len(tokens), context.n_batch):
        context.decode([Chunk(0, tokens[start : start + context.n_batch], 0)])
