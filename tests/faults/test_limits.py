"""Ends and edges: contexts, budgets, prompts and vocabularies at their limits, over every kind of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import (
    END_OF_TEXT,
    END_OF_TURN,
    N_VOCAB,
    TURN,
    write_convolutional,
    write_recurrent,
    write_transformer,
)
from toy_model import ToyModel
from toy_runs import GREEDY, TARGET, WARM, draft_model, make_sequence, plain, play, speculator, text_drafter

from spec_local.drafting.model import ModelDrafter
from spec_local.errors import ContextFullError, UsageError
from spec_local.language_model import Memory, MemoryKind
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions
from spec_local.session.result import Result

Load = Callable[..., Engine]
KINDS: dict[str, Callable[..., Path]] = {
    "transformer": write_transformer,
    "recurrent": write_recurrent,
    "snapshots": write_convolutional,
}
MEMORIES = (Memory(), Memory(MemoryKind.CHECKPOINTS), Memory(MemoryKind.SNAPSHOTS, depth=5))


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders


@pytest.fixture
def open_engine(tiny_folder: Path) -> Iterator[Load]:
    opened: list[Engine] = []

    def open_(kind: str, draft: str = "model", **options: Any) -> Engine:
        paths = [tiny_folder / f"limit-{kind}-{i}.gguf" for i in range(2)]
        for path, near in zip(paths, (0.0, 0.1), strict=True):
            if not path.exists():
                KINDS[kind](path, seed=6, near=near)
        settings = EngineOptions(**{"n_ctx": 64, "threads": 1, "draft_length": 6, **options})
        opened.append(load(paths[0], draft=paths[1] if draft == "model" else draft, options=settings))
        return opened[-1]

    yield open_
    for engine in opened:
        engine.close()


def _sampling(**fields: Any) -> Sampling:
    return Sampling(**{"temperature": 0.8, "seed": 5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **fields})


def _adds_up(result: Result, n_ctx: int) -> None:
    assert sum(r.emitted for r in result.rounds) == len(result.token_ids)
    assert all(r.accepted <= r.tested <= r.drafted for r in result.rounds)
    assert result.prompt_tokens + len(result.token_ids) <= n_ctx
    if result.finish_reason == "length":
        assert result.limit in ("max_tokens", "context")
        assert (result.limit == "context") == (result.prompt_tokens + len(result.token_ids) == n_ctx)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_tokens_of_a_context(open_engine: Load, kind: str) -> None:
    """Case 8: prompts that leave 1, 2, …, a draft less one, a draft, a draft and one."""
    engine, alone = open_engine(kind), open_engine(kind, "none")
    bytes_ = "".join(chr(97 + i % 7) for i in range(64))
    for room in (1, 2, 3, 5, 6, 7):
        prompt = bytes_[: 64 - room]
        while engine.vocabulary.tokenize(prompt) and len(engine.vocabulary.tokenize(prompt)) < 64 - room:
            prompt += "z"
        result, expected = (e.generate(prompt, sampling=_sampling(), raw=True) for e in (engine, alone))
        assert (result.token_ids, result.finish_reason, result.limit) == (
            expected.token_ids,
            expected.finish_reason,
            expected.limit,
        )
        _adds_up(result, 64)
    assert result.finish_reason in ("stop", "length")
    with pytest.raises(ContextFullError, match="64 tokens long; the context holds 64"):
        engine.generate("z" * 64, sampling=_sampling(), raw=True)
    with pytest.raises(ContextFullError):
        engine.generate("z" * 500, sampling=_sampling(), raw=True)
    assert engine.generate("z" * 10, sampling=_sampling(max_tokens=4), raw=True).finish_reason in ("stop", "length")


@pytest.mark.parametrize("kind", KINDS)
def test_budgets_of_any_size(open_engine: Load, kind: str) -> None:
    """Case 13: exactly the budget, or less where an end comes first; 0 is an empty answer."""
    engine, alone = open_engine(kind, draft_length=8, n_ctx=128), open_engine(kind, "none", n_ctx=128)
    whole = alone.generate("the abcd", sampling=_sampling(max_tokens=12), raw=True)
    for budget in (0, 1, 2, 6, 7, 8, 9):
        result = engine.generate("the abcd", sampling=_sampling(max_tokens=budget), raw=True)
        assert result.token_ids == whole.token_ids[:budget]
        assert len(result.token_ids) == budget or result.finish_reason == "stop"
        _adds_up(result, 128)
    assert engine.generate("the abcd", sampling=_sampling(max_tokens=0), raw=True).text == ""


@pytest.mark.parametrize("n_ctx", [2, 3, 100, 200, 257])
@pytest.mark.parametrize("kind", KINDS)
def test_contexts_that_llama_cpp_rounds(open_engine: Load, kind: str, n_ctx: int) -> None:
    """Case 11: filled to the token that was asked for, with a draft whose own context ends earlier."""
    engine = open_engine(kind, n_ctx=n_ctx, draft_n_ctx=max(2, n_ctx // 2))
    alone = open_engine(kind, "none", n_ctx=n_ctx)
    for seed in range(2):
        result, expected = (e.generate("t", sampling=_sampling(seed=seed), raw=True) for e in (engine, alone))
        assert result.token_ids == expected.token_ids
        _adds_up(result, n_ctx)
        assert engine.n_ctx == n_ctx


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_longer_than_the_batch(open_engine: Load, kind: str, batch: int) -> None:
    engine, alone = open_engine(kind, batch_size=batch, n_ctx=128), open_engine(kind, "none", n_ctx=128)
    for length in (batch, batch + 1, 3 * batch + 1, 60):
        prompt = "xyz"[: length % 3] + "q" * (length - length % 3)
        result, expected = (e.generate(prompt, sampling=_sampling(max_tokens=10), raw=True) for e in (engine, alone))
        assert result.token_ids == expected.token_ids
        assert result.prompt_tokens == length


def test_prompts_of_nothing_and_of_special_tokens(open_engine: Load) -> None:
    engine = open_engine("transformer", n_ctx=128)
    for empty in ("", "  ", "\n"):
        with pytest.raises(UsageError, match="prompt is empty"):
            engine.generate(empty, sampling=_sampling())
    for special in ("<|endoftext|>", "<|im_start|><|im_end|><|im_end|>", "<|im_end|>" * 20):
        result = engine.generate(special, sampling=_sampling(max_tokens=8), raw=True)
        assert set(engine.vocabulary.tokenize(special, parse_special=True)) <= {END_OF_TEXT, TURN, END_OF_TURN}
        assert result.prompt_tokens == len(engine.vocabulary.tokenize(special, parse_special=True))
        _adds_up(result, 128)
        assert result.finish_reason in ("stop", "length")


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_left_to_choose_from(open_engine: Load, kind: str) -> None:
    engine = open_engine(kind, n_ctx=128)
    for fields in (
        {"top_k": 1},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"typical_p": 1e-9},
        {"temperature": 1e-30},
        {"logit_bias": {98: 1e4}},
        {"logit_bias": {token: -1e4 for token in range(N_VOCAB) if token != 98}},
    ):
        result = engine.generate("the abcd", sampling=_sampling(max_tokens=20, **fields), raw=True)
        assert result.finish_reason in ("stop", "length")
        _adds_up(result, 128)
        if "logit_bias" in fields:
            assert set(result.token_ids) == {98}


@pytest.mark.parametrize("memory", MEMORIES, ids=[m.kind.value for m in MEMORIES])
def test_any_draft_length_at_any_distance_from_the_end(memory: Memory) -> None:
    """Every pair of draft length and room left, exactly: no exception, the right end, the counts add up."""
    for n_ctx in range(10, 20):
        expected = plain(WARM, seed=2, n_ctx=n_ctx, max_tokens=None)
        for length in range(1, 9):
            target = ToyModel(TARGET, 23, n_ctx=n_ctx, memory=memory)
            drafters = {"model": ModelDrafter(draft_model(n_ctx=n_ctx - 3, memory=memory)), **text_drafter()}
            sequence = make_sequence(WARM, seed=2, n_ctx=n_ctx, max_tokens=None)
            play(speculator(drafters, length, target=target), sequence)
            assert sequence.tokens == expected.tokens
            assert (sequence.finish, sequence.limit) == ("length", "context")
            assert len(sequence.tokens) == n_ctx


def test_a_context_of_32k() -> None:
    """No time or space that grows with what is held: a round at 32 000 tokens is a round."""
    n_ctx = 32768
    prompt = [int(t) for t in np.random.default_rng(0).integers(0, 23, n_ctx - 40)]
    for memory in MEMORIES:
        target = ToyModel(TARGET, 23, n_ctx=n_ctx, n_batch=4096, memory=memory)
        draft = ModelDrafter(draft_model(n_ctx=n_ctx, n_batch=4096, memory=memory))
        sequence = make_sequence(GREEDY, prompt=prompt, n_ctx=n_ctx, max_tokens=None)
        play(speculator({"model": draft, **text_drafter()}, 5, target=target), sequence)
        assert (sequence.finish, sequence.limit, len(sequence.tokens)) == ("length", "context", n_ctx)
        assert sequence.tokens == plain_32k(prompt, n_ctx)


def plain_32k(prompt: list[int], n_ctx: int) -> list[int]:
    """Greedy decoding from the table itself."""
    tokens = list(prompt)
    while len(tokens) < n_ctx:
        tokens.append(int(TARGET(tokens).argmax()))
    return tokens
