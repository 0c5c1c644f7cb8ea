from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spec_local.cli.main import main
from spec_local.errors import UsageError
from spec_local.models_manifest import resolve_model
from spec_local.sampling import Sampling, token_logprob
from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions
from spec_local.session.result import Result


@pytest.mark.parametrize("size", [30, 5_000, 151_936])
def test_against_a_softmax_written_out(size: int) -> None:
    logits = np.random.default_rng(size).normal(size=size).astype(np.float32) * 5
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    found = token_logprob(logits, 7, 20)
    order = sorted(range(size), key=lambda i: (-logits[i], i))[:20]
    assert found.token == 7
    assert found.logprob == pytest.approx(expected[7], abs=1e-5)
    assert [token for token, _ in found.top] == order
    assert [value for _, value in found.top] == pytest.approx(list(expected[order]), abs=1e-5)


def test_ties_go_to_the_smallest_id_and_bans_of_the_model_count_as_nothing() -> None:
    logits = np.zeros(6_000, np.float32)
    logits[3] = -np.inf
    found = token_logprob(logits, 0, 4)
    assert [token for token, _ in found.top] == [0, 1, 2, 4]
    assert found.logprob == pytest.approx(-np.log(5_999), abs=1e-6)
    assert token_logprob(logits, 0, 0).top == ()


def test_out_of_range_is_refused() -> None:
    for wrong in (-1, 21):
        with pytest.raises(UsageError, match="logprobs"):
            Sampling.parse({"logprobs": wrong})


def answer(engine: Engine, temperature: float, speculate: bool, tokens: int = 60, prompt: str = "abcabcabc") -> Result:
    sampling = Sampling(temperature=temperature, seed=4, max_tokens=tokens, min_tokens=tokens, logprobs=3)
    return engine.generate(prompt, raw=True, sampling=sampling, speculate=speculate)


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_tiny_model_speculated_tokens_have_the_target_s_log_probabilities(
    tiny_target: Path, tiny_draft: Path, rule: str
) -> None:
    """Drafted and accepted, corrected and bonus tokens alike: each is what one pass over the whole text says."""
    options = EngineOptions(threads=1, n_ctx=256, draft_length=4, acceptance=rule)
    with load(tiny_target, draft=tiny_draft, options=options) as engine:
        found = answer(engine, 0.9, speculate=True)
        assert found.statistics.accepted > 5
        assert found.statistics.accepted < found.statistics.tested
        assert found.logprobs is not None
        assert [entry["token"] for entry in found.logprobs] == list(found.token_ids)
        prompt = engine.vocabulary.tokenize("abcabcabc", parse_special=True)
        context = engine.loaded.target
        context.trim(0, 0)
        from spec_local.language_model import Chunk

        tokens = [*prompt, *found.token_ids]
        for i, token in enumerate(tokens[:-1]):
            rows = context.decode([Chunk(0, [token], 1)])[0]
            if i + 1 >= len(prompt):
                expected = token_logprob(rows[0], tokens[i + 1], 3)
                entry = found.logprobs[i + 1 - len(prompt)]
                assert entry["logprob"] == pytest.approx(expected.logprob, abs=0.02)
                assert [top["logprob"] for top in entry["top"]] == pytest.approx([v for _, v in expected.top], abs=0.02)
        context.trim(0, 0)


def test_at_temperature_0_they_are_no_zeros(tiny_target: Path) -> None:
    with load(tiny_target, draft="text", options=EngineOptions(threads=1, n_ctx=256, draft_length=4)) as engine:
        found = answer(engine, 0.0, speculate=True)
        assert found.logprobs is not None
        for entry in found.logprobs:
            assert entry["logprob"] < -1e-3
            assert entry["top"][0]["token"] == entry["token"]
            assert set(entry) <= {"token", "text", "bytes", "logprob", "top"}
            assert bytes(entry.get("bytes", ())) or "\ufffd" not in entry["text"]
        assert "logprobs" in found.as_dict()


def test_off_by_default_and_nothing_is_computed(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec_local.speculation.speculator.token_logprob", lambda *_: pytest.fail("not asked for"))
    with load(tiny_target, draft="text", options=EngineOptions(threads=1, n_ctx=256, draft_length=4)) as engine:
        found = engine.generate("abc", raw=True, sampling=Sampling(max_tokens=5))
        assert found.logprobs is None
        assert "logprobs" not in found.as_dict()


def test_the_command_prints_them(tiny_target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "generate",
        "--raw",
        "-p",
        "abc",
        "-m",
        str(tiny_target),
        "-d",
        "text",
        "--threads",
        "1",
        "--n-ctx",
        "256",
    ]
    assert main([*command, "--max-tokens", "3", "--logprobs", "2", "--seed", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["logprobs"]) == len(found["token_ids"])
    assert all(len(entry["top"]) == 2 for entry in found["logprobs"])
    assert main([*command, "--logprobs", "21"]) == 2
    assert "logprobs" in capsys.readouterr().err


PROMPT = "Repeat after me, again and again: the sea was calm, and nobody on the boat had slept.\n"


def real_answer(draft: str, speculate: bool) -> Result:
    """500 tokens of a small real model, all passes of one width: texts are equal, so all figures can be compared."""
    path = resolve_model("smollm2-135m-instruct").path
    options = EngineOptions(threads=1, n_ctx=1024, draft_length=3, pad_width=4)
    with load(path, draft=draft if draft == "text" else path, options=options) as engine:
        return answer(engine, 0.7, speculate, tokens=500, prompt=PROMPT)


@pytest.fixture(scope="module")
def plain() -> Result:
    return real_answer("text", speculate=False)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("draft", ["text", "self"])
def test_500_tokens_with_and_without_speculation_agree(draft: str, plain: Result) -> None:
    found = real_answer(draft, speculate=True)
    assert found.statistics.accepted > 50
    assert found.token_ids == plain.token_ids
    assert found.logprobs is not None
    assert plain.logprobs is not None
    assert len(found.logprobs) == 500
    for ours, theirs in zip(found.logprobs, plain.logprobs, strict=True):
        assert ours["logprob"] == pytest.approx(theirs["logprob"], abs=1e-5)
        assert [top["token"] for top in ours["top"]] == [top["token"] for top in theirs["top"]]
