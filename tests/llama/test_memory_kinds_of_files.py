"""What llama.cpp's memories really do, on files of every kind: recurrent, hybrid, sliding window, experts.

Oracle O3 throughout: after any history of passes, cuts and failures, what the model says next must be what it says from
an empty cache that was fed the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tiny_gguf import (
    write_convolutional,
    write_experts,
    write_hybrid,
    write_recurrent,
    write_transformer,
    write_windowed,
)

from spec_local.errors import BackendError, CacheError
from spec_local.language_model import Chunk, MemoryKind
from spec_local.llama.checkpoints import SAVED_STATES
from spec_local.llama.memory_probe import classify
from spec_local.llama.model import Model
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.padded import LocalContext, open_context
from spec_local.llama.running_state import RunningStateRollback

TOLERANCE = 0.05
"""Rounding of the float16 cache and of passes of different width; another history moves logits by whole units."""


@dataclass(frozen=True)
class Case:
    write: Callable[..., Path]
    kind: MemoryKind
    context: dict[str, Any]
    file: dict[str, Any]


CASES = {
    "transformer": Case(write_transformer, MemoryKind.ANYWHERE, {}, {}),
    "experts": Case(write_experts, MemoryKind.ANYWHERE, {}, {}),
    "whole window": Case(write_windowed, MemoryKind.ANYWHERE, {}, {}),
    "window": Case(write_windowed, MemoryKind.WINDOW, {"whole_window": False}, {}),
    "recurrent": Case(write_recurrent, MemoryKind.CHECKPOINTS, {}, {}),
    "hybrid": Case(write_hybrid, MemoryKind.CHECKPOINTS, {}, {}),
    "hybrid experts": Case(write_hybrid, MemoryKind.CHECKPOINTS, {}, {"experts": 4}),
    "snapshots": Case(write_convolutional, MemoryKind.SNAPSHOTS, {"snapshots": 7}, {}),
    "one snapshot": Case(write_convolutional, MemoryKind.SNAPSHOTS, {"snapshots": 1}, {}),
    "convolutional": Case(write_convolutional, MemoryKind.CHECKPOINTS, {}, {}),
    "snapshots of several": Case(write_convolutional, MemoryKind.CHECKPOINTS, {"snapshots": 7, "n_seq": 3}, {}),
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def model(case: Case, tiny_folder: Path) -> Iterator[Model]:
    name = f"{case.write.__name__}-{len(case.file)}.gguf"
    with Model(case.write(tiny_folder / name, seed=4, **case.file)) as model:
        yield model


@pytest.fixture
def context(case: Case, model: Model) -> Iterator[LocalContext]:
    context = open_context(model, ContextOptions(**{"n_ctx": 128, "n_batch": 32, "threads": 1, **case.context}))
    classify(context)
    yield context
    context.close()


def _fresh(model: Model, tokens: list[int]) -> np.ndarray:
    context = open_context(model, ContextOptions(n_ctx=256, n_batch=256, threads=1))
    try:
        row: np.ndarray = context.decode([Chunk(0, tokens, 1)])[0][0].copy()
        return row
    finally:
        context.close()


def _says(context: LocalContext, tokens: list[int], token: int, seq: int = 0) -> np.ndarray:
    """The row after `token`, which is then taken out again where that is free."""
    assert context.length(seq) == len(tokens)
    context.mark(seq, 1)
    row: np.ndarray = context.decode([Chunk(seq, [token], 1)])[0][0].copy()
    return row


def test_the_kind_is_found_and_the_caches_are_left_empty(case: Case, context: LocalContext) -> None:
    assert context.memory.kind is case.kind
    assert context.length(0) == 0
    assert context.memory.cuttable
    assert context.memory.free == (case.kind in (MemoryKind.ANYWHERE, MemoryKind.WINDOW))
    assert bool(context.memory.reason) == (case.kind is not MemoryKind.ANYWHERE)


@pytest.mark.parametrize("seed", range(4))
def test_random_rounds_leave_the_state_of_their_tokens(model: Model, context: LocalContext, seed: int) -> None:
    """As rounds do it: mark, pass over a draft, cut to what was accepted, read what the cut took too much."""
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    cuts = 0
    for step in range(60):
        if len(tokens) > 100 or (tokens and random.random() < 0.07):  # a later turn: far back, or anew
            length = int(random.integers(0, len(tokens)))
            left = context.foothold(0, length)
            assert 0 <= left <= length
            context.trim(0, left)
            del tokens[left:]
        draft = [int(t) for t in random.integers(0, 250, int(random.integers(1, 7)))]
        keep = int(random.integers(1, len(draft) + 1))
        if random.random() < 0.2:
            context.mark(0)
        context.mark(0, len(draft) - 1)
        context.decode([Chunk(0, draft, 1)])
        tokens += draft[:keep]
        left = context.foothold(0, len(tokens))
        cuts += left < len(tokens)
        context.trim(0, left)
        if left < len(tokens):  # read again, as the next round would along with its own
            assert context.memory.kind in (MemoryKind.CHECKPOINTS, MemoryKind.SNAPSHOTS, MemoryKind.WINDOW)
            context.decode([Chunk(0, tokens[left:], 0)])
        assert context.length(0) == len(tokens)
        if step % 6 == 5:
            token = int(random.integers(0, 250))
            np.testing.assert_allclose(
                _says(context, tokens, token), _fresh(model, [*tokens, token]), rtol=0, atol=TOLERANCE
            )
            left = context.foothold(0, len(tokens))
            context.trim(0, left)
            if left < len(tokens):
                context.decode([Chunk(0, tokens[left:], 0)])
    assert context.memory.kind is not MemoryKind.CHECKPOINTS or cuts > 10


def test_a_cut_without_a_foothold_is_refused_and_changes_nothing_wrongly(model: Model, context: LocalContext) -> None:
    tokens = [5, 6, 7, 8, 9, 10, 11]
    context.decode([Chunk(0, tokens[:4], 0)])
    context.decode([Chunk(0, tokens[4:], 1)])
    if context.memory.free:
        assert context.foothold(0, 3) == 3
        return
    assert context.foothold(0, 3) == 0
    with pytest.raises(CacheError, match="keeps a running state"):
        context.trim(0, 3)
    np.testing.assert_allclose(_says(context, tokens, 3), _fresh(model, [*tokens, 3]), rtol=0, atol=TOLERANCE)
    context.trim(0, 0)
    assert context.length(0) == 0


def test_a_snapshot_is_not_believed_beyond_what_the_last_pass_wrote(tiny_folder: Path) -> None:
    """llama.cpp says yes to going seven states back after a pass of two tokens, to states of an earlier text."""
    with Model(write_convolutional(tiny_folder / "snapshots.gguf", seed=4)) as model:
        context = open_context(model, ContextOptions(n_ctx=64, threads=1, snapshots=7))
        context.decode([Chunk(0, [1, 2, 3, 4, 5, 6, 7, 8], 0)])
        context.decode([Chunk(0, [9, 10], 0)])
        assert context.foothold(0, 9) == 9
        assert context.foothold(0, 8) == 0
        with pytest.raises(CacheError):
            context.trim(0, 7)
        context.trim(0, 9)  # and a snapshot is gone back to once
        assert context.foothold(0, 8) == 0
        np.testing.assert_allclose(
            _says(context, [*range(1, 10)], 77), _fresh(model, [*range(1, 10), 77]), rtol=0, atol=TOLERANCE
        )
        context.close()


@pytest.mark.parametrize("status", [2, -3, -2, -1])
def test_a_pass_that_broke_off_is_taken_back_whole(model: Model, context: LocalContext, status: int) -> None:
    """The pass is computed and then said to have failed, as an abort in its last node would leave it."""
    tokens = [5, 6, 7, 8, 9]
    context.decode([Chunk(0, tokens, 0)])
    context.mark(0)
    decode = context.native.lib.llama_decode

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def llama_decode(self, *arguments: Any) -> int:
            assert decode(*arguments) == 0
            # llama.cpp itself takes the failed pass out of its memory, and believes its snapshots
            lib.llama_memory_seq_rm(lib.llama_get_memory(arguments[0]), 0, len(tokens), -1)
            return status

    lib = context.native.lib
    context.native.lib = cast(Any, Failing())
    with pytest.raises(BackendError if status < 0 else Exception):
        context.decode([Chunk(0, [1, 2, 3], 1)])
    context.native.lib = lib
    assert context.length(0) == len(tokens)
    np.testing.assert_allclose(_says(context, tokens, 3), _fresh(model, [*tokens, 3]), rtol=0, atol=TOLERANCE)


def test_marks_for_later_turns_are_few_and_the_first_one_stays(tiny_folder: Path) -> None:
    with Model(write_recurrent(tiny_folder / "marks.gguf", seed=4)) as model:
        context = open_context(model, ContextOptions(n_ctx=256, threads=1))
        for _ in range(10):
            context.decode([Chunk(0, [1, 2, 3, 4], 0)])
            context.mark(0)
            context.decode([Chunk(0, [5], 0)])
            context.mark(0, 3)
        rollback = context.inner._rollback
        assert isinstance(rollback, RunningStateRollback)
        saved = rollback._checkpoints._saved
        assert len(saved[0]) == SAVED_STATES
        assert context.foothold(0, 49) == 49
        assert context.foothold(0, 48) == 44
        assert context.foothold(0, 43) == 4
        assert context.foothold(0, 3) == 0
        context.trim(0, 4)
        assert len(saved[0]) == 1
        context.close()


def test_padded_passes_with_snapshots_have_the_same_bits_at_any_draft(tiny_folder: Path) -> None:
    tokens = [84, 104, 101, 32, 97, 98, 99, 100, 200, 13, 7]
    with Model(write_convolutional(tiny_folder / "padded.gguf", seed=4)) as model:
        expected = None
        for step in (1, 2, 3, 4):  # a piece and its rejected draft fit one pass
            context = open_context(model, ContextOptions(n_ctx=64, threads=1, snapshots=7, pad_width=8))
            classify(context)
            rows = []
            for start in range(0, len(tokens), step):
                piece = tokens[start : start + step]
                draft = [*piece, *[3] * (step - 1)]  # what follows is rejected
                rows.append(context.decode([Chunk(0, draft, len(draft))])[0][: len(piece)].copy())
                context.trim(0, start + len(piece))
                assert context.length(0) == start + len(piece)
            got = np.concatenate(rows)
            expected = got if expected is None else expected
            assert np.array_equal(got, expected), step
            context.close()


@pytest.mark.parametrize("lie", ["yes", "state"])
def test_a_memory_that_lies_is_found_out(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    """A cut that reports success and leaves the state as it was: nothing but the logits shows it."""
    write = write_convolutional if lie == "yes" else write_recurrent
    with Model(write(tiny_folder / f"lying-{lie}.gguf", seed=4)) as model:
        context = open_context(model, ContextOptions(n_ctx=64, threads=1, snapshots=7))
        lib = context.native.lib

        class Lying:
            def __getattr__(self, name: str) -> Any:
                return getattr(lib, name)

            def llama_memory_seq_rm(self, memory: Any, seq: int, start: int, end: int) -> bool:
                if start <= 0:
                    return bool(lib.llama_memory_seq_rm(memory, seq, start, end))
                held = lib.llama_memory_seq_pos_max(memory, seq) + 1
                if held > start:  # the positions are moved back, the state is not
                    lib.llama_memory_seq_add(memory, seq, 0, -1, start - held)
                return True

            def llama_state_seq_set_data_ext(self, context: Any, data: Any, size: int, seq: int, flags: int) -> int:
                return (
                    size if lie == "state" else int(lib.llama_state_seq_set_data_ext(context, data, size, seq, flags))
                )

        context.native.lib = cast(Any, Lying())
        found = classify(context)
        assert found.kind is (MemoryKind.CHECKPOINTS if lie == "yes" else MemoryKind.NOWHERE)
        context.native.lib = lib
        context.close()


def test_a_whole_window_that_gave_cells_away_says_how_far_back_it_can_be_cut(tmp_path: Path) -> None:
    """llama.cpp fills the cells of tokens that left the window before it looks for free ones behind them."""
    rng = np.random.default_rng(4)
    with Model(write_windowed(tmp_path / "window.gguf", seed=3)) as model:
        options = ContextOptions(n_ctx=64, n_seq=3, n_batch=32, max_rows=4, threads=1, flash_attention="off")
        context, fresh = open_context(model, options), open_context(model, options)
        shortened = 0
        try:
            classify(context)
            assert context.memory.kind is MemoryKind.ANYWHERE
            histories: dict[int, list[int]] = {0: [], 1: [], 2: []}
            for _ in range(400):
                seq = int(rng.integers(3))
                held = histories[seq]
                if len(held) > 40 or (held and rng.random() < 0.3):
                    wanted = int(rng.integers(len(held)))
                    length = context.foothold(seq, wanted)
                    assert length in (0, wanted)
                    shortened += length < wanted
                    context.trim(seq, length)
                    del held[length:]
                fresh_tokens = [int(t) for t in rng.integers(3, 20, int(rng.integers(1, 12)))]
                rows = context.decode([Chunk(seq, fresh_tokens, 1)])[0][0].copy()
                held += fresh_tokens
                if rng.random() < 0.2:
                    fresh.trim(0, 0)
                    for start in range(0, len(held) - 1, 32):
                        fresh.decode([Chunk(0, held[:-1][start : start + 32], 0)])
                    right = fresh.decode([Chunk(0, held[-1:], 1)])[0][0]
                    assert np.abs(rows - right).max() < TOLERANCE
        finally:
            context.close()
            fresh.close()
        assert shortened > 5, "cells were never given away: this shows nothing"
