"""The fault matrix on llama.cpp itself: each call of an answer fails once, in the target and in the draft.

Afterwards: a sentence or a degraded answer with its reason, caches that are right (oracle O3), and an engine whose next
answer is the one it would have given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from native_faults import ABORTED, FAILED, INVALID, NO_ROOM, OUT_OF_MEMORY, NativeFaults, check_caches, native
from tiny_gguf import write_convolutional, write_hybrid, write_recurrent, write_transformer

from spec_local.errors import BackendError, SpecLocalError
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions
from spec_local.session.result import Result

PROMPT = "the abcd on an inn, the abcd on an inn, the "
KINDS: dict[str, Callable[..., Path]] = {
    "transformer": write_transformer,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
    "snapshots": write_convolutional,
}
SAMPLING = Sampling(temperature=0.8, seed=5, max_tokens=14, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tiny_folder: Path) -> Iterator[Engine]:
    write = KINDS[request.param]
    paths = [tiny_folder / f"fault-{request.param}-{i}.gguf" for i in range(2)]
    for path, near in zip(paths, (0.0, 0.1), strict=True):
        if not path.exists():
            write(path, seed=6, near=near)
    options = EngineOptions(n_ctx=128, threads=1, draft_length=3, batch_size=16, cache_type_k="f32", cache_type_v="f32",
                            draft_cache_type_k="f32", draft_cache_type_v="f32", flash_attn="off")  # fmt: skip
    with load(paths[0], draft=paths[1], options=options) as engine:
        yield engine


def _answer(engine: Engine, sampling: Sampling = SAMPLING) -> Result:
    return engine.generate(PROMPT, sampling=sampling, raw=True)


def _anew(engine: Engine, drafters: dict[str, Any]) -> None:
    """As after loading: empty caches, all drafters."""
    engine.speculator.drafters = dict(drafters)
    engine.speculator.off.clear()
    engine.speculator.release(0)


def _tokens(engine: Engine, ids: tuple[int, ...]) -> list[int]:
    return [*engine.tokenize(Request(PROMPT, raw=True))[0], *ids]


@pytest.mark.parametrize("status", [NO_ROOM, ABORTED, INVALID, OUT_OF_MEMORY, FAILED])
def test_a_target_pass_that_fails_at_every_call(engine: Engine, status: int) -> None:
    drafters = engine.speculator.drafters
    expected = _answer(engine)
    counter = NativeFaults(engine.loaded.target)
    _anew(engine, drafters)
    assert _answer(engine).token_ids == expected.token_ids
    calls = counter.decodes
    counter.undo()
    assert calls > 6
    for call in range(calls):
        _anew(engine, drafters)
        faults = NativeFaults(engine.loaded.target)
        faults.decode_at(call, status)
        stream = engine.stream(PROMPT, sampling=SAMPLING, raw=True)
        if status == ABORTED:
            for _ in stream:
                pass
            assert stream.result.finish_reason == "cancelled"
        else:
            with pytest.raises(BackendError, match=r"A pass over \d+ tokens"):
                list(stream)
            assert stream.result.finish_reason == "error"
        ids = stream.result.token_ids
        assert ids == expected.token_ids[: len(ids)]
        faults.undo()
        check_caches(engine, _tokens(engine, ids))
        assert _answer(engine).token_ids == expected.token_ids


@pytest.mark.parametrize("status", [NO_ROOM, OUT_OF_MEMORY, FAILED])
def test_a_draft_pass_that_fails_at_every_call_costs_the_draft_only(engine: Engine, status: int) -> None:
    drafters = engine.speculator.drafters
    expected = _answer(engine)
    draft = engine.loaded.draft
    assert draft is not None
    for call in range(8):
        _anew(engine, drafters)
        faults = NativeFaults(draft)
        faults.decode_at(call, status)
        result = _answer(engine)
        assert result.token_ids == expected.token_ids
        assert faults.decodes > call
        assert "model: A pass over" in result.speculation_reason
        faults.undo()
        check_caches(engine, _tokens(engine, result.token_ids))
    _anew(engine, drafters)
    assert _answer(engine).token_ids == expected.token_ids


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none(engine: Engine, value: float) -> None:
    drafters = engine.speculator.drafters
    expected = _answer(engine)
    target, draft = engine.loaded.target, engine.loaded.draft
    assert draft is not None
    for call in (4, 6):
        _anew(engine, drafters)
        faults = NativeFaults(target)
        faults.logits_at(call, value)
        stream = engine.stream(PROMPT, sampling=SAMPLING, raw=True)
        with pytest.raises(SpecLocalError, match=r"NaN|finite|has no token"):
            list(stream)
        ids = stream.result.token_ids
        assert ids == expected.token_ids[: len(ids)]
        faults.undo()
        check_caches(engine, _tokens(engine, ids))
        assert _answer(engine).token_ids == expected.token_ids

        _anew(engine, drafters)
        faults = NativeFaults(draft)
        faults.logits_at(call, value)
        assert _answer(engine).token_ids == expected.token_ids
        faults.undo()
    _anew(engine, drafters)
    assert _answer(engine).token_ids == expected.token_ids


def test_cuts_that_are_refused(engine: Engine) -> None:
    """Where cutting is all there is, speculation ends with its reason; a running state goes back by what was saved."""
    drafters = engine.speculator.drafters
    expected = _answer(engine)
    for context in (engine.loaded.target, engine.loaded.draft):
        assert context is not None
        _anew(engine, drafters)
        faults = NativeFaults(context)
        faults.refuse_cuts = True
        for _ in range(2):
            result = _answer(engine)
            assert result.token_ids == expected.token_ids
        faults.undo()
        check_caches(engine, _tokens(engine, result.token_ids))
    _anew(engine, drafters)
    assert _answer(engine).token_ids == expected.token_ids


def test_saved_states_that_cannot_be_taken_back(tiny_folder: Path) -> None:
    path = write_recurrent(tiny_folder / "untaken.gguf", seed=6)
    with load(path, draft="text", options=EngineOptions(n_ctx=128, threads=1, draft_length=3)) as engine:
        expected = _answer(engine)
        engine.speculator.release(0)

        class Untaken:
            def __getattr__(self, name: str) -> Any:
                return getattr(lib, name)

            def llama_state_seq_set_data_ext(self, *_: Any) -> int:
                return 0

        target = native(engine.loaded.target)
        lib = target.lib
        target.lib = cast(Any, Untaken())
        result = _answer(engine)
        assert result.token_ids == expected.token_ids
        assert result.speculation_state == "off"
        assert "does not take back a state" in result.speculation_reason


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cancel_at_every_pass(engine: Engine, role: str, when: str) -> None:
    """Prefill, draft, verify and between them: before a pass begins and as one ends."""
    drafters = engine.speculator.drafters
    expected = _answer(engine)
    context = engine.loaded.target if role == "target" else engine.loaded.draft
    assert context is not None
    stopped = 0
    for call in range(10):
        _anew(engine, drafters)
        faults = NativeFaults(context)
        getattr(faults, when)[call] = engine.cancel
        stream = engine.stream(PROMPT, sampling=SAMPLING, raw=True)
        text = "".join(piece.text for piece in stream)
        result = stream.result
        stopped += result.finish_reason == "cancelled"
        assert result.finish_reason == "cancelled" or result.token_ids == expected.token_ids  # too late to matter
        assert result.text == text
        assert result.token_ids == expected.token_ids[: len(result.token_ids)]
        assert len(result.token_ids) == sum(r.emitted for r in result.rounds)
        assert not engine.speculator.off
        faults.undo()
        check_caches(engine, _tokens(engine, result.token_ids))
        assert _answer(engine).token_ids == expected.token_ids
    assert stopped > 3


def test_a_cancel_while_loading_leaves_nothing_open(tiny_folder: Path) -> None:
    from spec_local.errors import Aborted

    path = write_transformer(tiny_folder / "cancelled.gguf", seed=6)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for stop_at in (0.0, 0.5):
        with pytest.raises(Aborted, match="was cancelled"):
            load(path, draft=path, progress=lambda _, fraction, at=stop_at: fraction < at)  # type: ignore[misc]
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 1


def test_clocks_that_jump_change_no_text(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backwards, by years, standing still: figures may be odd, decisions and texts are not."""
    import itertools
    import time

    expected = _answer(engine)
    for times in ([0.0], [1e9, -1e9, 5.0], [float(i * (-1) ** i) for i in range(50)]):
        clock = itertools.cycle(times)
        monkeypatch.setattr(engine.speculator, "_clock", lambda clock=clock: next(clock))
        monkeypatch.setattr(time, "perf_counter", lambda clock=clock: next(clock))
        result = _answer(engine)
        assert result.token_ids == expected.token_ids
        result.as_dict(), result.summary()
        monkeypatch.undo()
