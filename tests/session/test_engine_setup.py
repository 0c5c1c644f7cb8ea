"""What an engine is made of: models that fit or do not, drafters, costs, recommended values, options."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from tiny_engines import PROMPT, Load, drawn
from tiny_gguf import write_transformer

from spec_local.errors import Aborted, ModelError, PairError, UsageError
from spec_local.llama.context import Context
from spec_local.sampling import Sampling
from spec_local.session.engine import load
from spec_local.session.options import EngineOptions, engine_options
from spec_local.speculation.policy import AdaptiveController


def test_models_that_cannot_be_used_are_refused_before_anything_runs(
    open_engine: Load, tiny_target: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_target.read_bytes()[:-1000])
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    for bad in (cut, text, tmp_path / "missing.gguf"):
        for roles in ({"target": bad}, {"draft": bad}):
            with pytest.raises(ModelError) as caught:
                open_engine(**roles)
            assert bad.name in str(caught.value)
    engine = open_engine(draft=cut, allow_plain=True)
    assert any("without a draft model" in notice and "cut.gguf" in notice for notice in engine.notices)
    assert engine.generate(PROMPT, sampling=drawn(max_tokens=3)).speculation_state in ("on", "off")


def test_a_load_that_was_stopped_is_no_draft_that_cannot_be_used(tiny_target: Path, tiny_draft: Path) -> None:
    options = EngineOptions(n_ctx=256, threads=1, allow_plain=True)
    for path in (tiny_target, tiny_draft):

        def go_on(what: str, _done: float, name: str = path.name) -> bool:
            return name not in what

        with pytest.raises(Aborted, match=f"{path.name} was cancelled"):
            load(tiny_target, draft=tiny_draft, options=options, progress=go_on)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_draft_of_another_vocabulary_drafts(
    open_engine: Load, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """Other ids, words that only one of the two has, a begin-of-text token that only the draft puts in front."""
    other = tiny_folder / "other-vocabulary.gguf"
    with monkeypatch.context() as patch:
        patch.setattr("tiny_gguf.MERGES", ("z z", *tiny_gguf.MERGES[1:][::-1]))
        write_transformer(other, seed=1, near=0.02, add_bos=True)
    prompt = "the man in the rain, then the other: abcd zz äöü 日"
    expected = open_engine(draft="none", pad_width=6).generate(prompt, sampling=drawn(max_tokens=60))
    engine = open_engine(draft=other, pad_width=6, acceptance=rule, draft_length=4)
    notices = [notice for notice in engine.notices if "another vocabulary" in notice]
    assert len(notices) == 1
    assert "of the target's" in notices[0]
    result = engine.generate(prompt, sampling=drawn(max_tokens=60))
    assert result.statistics.sources["model"].accepted > 0
    if rule == "coupled":
        assert result.token_ids == expected.token_ids
    assert engine.loaded.vocabulary_map is not None
    assert not engine.loaded.vocabulary_map.same_ids


def test_a_vocabulary_that_shares_too_little_is_refused_as_a_draft(
    open_engine: Load, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_folder / "other-words.gguf"
    with monkeypatch.context() as patch:
        texts = [f"word{n}" for n in range(tiny_gguf.N_VOCAB - 3)]
        kinds = [1] * len(texts) + [3] * 3
        patch.setattr("tiny_gguf.vocabulary", lambda: ([*texts, *tiny_gguf.CONTROL], kinds))
        write_transformer(other, seed=1)
    with pytest.raises(PairError, match="share only 3 tokens") as caught:
        open_engine(draft=other)
    assert "other-words.gguf" in caught.value.message
    assert "target.gguf" in caught.value.message
    assert open_engine(draft=other, allow_plain=True).generate("Hi", sampling=drawn(max_tokens=2)).text is not None


@pytest.mark.parametrize("padding", [5, 40])
def test_a_draft_with_a_longer_or_shorter_tail_drafts(open_engine: Load, tiny_folder: Path, padding: int) -> None:
    padded = write_transformer(tiny_folder / f"padded-{padding}.gguf", seed=1, near=0.02, padding=padding)
    expected = open_engine(draft="none").generate(PROMPT, sampling=drawn())
    result = open_engine(draft=padded).generate(PROMPT, sampling=drawn())
    assert result.token_ids == expected.token_ids
    assert result.statistics.sources["model"].accepted > 0
    swapped = open_engine(padded, "none").generate(PROMPT, sampling=drawn())
    result = open_engine(padded).generate(PROMPT, sampling=drawn())
    assert result.token_ids == swapped.token_ids


def test_plain_on_request_and_draft_length_zero(open_engine: Load) -> None:
    engine = open_engine()
    plain = engine.generate(PROMPT, sampling=drawn(), speculate=False)
    assert (plain.speculation_state, plain.statistics.drafted) == ("off", 0)
    assert "this request" in plain.speculation_reason
    zero = open_engine(draft_length=0)
    result = zero.generate(PROMPT, sampling=drawn())
    assert (result.token_ids, result.speculation_reason) == (plain.token_ids, "the draft length is 0")
    assert result.model["draft"] is None  # it is not even loaded


def test_text_drafts_stand_beside_a_draft_model_that_was_named(open_engine: Load) -> None:
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"draft_length": "auto"}, {"model", "text"}),
        ({"draft_length": 4}, {"model"}),
        ({"draft": "text"}, {"text"}),
        ({"draft": "none", "draft_length": "auto"}, set()),
    ]
    for options, sources in cases:
        engine = open_engine(**options)
        assert set(engine.speculator.drafters) - {"grammar"} == set(engine.describe()["drafters"]) == sources


def test_costs_are_measured_again_once_they_no_longer_fit(
    open_engine: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[dict[int, float]] = []

    def measure(context: Context, rows: list[int], **_: object) -> dict[int, float]:
        measured.append({n: 0.001 * n for n in rows})
        return measured[-1]

    monkeypatch.setattr("spec_local.session.costs.measure", measure)
    monkeypatch.setattr("spec_local.session.saved.cache_folder", lambda: tmp_path)
    open_engine(draft_length="auto").close()
    assert len(measured) == 2, "target and draft"
    fits = open_engine(draft_length="auto")
    assert len(measured) == 2, "they were saved"
    controller = fits.speculator.controller
    assert isinstance(controller, AdaptiveController)
    for _ in range(60):
        controller.costs.target.update(1, 0.01)
    fits.close()
    open_engine(draft_length="auto")
    assert len(measured) == 4


@pytest.mark.parametrize("step", ["finding out what a pass costs here", "comparing passes of one row and of many"])
def test_measuring_can_be_stopped_between_any_two_passes(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    monkeypatch.setattr("spec_local.session.saved.cache_folder", lambda: tmp_path)
    passes: list[int] = []
    decode = Context.decode

    def counted(self: Context, chunks: Any) -> Any:
        passes.append(sum(len(chunk.tokens) for chunk in chunks))
        return decode(self, chunks)

    monkeypatch.setattr(Context, "decode", counted)
    options = EngineOptions(n_ctx=256, threads=1)
    for asked in (1, 4, 9):
        times = 0

        def progress(what: str, done: float, asked: int = asked) -> bool:
            nonlocal times
            times += what == step
            if times == asked:
                passes.clear()
            return times < asked

        with pytest.raises(Aborted, match="stopped"):
            load(tiny_target, draft=tiny_draft, options=options, progress=progress)
        assert passes == [], "nothing is computed once it was stopped"
    seen: list[int] = []

    def go_on(what: str, done: float) -> bool:
        if what == step:
            seen.append(len(passes))
        return True

    passes.clear()
    load(tiny_target, draft=tiny_draft, options=options, progress=go_on).close()  # what was loaded is free again
    assert seen
    assert max(b - a for a, b in pairwise(seen)) <= 2, "it is asked before every pass or two"


def test_recommended_values_fill_what_was_not_set(open_engine: Load, tiny_folder: Path) -> None:
    path = write_transformer(tiny_folder / "recommends.gguf", seed=1, recommended={"temp": 0.25, "top_p": 0.5})
    engine = open_engine(path, "text")
    sampling, origins = engine.complete(Sampling(top_p=0.9))
    assert (sampling.temperature, sampling.top_p) == (0.25, 0.9)
    assert origins["top_p"] == "request"
    assert "temperature" in origins


def test_options_out_of_range_are_sentences() -> None:
    for values in ({"n_ctx": 0}, {"draft_length": 99}, {"threads": -1}, {"acceptance": "maybe"}, {"unknown": 1}):
        with pytest.raises(UsageError) as caught:
            engine_options(**values)
        assert next(iter(values)) in caught.value.message
