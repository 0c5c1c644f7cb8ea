"""Faults that people met elsewhere, as tests on real models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_models import DRAFT, SMALL, TARGET, THREADS, Load, model_path
from toy_drafters import FunctionDrafter

from spec_local.language_model import Chunk
from spec_local.models_manifest import read_header
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine
from spec_local.session.generation import Request
from spec_local.session.result import Result
from spec_local.speculation.controller import FixedController

pytestmark = pytest.mark.models

COUNTING = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,"
ASTRONAUT = "👩🏽‍🚀"
DEVANAGARI = "नमस्ते दुनिया"
KOREAN = "안녕하세요 세계"


def _greedy(**fields: Any) -> Sampling:
    return Sampling(**{"temperature": 0.0, "seed": 0, "max_tokens": 32, **fields})


def _warm(seed: int | None, **fields: Any) -> Sampling:
    return Sampling(**{"temperature": 0.8, "seed": seed, "max_tokens": 24, **fields})


def _both(engine: Engine, prompt: str, sampling: Sampling) -> tuple[Result, Result]:
    """With drafts and without, each from an empty cache."""
    engine.speculator.release(0)
    drafted = engine.generate(prompt, sampling=sampling, raw=True)
    engine.speculator.release(0)
    return drafted, engine.generate(prompt, sampling=sampling, raw=True, speculate=False)


def _live_cache_is_right(engine: Engine, result: Result, prompt: str) -> None:
    """The next-token logits of the live cache agree with those of the same ids read afresh."""
    tokens = [*engine.tokenize(Request(prompt, raw=True))[0], *result.token_ids]
    target = engine.loaded.target
    assert target.length(0) == len(tokens) - 1
    live = target.decode([Chunk(0, tokens[-1:], 1)])[0][0].copy()
    target.trim(0, 0)
    fresh = target.decode([Chunk(0, tokens, 1)])[0][0].copy()
    target.trim(0, 0)
    assert float(np.abs(live - fresh).max()) < 1.0
    assert int(live.argmax()) == int(fresh.argmax()) or np.sort(fresh)[-1] - np.sort(fresh)[-2] < 0.5


def test_the_same_request_three_times(small: Engine) -> None:
    """Case 5: a whole-prompt cache hit reads the last prompt token once, and the answer is the same."""
    prompt = "The quick brown fox jumps over the lazy dog. " * 30
    results = [small.generate(prompt, sampling=_greedy(max_tokens=16), raw=True) for _ in range(3)]
    length = results[0].prompt_tokens
    assert length > 290
    assert [r.cached_tokens for r in results] == [0, length - 1, length - 1]
    assert len({r.token_ids for r in results}) == 1
    assert len(results[0].token_ids) == 16
    _live_cache_is_right(small, results[-1], prompt)


def test_fixed_junk_is_never_accepted(small: Engine) -> None:
    """Case 7: a one-token draft is really compared, and junk changes nothing."""
    plain = _both(small, "Once upon a time", _greedy(max_tokens=48))[1]
    junk = [token for token in range(5000, 5100) if token not in plain.token_ids][:8]
    speculator = small.speculator
    own, controller = dict(speculator.drafters), speculator.controller
    try:
        for length in (1, 8):
            speculator.drafters.clear()
            speculator.drafters["junk"] = FunctionDrafter(lambda _tokens, limit: junk[:limit], "junk")
            speculator.controller = FixedController("junk", length)
            speculator.release(0)
            result = small.generate("Once upon a time", sampling=_greedy(max_tokens=48), raw=True)
            assert result.token_ids == plain.token_ids
            assert (result.statistics.accepted, result.statistics.rounds) == (0, 48)
            assert result.statistics.tested > 40
            _live_cache_is_right(small, result, "Once upon a time")
    finally:
        speculator.drafters.clear()
        speculator.drafters.update(own)
        speculator.controller = controller


def test_up_to_the_very_end_of_the_context(small: Engine) -> None:
    """Case 8: a confident draft of eight tokens, and room for one, two, three, seven, eight, nine."""
    text = small.tokenize(Request(", ".join(map(str, range(1, 400))), raw=True))[0]
    for room in (9, 8, 7, 3, 2, 1):
        prompt = small.vocabulary.text(text[: small.n_ctx - room])
        drafted, plain = (
            small.generate(prompt, sampling=_greedy(max_tokens=500), raw=True, speculate=speculate)
            for speculate in (True, False)
        )
        assert drafted.prompt_tokens == small.n_ctx - room
        assert (drafted.finish_reason, drafted.limit) == ("length", "context")
        assert len(drafted.token_ids) == room
        assert drafted.token_ids == plain.token_ids


def test_a_budget_is_a_budget_of_tokens_not_rounds(small: Engine) -> None:
    """Case 13."""
    whole = small.generate(COUNTING, sampling=_greedy(max_tokens=40), raw=True)
    assert whole.statistics.tokens_per_pass is not None
    assert whole.statistics.tokens_per_pass > 6
    for budget in (0, 1, 2, 6, 7, 8, 9):
        result = small.generate(COUNTING, sampling=_greedy(max_tokens=budget), raw=True)
        assert result.token_ids == whole.token_ids[:budget]
        assert (result.finish_reason, result.limit) == ("length", "max_tokens")
        assert result.as_dict()["usage"]["completion_tokens"] == budget
        assert bool(result.text) == (budget > 0)


@pytest.mark.parametrize("penalties", [{}, {"repeat_penalty": 1.2, "presence_penalty": 0.5, "penalty_last_n": 32}])
def test_a_banned_token_comes_neither_drawn_nor_drafted(small: Engine, penalties: dict[str, float]) -> None:
    """Case 24."""
    prompt = "The capital of France is"
    first = _both(small, prompt, _greedy(max_tokens=1, **penalties))[1].token_ids[0]
    banned = {first: -100.0}
    drafted, plain = _both(small, prompt, _greedy(max_tokens=64, logit_bias=banned, **penalties))
    assert first not in drafted.token_ids
    assert drafted.token_ids == plain.token_ids
    assert drafted.statistics.accepted > 20


def test_seeds_in_one_process(small: Engine) -> None:
    """Case 26: a seed is a seed, zero too; unset ones differ and are reported."""

    def ids(seed: int | None) -> tuple[int, ...]:
        return small.generate("A short story about a robot.", sampling=_warm(seed)).token_ids

    first = ids(7)
    assert ids(7) == first  # "regenerate", on a warm cache
    unset = [small.generate("A short story about a robot.", sampling=_warm(None)) for _ in range(2)]
    assert unset[0].token_ids != unset[1].token_ids
    assert len({first, ids(0), ids(1), *(r.token_ids for r in unset)}) == 5
    assert ids(unset[0].seed) == unset[0].token_ids
    small.generate("Something else.", sampling=_warm(3))
    assert ids(7) == first


def test_seeds_in_two_processes() -> None:
    """Case 26, through the command: the same seed, the same ids in another process; unset seeds differ."""
    path = model_path(SMALL)

    def ask(*flags: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "spec_local.cli.main", "generate", "-m", str(path), "-d", "text", "--json"]
        command += ["--pad-width", "4", "--threads", str(THREADS or 1), "-p", "Tell me about rivers.", *flags]
        command += ["--max-tokens", "12", "--temperature", "0.8"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        return dict(json.loads(done.stdout))

    first, second = ask("--seed", "7"), ask("--seed", "7")
    assert first["token_ids"] == second["token_ids"]
    assert first["seed"] == 7
    unset = [ask() for _ in range(2)]
    assert unset[0]["token_ids"] != unset[1]["token_ids"]
    assert unset[0]["seed"] != unset[1]["seed"]


def test_an_end_token_inside_a_block(engines: Load) -> None:
    """Case 27: the tenth greedy token as an end, with drafts of eight; and both of Qwen's own end ids."""
    engine = engines(TARGET, DRAFT, draft_length=7, pad_width=8, n_ctx=512)
    assert {151645, 151643} <= engine.end_ids
    prompt = "def fibonacci(n):\n"
    free = engine.generate(prompt, sampling=_greedy(max_tokens=14), raw=True)
    ends = engine.end_ids
    at = next(i for i in range(9, 14) if free.token_ids[i] not in free.token_ids[:i])
    try:
        engine.end_ids = ends | {free.token_ids[at]}
        result = engine.generate(prompt, sampling=_greedy(max_tokens=14), raw=True)
    finally:
        engine.end_ids = ends
    assert result.token_ids == free.token_ids[: at + 1]
    assert (result.finish_reason, result.limit) == ("stop", None)
    assert result.text == engine.vocabulary.text(free.token_ids[:at])
    assert result.statistics.emitted == at + 1
    assert engine.loaded.target.length(0) == result.prompt_tokens + at
    for end in (151645, 151643):
        forced = engine.generate(prompt, sampling=_greedy(max_tokens=9, logit_bias={end: 1000.0}), raw=True)
        assert (forced.token_ids, forced.text, forced.finish_reason) == ((end,), "", "stop")


@pytest.mark.parametrize("name", [SMALL, TARGET])
def test_no_part_of_a_stop_string_is_shown(engines: Load, name: str) -> None:
    """Case 29: the stop string comes in several tokens inside one block."""
    engine = engines(name, "text", draft_length=7, pad_width=8, n_ctx=512)
    prompt = "Here is the English alphabet: ABCDEFGHIJKLMNOPQRSTUVWXYZ\nHere is the English alphabet: ABC"
    free = engine.generate(prompt, sampling=_greedy(max_tokens=7), raw=True)
    assert free.text.startswith("DEFGHIJ")
    stream = engine.stream(prompt, sampling=_greedy(max_tokens=12, stop=("DEFGHIJ",)), raw=True)
    shown = "".join(piece.text for piece in stream)
    assert (shown, stream.result.text, stream.result.finish_reason) == ("", "", "stop")
    taken = len(stream.result.token_ids)
    assert stream.result.token_ids == free.token_ids[:taken]
    assert "DEFGHIJ" in engine.vocabulary.text(free.token_ids[:taken])
    assert "DEFGHIJ" not in engine.vocabulary.text(free.token_ids[: taken - 1])
    assert stream.result.statistics.emitted == taken
    assert engine.loaded.target.length(0) == stream.result.prompt_tokens + taken - 1
    overlapping = engine.generate(prompt, sampling=_greedy(max_tokens=12, stop=("GH", "FGHI")), raw=True)
    assert (overlapping.text, overlapping.finish_reason) == ("DE", "stop")
    in_the_prompt = engine.generate(prompt, sampling=_greedy(max_tokens=2, stop=("Here is",)), raw=True)
    assert in_the_prompt.finish_reason == "length"


@pytest.mark.parametrize(("name", "text"), [(SMALL, ASTRONAUT), (SMALL, KOREAN), (SMALL, DEVANAGARI)])
def test_characters_that_span_tokens(small: Engine, name: str, text: str) -> None:
    """Case 30: drafted or not, streamed or whole, cut anywhere: whole characters only."""
    prompt = f"{text} {text} {text} {text} {text} "
    whole = small.vocabulary.tokenize(text)
    assert len(whole) > len(text.split())
    drafted, plain = _both(small, prompt, _greedy(max_tokens=24))
    assert (drafted.token_ids, drafted.text) == (plain.token_ids, plain.text)
    for budget in range(1, 25):
        stream = small.stream(prompt, sampling=_greedy(max_tokens=budget), raw=True)
        pieces = [piece.text for piece in stream]
        result = stream.result
        assert "".join(pieces) == result.text
        assert result.token_ids == plain.token_ids[:budget]
        raw = b"".join(small.vocabulary.piece(token) for token in result.token_ids)
        assert result.text == raw.decode(errors="ignore")
        assert "\ufffd" not in result.text
        for piece in pieces:
            piece.encode()


@pytest.mark.parametrize("draft", [SMALL, "text"])
def test_prompts_around_the_batch_size(engines: Load, draft: str) -> None:
    """Case 34: a batch of 64 and prompts of 63, 64, 65 and 200 tokens."""
    engine = engines(SMALL, draft, draft_length=8, pad_width=9, batch_size=64)
    tokens = engine.vocabulary.tokenize("The river flows past the old mill and under the stone bridge. " * 20)
    for length in (63, 64, 65, 200):
        prompt = engine.vocabulary.text(tokens[:length])
        drafted, plain = _both(engine, prompt, _greedy(max_tokens=20))
        assert drafted.prompt_tokens == length
        assert drafted.token_ids == plain.token_ids
        assert len(drafted.token_ids) == 20


def test_a_model_drafting_for_itself_at_temperature_one(small: Engine) -> None:
    """Case 21: equal models agree always, at any temperature, under the coupled rule."""
    for seed in range(3):
        result = small.generate("A poem about rain.", sampling=_warm(seed, temperature=1.0, top_k=0, top_p=1.0))
        assert result.statistics.acceptance_rate == 1.0


def _peak_bytes(target: Path, draft: Path | str, n_ctx: int, tokens: int) -> int:
    """Peak resident memory of a fresh process that loads, and answers with so many tokens.

    On Linux by its own account: `ru_maxrss` of a child is never less than what its parent held when it was made.
    """
    code = (
        "import re, resource, sys; from pathlib import Path;"
        "from spec_local.session.engine import load; from spec_local.sampling import Sampling;"
        "from spec_local.session.options import EngineOptions;"
        "o = EngineOptions(n_ctx=int(sys.argv[3]), draft_length=4, threads=int(sys.argv[5]));"
        "e = load(sys.argv[1], draft=sys.argv[2], options=o);"
        "r = e.generate('Count to 100.', sampling=Sampling(temperature=0, max_tokens=int(sys.argv[4])));"
        "assert r.token_ids; e.close();"
        "status = Path('/proc/self/status'); used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', status.read_text())[1] if status.exists() else used;"
        "print(int(peak) * (1 if sys.platform == 'darwin' else 1024))"
    )
    arguments = [str(target), str(draft), str(n_ctx), str(tokens), str(THREADS)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return int(done.stdout)


def _cache_bytes(engine: Engine, n_ctx: int) -> int:
    """Keys and values in f16 of every cached token, target and draft together."""
    total = 0
    for context in engine.loaded.contexts:
        layers = read_header(context.model.path).layers
        total += 2 * sum(key + value for key, value in layers.kv_widths) * n_ctx
    return total


def test_memory_is_weights_and_cache_and_little_else(engines: Load) -> None:
    """Case 35: at 8192 tokens within 10 % of weights + keys and values + 300 MB."""
    target, draft = model_path(TARGET), model_path(DRAFT)
    engine = engines(TARGET, DRAFT, draft_length=7, pad_width=8, n_ctx=512)
    expected = target.stat().st_size + draft.stat().st_size + _cache_bytes(engine, 8192) + 300_000_000
    assert _peak_bytes(target, draft, 8192, 4) < 1.1 * expected


def test_memory_grows_with_the_context_by_the_cache_only(small: Engine) -> None:
    """Case 35: no array of context × vocabulary; at 32768 × 49152 that would be 6.4 GB."""
    path = model_path(SMALL)
    grown = _peak_bytes(path, "text", 32_768, 4) - _peak_bytes(path, "text", 2048, 4)
    cache = _cache_bytes(small, 32_768 - 2048) // 2  # `small` has a draft of the same size
    assert grown < 1.1 * cache + 150_000_000
