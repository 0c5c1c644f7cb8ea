"""Hidden states of a pass: every token's own, whatever the pass was cut into, and never those of a pass that failed.

The oracle needs no second implementation: the output layer of the file times a token's state is that token's logits.
The `hidden` files go further: a state says which token it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
from native_faults import ABORTED, FAILED, NO_ROOM, NativeFaults
from tiny_gguf import write_convolutional, write_hybrid, write_recurrent, write_transformer, write_windowed
from tiny_mtp import WIDTH, Arch, Kind, successor, write_mtp

from spec_local.errors import Aborted, BackendError, CacheError
from spec_local.language_model import Chunk, MemoryKind, StatesModel
from spec_local.llama import library, native
from spec_local.llama.memory_probe import classify
from spec_local.llama.model import Model
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.padded import LocalContext, open_context

TOKENS = [84, 104, 101, 32, 97, 98, 99, 100, 200, 13, 7]
TOLERANCE = 0.02
"""Rounding of the float16 cache and of passes of different width; states are of size 1, and another's is far away."""
Make = Callable[..., LocalContext]


@pytest.fixture(scope="module", params=["hy_v3", "qwen35"])
def arch(request: pytest.FixtureRequest) -> Arch:
    return cast(Arch, request.param)


@pytest.fixture(scope="module", params=["token", "hidden", "random"])
def model(request: pytest.FixtureRequest, arch: Arch, tiny_folder: Path) -> Iterator[Model]:
    kind = cast(Kind, request.param)
    with Model(write_mtp(tiny_folder / f"{arch}-{kind}.gguf", arch, kind, seed=3)) as model:
        yield model


@pytest.fixture
def make(model: Model) -> Iterator[Make]:
    made: list[LocalContext] = []

    def context(**options: Any) -> LocalContext:
        defaults = {"n_ctx": 64, "n_batch": 16, "max_rows": 16, "threads": 1, "states": True}
        made.append(open_context(model, ContextOptions(**{**defaults, **options})))
        return made[-1]

    yield context
    for one in made:
        one.close()


def output_layer(path: Path) -> np.ndarray:
    """float32 [n_vocab, width]."""
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "output.weight")
    return np.array(tensor.data, np.float32).reshape(-1, WIDTH)


def decode(context: LocalContext, tokens: list[int], seq: int = 0, rows: int = 0) -> np.ndarray:
    """States of tokens appended to `seq`: a copy."""
    context.decode([Chunk(seq, tokens, rows, states=True)])
    (states,) = context.states()
    assert states is not None
    assert (states.shape, states.dtype) == ((len(tokens), context.state_width), np.float32)
    return states.copy()


def test_the_output_layer_makes_a_tokens_logits_of_its_state(model: Model, make: Make) -> None:
    context = make()
    assert isinstance(context, StatesModel)
    assert (context.state_width, context.no_states) == (WIDTH, "")
    (logits,) = context.decode([Chunk(0, TOKENS, len(TOKENS), states=True)])
    (states,) = context.states()
    assert states is not None
    np.testing.assert_allclose(states @ output_layer(model.path).T, logits, rtol=0, atol=1e-3)
    assert not states.flags.owndata, "they are read in place"
    if "hidden" in model.path.name:
        assert logits.argmax(axis=1).tolist() == [successor(token, 3) for token in TOKENS]


def test_every_token_has_its_state_whether_logits_are_wanted_or_not(make: Make) -> None:
    context = make()
    expected = decode(context, TOKENS, rows=len(TOKENS))
    for rows in (0, 1, 4):
        context.trim(0, 0)
        np.testing.assert_allclose(decode(context, TOKENS, rows=rows), expected, rtol=0, atol=TOLERANCE)
    context.trim(0, 0)
    pieces = [decode(context, TOKENS[start : start + 3]) for start in range(0, len(TOKENS), 3)]
    np.testing.assert_allclose(np.concatenate(pieces), expected, rtol=0, atol=TOLERANCE)


def test_each_chunk_gets_its_own_and_only_where_it_asked(make: Make) -> None:
    expected = [decode(make(), tokens) for tokens in (TOKENS[:4], TOKENS[4:9])]
    for options in ({}, {"pad_width": 4}):
        context = make(n_seq=3, **options)
        if options and not classify(context).free:
            continue  # several padded running states are refused: no snapshots take the padding out again
        chunks = [Chunk(2, TOKENS[:4], 1, states=True), Chunk(0, [1, 2, 3], 2), Chunk(1, TOKENS[4:9], 0, states=True)]
        context.decode(chunks)
        first, none, last = context.states()
        assert none is None and first is not None and last is not None
        np.testing.assert_allclose(first, expected[0], rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(last, expected[1], rtol=0, atol=TOLERANCE)
        context.decode([Chunk(0, [4], 1), Chunk(1, [5], 0)])
        assert context.states() == [None, None]


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 11])
def test_padding_has_none_and_the_bits_are_those_of_any_pieces(make: Make, tokens: int) -> None:
    context = make(pad_width=4, snapshots=3)
    classify(context)
    expected = np.concatenate([decode(context, [token]) for token in TOKENS[:tokens]])
    context.trim(0, 0)
    assert np.array_equal(decode(context, TOKENS[:tokens]), expected)
    assert context.length(0) == tokens


def test_rows_added_to_fill_a_pass_have_none(make: Make) -> None:
    context, filled = make(), make()
    filled.width = lambda rows: -(-rows // 4) * 4
    for tokens in (TOKENS[:3], TOKENS[3:4], TOKENS[4:9]):
        expected = decode(context, tokens, rows=len(tokens))
        np.testing.assert_allclose(decode(filled, tokens, rows=len(tokens)), expected, rtol=0, atol=TOLERANCE)
        assert filled.length(0) == context.length(0)


@pytest.mark.parametrize("status", [NO_ROOM, ABORTED, FAILED])
@pytest.mark.parametrize("pad_width", [0, 4])
def test_those_of_a_pass_that_failed_are_never_handed_out(make: Make, status: int, pad_width: int) -> None:
    """Of padded passes it is the second one that fails: those of the first are not handed out either."""
    context = make(pad_width=pad_width, snapshots=3)
    classify(context)
    decode(context, TOKENS[:4])
    faults = NativeFaults(context)
    faults.decode_at(1 if pad_width else 0, status)
    with pytest.raises((BackendError, Aborted)):
        decode(context, TOKENS[4:10])
    assert context.states() == []
    faults.undo()
    context.trim(0, 0)
    expected = decode(context, TOKENS[:6])
    for refused, error in ((lambda: decode(context, [1] * 15 * 5), CacheError), (stopped(context), Aborted)):
        with pytest.raises(error):
            refused()
        assert context.states() == [], "nor those of the pass before one that never began"
    context.abort(False)
    context.trim(0, 0)
    np.testing.assert_allclose(decode(context, TOKENS[:6]), expected, rtol=0, atol=TOLERANCE)
    context.close()
    assert context.states() == []


def stopped(context: LocalContext) -> Callable[[], object]:
    def run() -> object:
        context.abort(True)
        return decode(context, [1])

    return run


def test_they_are_right_after_drafts_are_rejected(arch: Arch, model: Model, make: Make) -> None:
    expected = decode(make(), TOKENS)
    context = make(snapshots=3)
    kind = classify(context).kind
    assert kind is (MemoryKind.SNAPSHOTS if arch == "qwen35" else MemoryKind.ANYWHERE)
    at = 0
    while at < len(TOKENS):
        keep = min(2, len(TOKENS) - at)
        states = decode(context, [*TOKENS[at : at + keep], 3, 4], rows=2)
        np.testing.assert_allclose(states[:keep], expected[at : at + keep], rtol=0, atol=TOLERANCE)
        at += keep
        context.trim(0, at)


def test_nothing_is_switched_on_unless_it_is_asked_for(make: Make) -> None:
    context = make(states=False)
    assert (context.state_width, context.no_states) == (0, "they were not asked for")
    (logits,) = context.decode([Chunk(0, TOKENS, 2)])
    assert context.states() == [None]
    with pytest.raises(AssertionError, match="not asked for"):
        context.decode([Chunk(0, [1], 1, states=True)])
    asked = make()
    (same,) = asked.decode([Chunk(0, TOKENS, 2)])
    assert np.array_equal(logits, same), "they change no logits"


@pytest.mark.parametrize(
    "write", [write_transformer, write_windowed, write_recurrent, write_hybrid, write_convolutional]
)
def test_an_architecture_whose_graph_has_none_is_found_out(write: Callable[..., Path], tiny_folder: Path) -> None:
    """llama.cpp then hands out a buffer nobody wrote to, as if it were states."""
    with Model(write(tiny_folder / f"stateless-{write.__name__}.gguf", seed=4)) as model:
        context = open_context(model, ContextOptions(n_ctx=64, threads=1, states=True))
        assert context.state_width == 0
        assert f"{model.architecture} models does not hand them out" in context.no_states
        assert context.length(0) == 0
        context.decode([Chunk(0, [1, 2], 1)])
        assert context.states() == [None]
        context.close()


def test_a_build_without_the_functions_is_a_reason(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "hidden_states", lambda: None)
    context = open_context(model, ContextOptions(n_ctx=64, threads=1, states=True))
    assert context.state_width == 0
    assert "exports no function" in context.no_states
    context.close()


def test_the_functions_are_found_under_the_name_of_any_compiler() -> None:
    assert library.hidden_states() is not None
    for names in library._HIDDEN_STATES.values():
        for name in names:
            exports = type("Exports", (), {name: "found"})
            assert library._exported(exports, names) == "found"
        assert library._exported(object(), names) is None
