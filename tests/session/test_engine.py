"""The façade on tiny models: answers, prefixes, cancels, budgets, seeds, and what is said about them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from native_faults import native
from tiny_engines import PROMPT, Load, drawn, together
from tiny_gguf import END_OF_TURN, N_VOCAB

from spec_local.errors import BackendError, UsageError
from spec_local.session.generation import Request


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_text_with_any_draft_or_none(open_engine: Load, tiny_target: Path, temperature: float) -> None:
    """Padded to one width the kernels are the same, so the tokens must be."""
    for seed in (0, 1, 2):
        sampling = drawn(temperature=temperature, seed=seed, min_tokens=20)
        texts = {}
        arms: dict[str, dict[str, Any]] = {
            "none": {"draft": "none"},
            "off": {"draft_length": 0},
            "text": {"draft": "text", "draft_length": 5},
            "model 1": {"draft_length": 1},
            "model 4": {"draft_length": 4},
            "model 7": {"draft_length": 7},
            "itself": {"draft": tiny_target, "draft_length": 7},
            "auto": {"draft_length": "auto"},
        }
        for name, arm in arms.items():
            with open_engine(**arm) as engine:
                texts[name] = engine.generate(PROMPT, sampling=sampling)
        expected = texts["none"]
        assert len(expected.token_ids) >= 20
        for result in texts.values():
            assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
        assert texts["model 4"].statistics.sources["model"].accepted > 0
        assert texts["itself"].statistics.acceptance_rate == 1.0
        assert texts["itself"].statistics.rounds == -(-len(expected.token_ids) // 8)


def test_the_result_tells_everything_the_contract_asks_for(open_engine: Load) -> None:
    engine = open_engine()
    result = engine.generate(PROMPT, sampling=drawn()).as_dict()
    assert set(result) >= {
        "text",
        "token_ids",
        "finish_reason",
        "limit",
        "seed",
        "usage",
        "timings",
        "speculation",
        "model",
    }
    assert (result["finish_reason"], result["limit"], result["seed"]) == ("length", "max_tokens", 3)
    assert result["usage"]["completion_tokens"] == len(result["token_ids"]) == 40
    assert set(result["timings"]) == {
        *("load_s", "prefill_s", "ttft_s", "thinking_s"),
        *("decode_s", "decode_tokens_per_s", "draft_s", "verify_s", "host_s"),
    }
    speculation = result["speculation"]
    assert speculation["state"] == "on"
    assert speculation["acceptance_rule"] == "coupled"
    assert speculation["tested"] <= speculation["drafted"]
    assert speculation["tokens_per_pass"] > 1
    assert result["model"]["draft"] == "draft.gguf"
    assert result["model"]["n_ctx"] == 256


def test_a_shared_prefix_is_not_computed_again(open_engine: Load) -> None:
    engine = open_engine()
    first = engine.generate(PROMPT, sampling=drawn(), raw=True)
    again = engine.generate(PROMPT, sampling=drawn(), raw=True)
    assert first.cached_tokens == 0
    assert again.cached_tokens == again.prompt_tokens - 1
    assert (again.token_ids, again.text) == (first.token_ids, first.text)
    longer = engine.generate(PROMPT + "zzz", sampling=drawn(max_tokens=3), raw=True)
    assert longer.cached_tokens == first.prompt_tokens
    other = engine.generate("x", sampling=drawn(max_tokens=3), raw=True)
    assert other.cached_tokens == 0
    third = engine.generate(PROMPT, sampling=drawn(), raw=True)
    assert (third.cached_tokens, third.token_ids) == (0, first.token_ids)


def test_whole_prompt_hits_of_one_token_prompts(open_engine: Load) -> None:
    engine = open_engine()
    results = [engine.generate("t", sampling=drawn(max_tokens=5), raw=True) for _ in range(3)]
    assert [r.cached_tokens for r in results] == [0, 0, 0]
    assert len({r.token_ids for r in results}) == 1


def test_pieces_are_the_text_and_the_tokens(open_engine: Load) -> None:
    engine = open_engine()
    stream = engine.stream(PROMPT, sampling=drawn())
    pieces = list(stream)
    result = stream.result
    assert "".join(piece.text for piece in pieces) == result.text
    assert tuple(token for piece in pieces for token in piece.tokens) == result.token_ids
    assert [piece.round for piece in pieces if piece.tokens] == list(result.rounds)
    assert all(piece.text.encode() for piece in pieces if piece.text)


def test_cancelled_from_another_thread_then_used_again(open_engine: Load) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=drawn(max_tokens=150))
    for after in (0, 1, 3):
        stream = engine.stream(PROMPT, sampling=drawn(max_tokens=150))
        pieces = []
        for piece in stream:
            pieces.append(piece)
            if len(pieces) > after:
                canceller = threading.Thread(target=engine.cancel)
                canceller.start()
                canceller.join()
        result = stream.result
        assert result.finish_reason == "cancelled"
        assert 0 < len(result.token_ids) < 150
        assert result.token_ids == expected.token_ids[: len(result.token_ids)]
        assert result.text == "".join(piece.text for piece in pieces)
        assert expected.text.startswith(result.text)
        again = engine.generate(PROMPT, sampling=drawn(max_tokens=150))
        assert again.token_ids == expected.token_ids


def test_a_cancel_before_the_stream_starts_is_not_lost(open_engine: Load) -> None:
    engine = open_engine()
    stream = engine.stream(PROMPT, sampling=drawn())
    engine.cancel()
    assert list(stream) == []
    assert (stream.result.finish_reason, stream.result.token_ids, stream.result.text) == ("cancelled", (), "")
    assert engine.generate(PROMPT, sampling=drawn()).finish_reason == "length"


def test_a_cancel_in_prefill_keeps_what_was_read(open_engine: Load) -> None:
    engine = open_engine(batch_size=8)
    stream = engine.stream(
        PROMPT, sampling=drawn(), raw=True, on_prefill=lambda done, _todo: engine.cancel() if done >= 16 else None
    )
    assert list(stream) == []
    assert stream.result.finish_reason == "cancelled"
    assert engine.generate(PROMPT, sampling=drawn(), raw=True).cached_tokens == 16


def test_closing_a_stream_early_keeps_the_text(open_engine: Load) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=drawn())
    stream = engine.stream(PROMPT, sampling=drawn())
    iterator = iter(stream)
    shown = next(iterator).text + next(iterator).text
    stream.close()
    stream.close()
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.text.startswith(shown)
    assert expected.token_ids[: len(stream.result.token_ids)] == stream.result.token_ids
    never = engine.stream(PROMPT, sampling=drawn())
    never.close()
    assert (list(never), never.result.finish_reason) == ([], "cancelled")
    assert engine.generate(PROMPT, sampling=drawn()).token_ids == expected.token_ids


def test_a_second_stream_waits_for_a_slot_and_neither_changes_the_other(open_engine: Load) -> None:
    for parallel in (1, 2):
        engine = open_engine(parallel=parallel)
        expected = engine.generate(PROMPT, sampling=drawn()).token_ids
        other = engine.generate("x", sampling=drawn()).token_ids
        first, second = engine.stream(PROMPT, sampling=drawn()), engine.stream("x", sampling=drawn())
        next(first)
        assert [t for piece in second for t in piece.tokens] == list(other)
        for _ in first:
            pass
        assert (first.result.token_ids, second.result.token_ids) == (expected, other)


def test_of_two_streams_in_two_threads_one_is_cancelled_alone(open_engine: Load) -> None:
    engine = open_engine(parallel=2)
    expected = engine.generate(PROMPT, sampling=drawn(max_tokens=120))
    victim = engine.stream("another abcd on an inn", sampling=drawn(max_tokens=150, seed=9))
    survivor = engine.stream(PROMPT, sampling=drawn(max_tokens=120))
    thread = threading.Thread(target=lambda: list(survivor))
    thread.start()
    next(victim)
    victim.close()
    thread.join()
    assert victim.result.finish_reason == "cancelled"
    assert 0 < len(victim.result.token_ids) < 150
    assert (survivor.result.text, survivor.result.finish_reason) == (expected.text, expected.finish_reason)


def test_a_stream_that_is_dropped_lets_go_of_the_engine(open_engine: Load) -> None:
    engine = open_engine()
    for piece in engine.stream(PROMPT, sampling=drawn()):
        assert piece.tokens
        break
    assert engine.generate(PROMPT, sampling=drawn()).finish_reason == "length"


def test_many_threads_never_decode_together(open_engine: Load) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=drawn()).token_ids
    outcomes: list[object] = []

    def ask() -> None:
        outcomes.extend(engine.generate(PROMPT, sampling=drawn()).token_ids for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [expected] * 20


def test_closed_while_it_answers_in_another_thread(open_engine: Load) -> None:
    engine = open_engine()
    begun = threading.Event()
    ends: list[str] = []

    def answer() -> None:
        stream = engine.stream(PROMPT, sampling=drawn(max_tokens=200))
        for _ in stream:
            begun.set()
        ends.append(stream.result.finish_reason)

    thread = threading.Thread(target=answer)
    thread.start()
    begun.wait()
    engine.close()
    thread.join()
    assert ends in (["cancelled"], ["length"])
    with pytest.raises(UsageError, match="closed"):
        engine.generate("x")


def test_results_outlive_their_engine(open_engine: Load) -> None:
    with open_engine() as engine:
        stream = engine.stream(PROMPT, sampling=drawn(max_tokens=3))
        list(stream)
    assert stream.result.as_dict()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("budget", [0, 1, 2, 6, 7, 8, 9])
def test_budgets(open_engine: Load, budget: int) -> None:
    result = open_engine(pad_width=0, draft_length=8).generate(PROMPT, sampling=drawn(max_tokens=budget))
    assert (len(result.token_ids), result.finish_reason, result.limit) == (budget, "length", "max_tokens")
    assert (budget > 0) == bool(result.text)


def test_seeds(open_engine: Load, tiny_target: Path, tiny_draft: Path) -> None:
    engine = open_engine()

    def tokens(seed: int | None) -> tuple[int, ...]:
        return engine.generate(PROMPT, sampling=drawn(seed=seed)).token_ids

    assert tokens(7) == tokens(7)
    assert len({tokens(seed) for seed in (0, 1, 7, None, None)}) == 5
    unset = engine.generate(PROMPT, sampling=drawn(seed=None))
    assert tokens(unset.seed) == unset.token_ids
    engine.generate("something else", sampling=drawn(seed=None))
    assert tokens(7) == open_engine().generate(PROMPT, sampling=drawn(seed=7)).token_ids


def test_end_tokens_and_stop_strings_end_the_text(open_engine: Load) -> None:
    engine = open_engine()
    free = engine.generate(PROMPT, sampling=drawn(temperature=0.0))
    for at in range(1, 12):
        text = engine.vocabulary.text(free.token_ids[:at])
        stop = text[-2:]
        if "\ufffd" in stop or len(stop) < 2:
            continue
        result = engine.generate(PROMPT, sampling=drawn(temperature=0.0, stop=(stop,)))
        assert result.finish_reason == "stop"
        assert stop not in result.text
        assert free.text.startswith(result.text)
        assert len(result.token_ids) <= at
    ends = engine.generate(PROMPT, sampling=drawn(logit_bias={END_OF_TURN: 1000.0}))
    assert (ends.token_ids, ends.text, ends.finish_reason) == ((END_OF_TURN,), "", "stop")
    late = engine.generate(PROMPT, sampling=drawn(logit_bias={END_OF_TURN: 1000.0}, min_tokens=6))
    assert len(late.token_ids) == 7


def test_a_bias_holds_for_drafted_tokens_too(open_engine: Load) -> None:
    engine = open_engine()
    free = engine.generate(PROMPT, sampling=drawn(temperature=0.0))
    banned = max(set(free.token_ids), key=free.token_ids.count)
    result = engine.generate(PROMPT, sampling=drawn(temperature=0.0, logit_bias={banned: -100.0}))
    assert banned not in result.token_ids
    assert len(result.token_ids) == 40
    with pytest.raises(UsageError, match=f"token {N_VOCAB}"):
        engine.generate(PROMPT, sampling=drawn(logit_bias={N_VOCAB: 1.0}))


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_cut_that_fails_at_run_time(open_engine: Load, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    """The start-up probe saw nothing; the first refused cut switches the drafting off, and the text is right."""
    expected = open_engine(draft="none").generate(PROMPT, sampling=drawn(temperature=0.0))
    engine = open_engine(pad_width=0)
    context = engine.loaded.target if role == "target" else engine.loaded.draft
    assert context is not None
    lib = native(context).lib

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def llama_memory_seq_rm(self, memory: Any, seq: int, start: int, end: int) -> bool:
            return start < 0 and bool(lib.llama_memory_seq_rm(memory, seq, start, end))

    monkeypatch.setattr(native(context), "lib", Refusing())
    result = engine.generate(PROMPT, sampling=drawn(temperature=0.0))
    assert result.token_ids == expected.token_ids
    assert result.speculation_state == "off"
    assert "cut" in result.speculation_reason
    assert engine.generate(PROMPT, sampling=drawn(temperature=0.0)).token_ids == expected.token_ids


def test_a_failing_pass_ends_the_stream_with_its_error(open_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=drawn()).token_ids
    target = engine.loaded.target
    decode, calls = target.decode, 0

    def failing(chunks: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise BackendError("The device went away.")
        return decode(chunks)

    monkeypatch.setattr(target, "decode", failing)
    stream = engine.stream(PROMPT, sampling=drawn())
    with pytest.raises(BackendError, match="went away"):
        list(stream)
    assert stream.result.finish_reason == "error"
    assert 0 < len(stream.result.token_ids) < 40
    assert engine.generate(PROMPT, sampling=drawn()).token_ids == expected


def test_several_at_once_get_what_each_gets_alone(open_engine: Load) -> None:
    engine = open_engine(parallel=3, draft_length=4, pad_width=24)
    prompts = [PROMPT, "x", "the abcd"]
    alone = [engine.generate(prompt, sampling=drawn(seed=i)).token_ids for i, prompt in enumerate(prompts)]
    generations = together(engine, *(Request(prompt, drawn(seed=i)) for i, prompt in enumerate(prompts)))
    assert [engine.result(generation).token_ids for generation in generations] == alone


def test_prompts_are_read_together(open_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[list[int]] = []
    prompts = [PROMPT, "x y", "another abcd on an inn"]
    for pad_width in (0, 24):
        engine = open_engine(parallel=3, draft="none", pad_width=pad_width)
        alone = [engine.generate(prompt, sampling=drawn(seed=i)).token_ids for i, prompt in enumerate(prompts)]
        for slot in range(3):
            engine.speculator.release(slot)
        target = engine.loaded.target
        decode = target.decode

        def watched(chunks: Any, decode: Any = decode) -> Any:
            passes.append([len(chunk.tokens) for chunk in chunks])
            return decode(chunks)

        monkeypatch.setattr(target, "decode", watched)
        passes.clear()
        generations = together(engine, *(Request(prompt, drawn(seed=i)) for i, prompt in enumerate(prompts)))
        monkeypatch.undo()
        assert passes[0] == [g.sequence.prompt_length - 1 for g in generations]
        assert all((g.cached_tokens, g.prefill_s > 0) == (0, True) for g in generations)
        assert [engine.result(generation).token_ids for generation in generations] == alone
