from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spec_local.llama.context import Context
from spec_local.sampling import Sampling
from spec_local.session import numerics as module
from spec_local.session.engine import load
from spec_local.session.numerics import Numerics, probe, widths_in_use
from spec_local.session.options import EngineOptions


def options(**values: object) -> EngineOptions:
    return EngineOptions(threads=1, n_ctx=256, **{"draft_length": 7, **values})


def test_widths_that_are_compared_are_widths_in_use() -> None:
    assert widths_in_use(0, options()) == ()
    assert widths_in_use(1, options()) == (2,)
    assert widths_in_use(4, options()) == (2, 4, 5)
    assert widths_in_use(16, options()) == (2, 4, 8)
    assert widths_in_use(7, options(pad_width=8)) == ()  # one width, nothing to compare


def test_ordinary_passes_have_a_tolerance_and_padded_ones_are_bitwise(tiny_target: Path) -> None:
    with load(tiny_target, draft="text", options=options()) as engine:
        found = engine.numerics
        assert found.tier == "tolerance"
        assert 0 < found.epsilon < 0.1
        assert "tolerance" in found.sentence()
        shown = engine.generate("hello", raw=True, sampling=Sampling(max_tokens=2)).as_dict()["model"]["numerics"]
        assert shown == json.loads(json.dumps(found.as_dict()))
    with load(tiny_target, draft="text", options=options(pad_width=8)) as engine:
        assert engine.numerics == Numerics("bitwise", 0.0, 0, 0, ())
        measured = probe(engine.loaded.target, (2, 4, 8))  # what that rests on
        assert measured == Numerics("bitwise", 0.0, 0, 24, (2, 4, 8))
        assert "same bits" in measured.sentence()


def test_plain_decoding_is_bitwise_without_a_measurement(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "probe", lambda *_: pytest.fail("nothing is to be measured"))
    with load(tiny_target, draft="none", options=options()) as engine:
        assert engine.numerics.tier == "bitwise"
        assert engine.numerics.widths == ()


def test_the_finding_is_kept_for_the_next_start(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(tiny_target, draft="text", options=options(draft_length=2)) as engine:
        first = engine.numerics
    passes = []
    right = Context.decode

    def decode(self: Context, chunks: Any) -> Any:
        passes.append(chunks)
        return right(self, chunks)

    monkeypatch.setattr(Context, "decode", decode)
    with load(tiny_target, draft="text", options=options(draft_length=2)) as engine:
        assert engine.numerics == first
    assert len(passes) <= 2  # whether the cache can be cut, no more
    with load(tiny_target, draft="text", options=options(draft_length=3)) as engine:
        assert engine.numerics.widths == (2, 4)
    assert len(passes) > 4


def test_a_damaged_file_costs_a_new_measurement_only(tiny_target: Path) -> None:
    from spec_local.paths import cache_folder

    with load(tiny_target, draft="text", options=options(draft_length=5)) as engine:
        first = engine.numerics
    for path in (cache_folder() / "numerics").iterdir():
        saved = json.loads(path.read_text())
        path.write_text(json.dumps({**saved, "numerics": {"tier": "bitwise"}}))
    with load(tiny_target, draft="text", options=options(draft_length=5)) as engine:
        assert engine.numerics == first


def test_the_probe_leaves_the_cache_empty(tiny_target: Path) -> None:
    with load(tiny_target, draft="text", options=options(draft_length=6)) as engine:
        assert engine.loaded.target.length(0) == 0
        assert engine.generate("hello", raw=True, sampling=Sampling(max_tokens=4)).statistics.rounds > 0
