"""Caches and passes of llama.cpp itself, on tiny models."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tiny_gguf import N_VOCAB, write_transformer

from spec_local.errors import Aborted, BackendError, CacheError, UsageError
from spec_local.language_model import Chunk
from spec_local.llama.model import Model, Offload
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.padded import LocalContext, open_context

TOKENS = [84, 104, 101, 32, 97, 98, 99, 100, 200, 13, 7]

Make = Callable[..., LocalContext]


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model(tiny_target) as model:
        yield model


@pytest.fixture
def make(model: Model) -> Iterator[Make]:
    made: list[LocalContext] = []

    def context(**options: Any) -> LocalContext:
        made.append(open_context(model, ContextOptions(**{"n_ctx": 64, "threads": 1, **options})))
        return made[-1]

    yield context
    for context_ in made:
        context_.close()


def _rows(context: LocalContext, tokens: list[int], seq: int = 0, rows: int | None = None) -> np.ndarray:
    return context.decode([Chunk(seq, tokens, len(tokens) if rows is None else rows)])[0].copy()


def test_rows_come_only_where_they_are_asked_for(make: Make) -> None:
    context = make()
    all_rows = _rows(context, TOKENS)
    assert all_rows.shape == (len(TOKENS), N_VOCAB) == (len(TOKENS), context.n_vocab)
    assert all_rows.dtype == np.float32
    for wanted in (0, 1, 3, len(TOKENS)):
        context.trim(0, 0)
        rows = _rows(context, TOKENS, rows=wanted)
        assert rows.shape == (wanted, N_VOCAB)
        np.testing.assert_allclose(rows, all_rows[len(TOKENS) - wanted :], rtol=0, atol=1e-4)


def test_logits_are_read_in_place(make: Make) -> None:
    context = make()
    first = context.decode([Chunk(0, TOKENS, 2)])[0]
    second = context.decode([Chunk(0, [5, 6], 2)])[0]
    assert first.ctypes.data == second.ctypes.data
    assert not first.flags.owndata


def test_many_sequences_in_one_pass_see_only_themselves(make: Make) -> None:
    alone = make()
    expected = [_rows(alone, TOKENS[:4], 0)]
    alone.trim(0, 0)
    expected.append(_rows(alone, TOKENS[4:9], 0))
    together = make(n_seq=3)
    first, second = together.decode([Chunk(0, TOKENS[:4], 4), Chunk(2, TOKENS[4:9], 5)])
    np.testing.assert_allclose(first, expected[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(second, expected[1], rtol=0, atol=1e-4)
    assert [together.length(seq) for seq in range(3)] == [4, 0, 5]
    parts = together.decode([Chunk(2, [1], 1), Chunk(1, TOKENS, 0), Chunk(0, [2, 3], 1)])
    assert [len(rows) for rows in parts] == [1, 0, 1]
    assert [together.length(seq) for seq in range(3)] == [6, len(TOKENS), 6]


def test_padded_passes_of_one_width_give_identical_bits(make: Make) -> None:
    """What a row's bits are must not depend on how many of the pass's tokens are real."""
    for width in (4, 8, 16):
        context = make(pad_width=width)
        expected = np.concatenate([_rows(context, [token]) for token in TOKENS])
        for step in (1, 2, 3, 4):
            context.trim(0, 0)
            pieces = [TOKENS[i : i + step] for i in range(0, len(TOKENS), step)]
            got = np.concatenate([_rows(context, piece) for piece in pieces])
            assert np.array_equal(got, expected), (width, step)
            assert context.length(0) == len(TOKENS)


def test_padding_is_taken_out_again_and_does_not_shorten_the_context(make: Make) -> None:
    context = make(pad_width=8, n_ctx=20)
    for count in range(1, 21):
        _rows(context, [count])
        assert context.length(0) == count
    with pytest.raises(CacheError, match="20 tokens is full"):
        _rows(context, [1])
    assert context.length(0) == 20


def test_padded_passes_give_the_same_bits_whoever_else_is_there(make: Make) -> None:
    """One at a time, or with others whose drafts are rejected on the way: every row is the same, read in any pieces."""
    alone = make(pad_width=4)
    expected = np.concatenate([_rows(alone, [token]) for token in TOKENS])
    context = make(pad_width=4, n_seq=3, max_rows=12)
    context.decode([Chunk(1, TOKENS[:9], 0)])
    got = []
    for at, token in enumerate(TOKENS):
        chunks = [Chunk(1, [9, 9, 9], 3), Chunk(0, [token, 7, 7][: 1 + at % 3], 1 + at % 3), Chunk(2, [at], 1)]
        rows = context.decode(chunks)
        assert [len(part) for part in rows] == [chunk.rows for chunk in chunks]
        got.append(rows[1][:1].copy())
        context.trim(0, at + 1)  # drafts of two sequences are rejected
        context.trim(1, 9)
    assert np.array_equal(np.concatenate(got), expected)
    assert [context.length(seq) for seq in range(3)] == [len(TOKENS), 9, len(TOKENS)]


def test_a_padded_prompt_gives_the_same_bits_in_any_pieces(make: Make) -> None:
    expected = None
    for pieces in ([11], [3, 8], [1, 9, 1], [5, 6]):
        context = make(pad_width=4)
        at, ends = 0, np.cumsum(pieces)
        rows = []
        for end in ends:
            rows.append(context.decode([Chunk(0, TOKENS[at:end], end - at)])[0].copy())
            at = int(end)
        found = np.concatenate(rows)
        expected = found if expected is None else expected
        assert np.array_equal(found, expected), pieces
        assert context.length(0) == 11


def test_a_padded_cache_can_be_taken_over_by_another_sequence(make: Make) -> None:
    context = make(pad_width=4, n_seq=2)
    expected = _rows(context, TOKENS)[5:]
    context.decode([Chunk(1, [9, 9], 0)])
    context.copy(0, 1, 5)
    assert [context.length(seq) for seq in range(2)] == [11, 5]
    assert np.array_equal(context.decode([Chunk(1, TOKENS[5:], 6)])[0], expected)


@pytest.mark.parametrize("pad_width", [0, 4])
def test_an_interrupt_behind_a_pass_makes_no_tokens_of_its_padding(make: Make, pad_width: int) -> None:
    """Ctrl-C is raised as soon as llama.cpp returns: before anything can be taken out again."""
    context, undisturbed = make(pad_width=pad_width), make(pad_width=pad_width)
    for one in (context, undisturbed):
        one.width = lambda rows: -(-rows // 4) * 4
        one.decode([Chunk(0, TOKENS[:5], 0)])
    decode = context.native.decode

    def interrupted() -> int:
        assert decode() == 0
        raise KeyboardInterrupt

    context.native.decode = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        context.decode([Chunk(0, TOKENS[5:8], 3)])
    context.native.decode = decode  # type: ignore[method-assign]
    undisturbed.decode([Chunk(0, TOKENS[5:8], 3)])
    assert context.length(0) == undisturbed.length(0) == 8
    for tokens in (TOKENS[8:9], TOKENS[9:]):
        np.testing.assert_allclose(_rows(context, tokens), _rows(undisturbed, tokens), rtol=0, atol=1e-4)
    assert context.length(0) == len(TOKENS)


def test_padded_passes_stopped_between_two_sequences_leave_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make(pad_width=4, n_seq=3)
    context.decode([Chunk(0, TOKENS[:3], 0), Chunk(1, TOKENS[:6], 0)])
    evaluate = context.inner.decode

    evaluated = []

    def then_stop(chunks: Any) -> list[Any]:
        rows = evaluate(chunks)
        evaluated.append(chunks[0].seq)
        context.abort(chunks[0].seq == 1)
        return list(rows)

    monkeypatch.setattr(context.inner, "decode", then_stop)
    with pytest.raises(Aborted):
        context.decode([Chunk(0, [1], 1), Chunk(1, [2, 3], 2), Chunk(2, [4], 1)])
    context.abort(False)
    assert evaluated == [0, 1]
    assert [context.length(seq) for seq in range(3)] == [3, 6, 0]


def test_trim_forgets_what_it_cuts(make: Make) -> None:
    context = make()
    expected = _rows(context, TOKENS)
    _rows(context, [9, 9, 9])
    context.trim(0, 4)
    assert context.length(0) == 4
    np.testing.assert_allclose(_rows(context, TOKENS[4:]), expected[4:], rtol=0, atol=1e-4)
    context.trim(0, context.length(0))
    context.trim(0, 0)
    assert context.length(0) == 0
    assert context.length(3) == 0


@pytest.mark.parametrize("answer", [False, True])
def test_a_cut_that_was_not_done_is_noticed_whatever_it_answers(
    make: Make, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    context = make()
    _rows(context, TOKENS)
    monkeypatch.setattr(context.native, "lib", _Without(context.native.lib, llama_memory_seq_rm=lambda *_: answer))
    with pytest.raises(CacheError, match="cannot be cut from 11 to 5 tokens"):
        context.trim(0, 5)


class _Without:
    """llama.cpp with some functions exchanged."""

    def __init__(self, lib: Any, **functions: Any) -> None:
        self._lib = lib
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)


def test_checkpoint_and_restore(make: Make) -> None:
    context = make(n_seq=2)
    _rows(context, TOKENS[:6])
    state = context.checkpoint(0)
    expected = _rows(context, TOKENS[6:])
    context.trim(0, 0)
    _rows(context, [1, 2, 3])
    context.restore(0, state)
    assert context.length(0) == 6
    np.testing.assert_allclose(_rows(context, TOKENS[6:]), expected, rtol=0, atol=1e-4)
    with pytest.raises(CacheError):
        context.restore(1, b"nonsense")


def test_a_recurrent_model_is_known_and_restored_by_checkpoint(tiny_recurrent: Path) -> None:
    with Model(tiny_recurrent) as model:
        assert model.recurrent
        context = open_context(model, ContextOptions(n_ctx=64, threads=1))
        expected = _rows(context, TOKENS)
        context.trim(0, 0)
        _rows(context, TOKENS[:5])
        state = context.checkpoint(0)
        _rows(context, [1, 1])
        with pytest.raises(CacheError, match="cannot be cut from 7 to 5"):
            context.trim(0, 5)
        context.trim(0, 0)
        context.restore(0, state)
        np.testing.assert_allclose(_rows(context, TOKENS[5:]), expected[5:], rtol=0, atol=1e-4)
        context.close()


def test_copy_shares_a_prefix(make: Make) -> None:
    context = make(n_seq=2)
    expected = _rows(context, TOKENS)
    _rows(context, [3, 3], 1)
    context.copy(0, 1, 5)
    assert (context.length(0), context.length(1)) == (len(TOKENS), 5)
    context.trim(0, 3)
    _rows(context, [1, 2])
    np.testing.assert_allclose(_rows(context, TOKENS[5:], 1), expected[5:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("n_ctx", [1, 100, 200, 257, 1000])
def test_the_context_holds_exactly_what_was_asked_for(make: Make, n_ctx: int) -> None:
    """llama.cpp rounds up to 256; nobody may notice."""
    context = make(n_ctx=n_ctx, n_batch=512)
    assert context.n_ctx == n_ctx
    for start in range(0, n_ctx, 300):
        _rows(context, [i % 200 for i in range(start, min(n_ctx, start + 300))], rows=0)
    assert context.length(0) == n_ctx
    with pytest.raises(CacheError, match=f"context of {n_ctx} tokens is full"):
        _rows(context, [1])
    assert context.length(0) == n_ctx
    context.trim(0, n_ctx - 1)
    assert _rows(context, [1]).shape == (1, N_VOCAB)


def test_every_sequence_has_a_whole_context(make: Make) -> None:
    context = make(n_ctx=100, n_seq=3)
    for seq in range(3):
        _rows(context, [seq] * 100, seq, rows=0)
    assert [context.length(seq) for seq in range(3)] == [100] * 3


def test_a_stop_is_honoured_before_and_during_a_pass_and_taken_back(tiny_folder: Path) -> None:
    """A context of a slower model, so that a pass takes long enough to be stopped in its middle."""
    path = write_transformer(tiny_folder / "slow.gguf", width=256, layers=8)
    with Model(path) as model:
        context = open_context(model, ContextOptions(n_ctx=4096, n_batch=2048, threads=1))
        expected = _rows(context, TOKENS)
        context.abort(True)
        with pytest.raises(Aborted):
            _rows(context, [1])
        assert context.length(0) == len(TOKENS)
        context.abort(False)

        begun = time.perf_counter()
        _rows(context, [1] * 2000, rows=0)
        whole_s = time.perf_counter() - begun
        context.trim(0, len(TOKENS))
        timer = threading.Timer(whole_s / 10, context.abort, (True,))
        timer.start()
        begun = time.perf_counter()
        with pytest.raises(Aborted, match="2000 tokens was stopped"):
            _rows(context, [1] * 2000, rows=0)
        assert time.perf_counter() - begun < 0.8 * whole_s
        timer.join()
        assert context.length(0) == len(TOKENS)
        context.abort(False)
        context.trim(0, 0)
        assert np.array_equal(_rows(context, TOKENS), expected)
        context.close()


def test_a_stopped_pass_of_a_running_state_leaves_nothing_rather_than_a_wrong_state(tiny_recurrent: Path) -> None:
    with Model(tiny_recurrent) as model:
        context = open_context(model, ContextOptions(n_ctx=64, threads=1))
        expected = _rows(context, TOKENS)
        context.trim(0, 0)
        _rows(context, TOKENS[:5])
        context.native.lib = cast(Any, _Without(context.native.lib, llama_decode=_decode_then(context, 2)))
        with pytest.raises(Aborted):
            _rows(context, [1, 2, 3])
        context.native.lib = context.native.lib._lib
        assert context.length(0) == 0
        np.testing.assert_allclose(_rows(context, TOKENS), expected, rtol=0, atol=1e-4)
        context.close()


@pytest.mark.parametrize(("status", "error"), [(1, CacheError), (2, Aborted), (-1, BackendError), (-3, BackendError)])
def test_a_failed_pass_leaves_the_caches_as_they_were(make: Make, status: int, error: type[Exception]) -> None:
    context = make(n_seq=2)
    expected = _rows(context, TOKENS)
    context.trim(0, 5)
    _rows(context, [1, 2], 1)
    context.native.lib = cast(Any, _Without(context.native.lib, llama_decode=_decode_then(context, status)))
    with pytest.raises(error):
        context.decode([Chunk(0, [7, 7, 7], 1), Chunk(1, [8], 1)])
    context.native.lib = context.native.lib._lib
    assert (context.length(0), context.length(1)) == (5, 2)
    np.testing.assert_allclose(_rows(context, TOKENS[5:]), expected[5:], rtol=0, atol=1e-4)


def _decode_then(context: LocalContext, status: int) -> Callable[..., int]:
    """A decode that does its work, and then says that it failed."""
    decode = context.native.lib.llama_decode

    def failing(*arguments: Any) -> int:
        assert decode(*arguments) == 0
        return status

    return failing


def test_a_token_that_does_not_exist_is_an_error_and_changes_nothing(make: Make) -> None:
    context = make()
    _rows(context, TOKENS)
    with pytest.raises(BackendError, match="status -1"):
        _rows(context, [N_VOCAB])
    assert context.length(0) == len(TOKENS)


def test_a_closed_context_says_so(make: Make) -> None:
    context = make()
    _rows(context, TOKENS)
    context.close()
    context.close()
    with pytest.raises(BackendError, match="closed"):
        _rows(context, [1])
    assert context.length(0) == 0


def test_options_that_do_not_exist_are_refused(make: Make) -> None:
    with pytest.raises(UsageError, match="q9"):
        make(cache_type_k="q9")
    with pytest.raises(UsageError, match="sometimes"):
        make(flash_attention="sometimes")


def test_cache_types_and_flash_attention_give_nearly_the_same_numbers(make: Make) -> None:
    expected = _rows(make(flash_attention="off"), TOKENS)
    for options in (
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        {"cache_type_k": "bf16"},
        {"flash_attention": "on"},
    ):
        np.testing.assert_allclose(_rows(make(**options), TOKENS), expected, rtol=0, atol=0.5)


def test_too_large_a_context_is_a_sentence(model: Model, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="6400000000 tokens"):
        make(n_ctx=100_000_000, n_seq=64)
    monkeypatch.setattr(
        "spec_local.llama.native.llama", lambda: _Without(model._lib, llama_init_from_model=lambda *_: None)
    )
    with pytest.raises(BackendError, match=r"cannot make a context of 64 tokens for target\.gguf") as caught:
        make()
    assert "--n-ctx" in caught.value.hint


def test_a_pass_is_filled_up_where_there_is_room_and_the_rows_are_the_same(tiny_target: Path) -> None:
    tokens = [5, 6, 7, 8, 9]
    with Model(tiny_target, Offload(devices=("none",))) as model:
        plain = open_context(model, ContextOptions(n_ctx=32, max_rows=8, threads=1))
        filled = open_context(model, ContextOptions(n_ctx=32, max_rows=8, threads=1))
        asked: list[int] = []

        def width(rows: int) -> int:
            asked.append(rows)
            return -(-rows // 4) * 4

        filled.width = width
        try:
            for context in (plain, filled):
                context.decode([Chunk(0, tokens, 0)])  # a prefill is not filled up
            assert asked == []
            for rows in (3, 8, 5):
                (expected,), (found,) = (c.decode([Chunk(0, tokens[:1] * rows, rows)]) for c in (plain, filled))
                assert found.shape == (rows, model.vocabulary.size)
                np.testing.assert_allclose(found, expected, atol=1e-4)
                assert filled.length(0) == plain.length(0)
            assert asked == [3, 8, 5]
            filled.decode([Chunk(0, tokens * 2, 0)])  # 31 of 32 tokens: no room for rows of no use
            filled.decode([Chunk(0, [3], 1)])
            assert filled.length(0) == 32
        finally:
            plain.close()
            filled.close()
