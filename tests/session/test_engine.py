"""The façade on tiny models: requests, prefixes, cancels, limits, seeds, and what is said about them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import END_OF_TURN, N_VOCAB, TEMPLATE, TURN, write_transformer

from spec_local.errors import Aborted, BackendError, ContextFullError, ModelError, PairError, TemplateError, UsageError
from spec_local.llama.context import Context
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Prompt, Request
from spec_local.session.options import EngineOptions, engine_options
from spec_local.session.template import Message
from spec_local.speculation.adaptive import AdaptiveController

Load = Callable[..., Engine]
PROMPT = "the abcd on an inn, the abcd on an inn, the "


@pytest.fixture
def open_engine(tiny_target: Path, tiny_draft: Path) -> Iterator[Load]:
    opened: list[Engine] = []

    def open_(target: Path | None = None, draft: Path | str | None = None, **options: Any) -> Engine:
        settings = {"n_ctx": 256, "threads": 1, "draft_length": 4, "pad_width": 8, **options}
        opened.append(load(target or tiny_target, draft=draft or tiny_draft, options=EngineOptions(**settings)))
        return opened[-1]

    yield open_
    for engine in opened:
        engine.close()


def _sampling(**fields: Any) -> Sampling:
    return Sampling(
        **{"temperature": 0.8, "seed": 5, "max_tokens": 40, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **fields}
    )


def _request(prompt: Prompt, **fields: Any) -> Request:
    return Request(prompt, **fields)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_text_with_any_draft_or_none(open_engine: Load, tiny_target: Path, temperature: float) -> None:
    """Padded to one width the kernels are the same, so the tokens must be."""
    for seed in (0, 1, 2):
        sampling = _sampling(temperature=temperature, seed=seed)
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
    result = engine.generate(PROMPT, sampling=_sampling()).as_dict()
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
    assert (result["finish_reason"], result["limit"], result["seed"]) == ("length", "max_tokens", 5)
    assert result["usage"]["completion_tokens"] == len(result["token_ids"]) == 40
    assert set(result["timings"]) == {
        *("load_s", "prefill_s", "ttft_s", "decode_s", "decode_tokens_per_s", "draft_s", "verify_s", "host_s")
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
    first = engine.generate(PROMPT, sampling=_sampling(), raw=True)
    again = engine.generate(PROMPT, sampling=_sampling(), raw=True)
    assert first.cached_tokens == 0
    assert again.cached_tokens == again.prompt_tokens - 1
    assert (again.token_ids, again.text) == (first.token_ids, first.text)
    longer = engine.generate(PROMPT + "zzz", sampling=_sampling(max_tokens=3), raw=True)
    assert longer.cached_tokens == first.prompt_tokens
    other = engine.generate("x", sampling=_sampling(max_tokens=3), raw=True)
    assert other.cached_tokens == 0
    third = engine.generate(PROMPT, sampling=_sampling(), raw=True)
    assert (third.cached_tokens, third.token_ids) == (0, first.token_ids)


def test_whole_prompt_hits_of_one_token_prompts(open_engine: Load) -> None:
    engine = open_engine()
    results = [engine.generate("t", sampling=_sampling(max_tokens=5), raw=True) for _ in range(3)]
    assert [r.cached_tokens for r in results] == [0, 0, 0]
    assert len({r.token_ids for r in results}) == 1


def test_pieces_are_the_text_and_the_tokens(open_engine: Load) -> None:
    engine = open_engine()
    stream = engine.stream(PROMPT, sampling=_sampling())
    pieces = list(stream)
    result = stream.result
    assert "".join(piece.text for piece in pieces) == result.text
    assert tuple(token for piece in pieces for token in piece.tokens) == result.token_ids
    assert [piece.round for piece in pieces if piece.tokens] == list(result.rounds)
    assert all(piece.text.encode() for piece in pieces if piece.text)


def test_cancelled_from_another_thread_then_used_again(open_engine: Load) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=_sampling(max_tokens=150))
    for after in (0, 1, 3):
        stream = engine.stream(PROMPT, sampling=_sampling(max_tokens=150))
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
        again = engine.generate(PROMPT, sampling=_sampling(max_tokens=150))
        assert again.token_ids == expected.token_ids


def test_a_cancel_before_the_stream_starts_is_not_lost(open_engine: Load) -> None:
    engine = open_engine()
    stream = engine.stream(PROMPT, sampling=_sampling())
    engine.cancel()
    assert list(stream) == []
    assert (stream.result.finish_reason, stream.result.token_ids, stream.result.text) == ("cancelled", (), "")
    assert engine.generate(PROMPT, sampling=_sampling()).finish_reason == "length"


def test_a_cancel_in_prefill_keeps_what_was_read(open_engine: Load) -> None:
    engine = open_engine(batch_size=8)
    stream = engine.stream(
        PROMPT, sampling=_sampling(), raw=True, on_prefill=lambda done, _todo: engine.cancel() if done >= 16 else None
    )
    assert list(stream) == []
    assert stream.result.finish_reason == "cancelled"
    assert engine.generate(PROMPT, sampling=_sampling(), raw=True).cached_tokens == 16


def test_closing_a_stream_early_keeps_the_text(open_engine: Load) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=_sampling())
    stream = engine.stream(PROMPT, sampling=_sampling())
    iterator = iter(stream)
    shown = next(iterator).text + next(iterator).text
    stream.close()
    stream.close()
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.text.startswith(shown)
    assert expected.token_ids[: len(stream.result.token_ids)] == stream.result.token_ids
    never = engine.stream(PROMPT, sampling=_sampling())
    never.close()
    assert (list(never), never.result.finish_reason) == ([], "cancelled")
    assert engine.generate(PROMPT, sampling=_sampling()).token_ids == expected.token_ids


def test_a_second_stream_is_refused_not_mixed_in(open_engine: Load) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=_sampling()).token_ids
    stream = engine.stream(PROMPT, sampling=_sampling())
    iterator = iter(stream)
    next(iterator)
    with pytest.raises(UsageError, match="answering already"):
        next(iter(engine.stream("x")))
    with pytest.raises(UsageError, match="answering already"):
        engine.generate("x")
    for _ in iterator:
        pass
    assert stream.result.token_ids == expected


def test_a_stream_that_is_dropped_lets_go_of_the_engine(open_engine: Load) -> None:
    engine = open_engine()
    for piece in engine.stream(PROMPT, sampling=_sampling()):
        assert piece.tokens
        break
    assert engine.generate(PROMPT, sampling=_sampling()).finish_reason == "length"


def test_many_threads_never_decode_together(open_engine: Load) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=_sampling()).token_ids
    outcomes: list[object] = []

    def ask() -> None:
        for _ in range(5):
            try:
                outcomes.append(engine.generate(PROMPT, sampling=_sampling()).token_ids)
            except UsageError as error:
                outcomes.append(error.message)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {expected, "This engine is answering already."}
    assert expected in outcomes


def test_closed_while_it_answers_in_another_thread(open_engine: Load) -> None:
    engine = open_engine()
    begun = threading.Event()
    ends: list[str] = []

    def answer() -> None:
        stream = engine.stream(PROMPT, sampling=_sampling(max_tokens=200))
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
        stream = engine.stream(PROMPT, sampling=_sampling(max_tokens=3))
        list(stream)
    assert stream.result.as_dict()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("prompt", ["", "  \n ", []])
def test_an_empty_prompt_is_refused(open_engine: Load, prompt: Any) -> None:
    engine = open_engine()
    with pytest.raises(UsageError, match="prompt is empty"):
        engine.generate(prompt)
    with pytest.raises(UsageError, match="prompt is empty"):
        engine.generate("", raw=True)


def test_prompts_up_to_the_context_and_beyond(open_engine: Load) -> None:
    engine = open_engine(n_ctx=64)
    text = "z" * 200
    with pytest.raises(ContextFullError, match="64 tokens long; the context holds 64") as caught:
        engine.generate(text[:64], raw=True)
    assert "--n-ctx" in caught.value.hint
    assert engine.generate("z", raw=True, sampling=_sampling(max_tokens=2)).finish_reason == "length"  # and it goes on
    for room in (1, 2, 3, 4, 5, 6, 9):
        result = engine.generate(text[: 64 - room], raw=True, sampling=_sampling(max_tokens=None))
        assert (result.finish_reason, result.limit) in (("length", "context"), ("stop", None))
        assert result.prompt_tokens + len(result.token_ids) <= 64
        assert result.limit is None or result.prompt_tokens + len(result.token_ids) == 64


@pytest.mark.parametrize("n_ctx", [100, 200, 257])
@pytest.mark.parametrize("draft", ["none", "text", None])
def test_any_context_length_is_filled_to_its_end(open_engine: Load, n_ctx: int, draft: str | None) -> None:
    engine = open_engine(n_ctx=n_ctx, draft=draft)
    bias = dict.fromkeys(engine.vocabulary.end_ids, -100.0)
    result = engine.generate(PROMPT, sampling=_sampling(max_tokens=None, logit_bias=bias))
    assert engine.n_ctx == n_ctx == result.model["n_ctx"]
    assert (result.finish_reason, result.limit) == ("length", "context")
    assert result.prompt_tokens + len(result.token_ids) == n_ctx


def test_a_prompt_longer_than_the_batch(open_engine: Load) -> None:
    expected = None
    for batch_size in (512, 64, 16, 1):
        engine = open_engine(batch_size=batch_size, pad_width=0)
        for length in (15, 16, 17, 63, 64, 65, 150):
            result = engine.generate("y" * length, raw=True, sampling=_sampling(temperature=0.0, max_tokens=8))
            assert result.prompt_tokens == length
            assert result.finish_reason in ("length", "stop")
        expected = expected or result.token_ids
        assert result.token_ids == expected


@pytest.mark.parametrize("budget", [0, 1, 2, 6, 7, 8, 9])
def test_budgets(open_engine: Load, budget: int) -> None:
    result = open_engine(pad_width=0, draft_length=8).generate(PROMPT, sampling=_sampling(max_tokens=budget))
    assert (len(result.token_ids), result.finish_reason, result.limit) == (budget, "length", "max_tokens")
    assert (budget > 0) == bool(result.text)


def test_seeds(open_engine: Load, tiny_target: Path, tiny_draft: Path) -> None:
    engine = open_engine()

    def tokens(seed: int | None) -> tuple[int, ...]:
        return engine.generate(PROMPT, sampling=_sampling(seed=seed)).token_ids

    assert tokens(7) == tokens(7)
    assert len({tokens(seed) for seed in (0, 1, 7, None, None)}) == 5
    unset = engine.generate(PROMPT, sampling=_sampling(seed=None))
    assert tokens(unset.seed) == unset.token_ids
    engine.generate("something else", sampling=_sampling(seed=None))
    assert tokens(7) == open_engine().generate(PROMPT, sampling=_sampling(seed=7)).token_ids


def test_end_tokens_and_stop_strings_end_the_text(open_engine: Load) -> None:
    engine = open_engine()
    free = engine.generate(PROMPT, sampling=_sampling(temperature=0.0))
    for at in range(1, 12):
        text = engine.vocabulary.text(free.token_ids[:at])
        stop = text[-2:]
        if "\ufffd" in stop or len(stop) < 2:
            continue
        result = engine.generate(PROMPT, sampling=_sampling(temperature=0.0, stop=(stop,)))
        assert result.finish_reason == "stop"
        assert stop not in result.text
        assert free.text.startswith(result.text)
        assert len(result.token_ids) <= at
    ends = engine.generate(PROMPT, sampling=_sampling(logit_bias={END_OF_TURN: 1000.0}))
    assert (ends.token_ids, ends.text, ends.finish_reason) == ((END_OF_TURN,), "", "stop")
    late = engine.generate(PROMPT, sampling=_sampling(logit_bias={END_OF_TURN: 1000.0}, min_tokens=6))
    assert len(late.token_ids) == 7


def test_a_bias_holds_for_drafted_tokens_too(open_engine: Load) -> None:
    engine = open_engine()
    free = engine.generate(PROMPT, sampling=_sampling(temperature=0.0))
    banned = max(set(free.token_ids), key=free.token_ids.count)
    result = engine.generate(PROMPT, sampling=_sampling(temperature=0.0, logit_bias={banned: -100.0}))
    assert banned not in result.token_ids
    assert len(result.token_ids) == 40
    with pytest.raises(UsageError, match=f"token {N_VOCAB}"):
        engine.generate(PROMPT, sampling=_sampling(logit_bias={N_VOCAB: 1.0}))


def test_chat_raw_and_messages_make_the_prompt_they_should(open_engine: Load) -> None:
    engine = open_engine()
    as_text, _ = engine.tokenize(_request("Hi", system="Be brief."))
    as_messages, _ = engine.tokenize(
        _request([Message(role="system", content="Be brief."), Message(role="user", content="Hi")])
    )
    assert as_text == as_messages
    assert as_text.count(TURN) == 3
    raw, _ = engine.tokenize(_request("Hi<|im_end|>", raw=True))
    assert raw[-1] == END_OF_TURN
    assert TURN not in raw
    with pytest.raises(UsageError, match="raw prompt is one text"):
        engine.generate([Message(role="user", content="Hi")], raw=True)


def test_exactly_one_begin_token(open_engine: Load, tiny_folder: Path) -> None:
    template = "{{ bos_token }}" + TEMPLATE
    path = write_transformer(tiny_folder / "adds-bos.gguf", seed=1, add_bos=True, template=template)
    engine = open_engine(path, "text")
    bos = engine.vocabulary.bos
    for request in (
        _request("Hi"),
        _request("Hi", raw=True),
        _request("<|endoftext|>Hi", raw=True),
    ):
        tokens, notices = engine.tokenize(request)
        assert (tokens[0], tokens.count(bos), notices) == (bos, 1, [])


def test_a_model_without_a_template_says_which_is_used(open_engine: Load, tiny_folder: Path, tmp_path: Path) -> None:
    path = write_transformer(tiny_folder / "bare.gguf", seed=1, template=None)
    engine = open_engine(path, "text")
    result = engine.generate("Hi", sampling=_sampling(max_tokens=2))
    assert any("ChatML" in notice for notice in result.notices)
    assert not any("ChatML" in n for n in engine.generate("Hi", raw=True, sampling=_sampling(max_tokens=2)).notices)
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}")
    engine = open_engine(path, "text", chat_template=str(own))
    result = engine.generate("Hi", sampling=_sampling(max_tokens=2))
    assert (result.prompt_tokens, result.notices) == (2, ())


def test_a_broken_template_is_reported_at_load(open_engine: Load, tiny_folder: Path, tmp_path: Path) -> None:
    path = write_transformer(tiny_folder / "broken-template.gguf", seed=1, template="{% for %}")
    engine = open_engine(path, "text")
    assert any("syntax error" in notice for notice in engine.notices)
    with pytest.raises(TemplateError, match="syntax error"):
        engine.generate("Hi")
    assert engine.generate("Hi", raw=True, sampling=_sampling(max_tokens=2)).finish_reason == "length"
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% if %}")
    for template, match in ((broken, "syntax error"), (tmp_path / "none.jinja", "cannot be read")):
        with pytest.raises(TemplateError, match=match):
            open_engine(chat_template=str(template))


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_cut_that_fails_at_run_time(open_engine: Load, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    """The start-up probe saw nothing; the first refused cut switches the drafting off, and the text is right."""
    expected = open_engine(draft="none").generate(PROMPT, sampling=_sampling(temperature=0.0))
    engine = open_engine(pad_width=0)
    context = engine.loaded.target if role == "target" else engine.loaded.draft
    assert context is not None
    lib = context._lib

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def llama_memory_seq_rm(self, memory: Any, seq: int, start: int, end: int) -> bool:
            return start < 0 and bool(lib.llama_memory_seq_rm(memory, seq, start, end))

    monkeypatch.setattr(context, "_lib", Refusing())
    result = engine.generate(PROMPT, sampling=_sampling(temperature=0.0))
    assert result.token_ids == expected.token_ids
    assert result.speculation_state == "off"
    assert "cut" in result.speculation_reason
    assert engine.generate(PROMPT, sampling=_sampling(temperature=0.0)).token_ids == expected.token_ids


def test_a_failing_pass_ends_the_stream_with_its_error(open_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine()
    expected = engine.generate(PROMPT, sampling=_sampling()).token_ids
    target = engine.loaded.target
    decode, calls = target.decode, 0

    def failing(chunks: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise BackendError("The device went away.")
        return decode(chunks)

    monkeypatch.setattr(target, "decode", failing)
    stream = engine.stream(PROMPT, sampling=_sampling())
    with pytest.raises(BackendError, match="went away"):
        list(stream)
    assert stream.result.finish_reason == "error"
    assert 0 < len(stream.result.token_ids) < 40
    assert engine.generate(PROMPT, sampling=_sampling()).token_ids == expected


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
    assert engine.generate(PROMPT, sampling=_sampling(max_tokens=3)).speculation_state in ("on", "off")


def test_another_vocabulary_is_refused_as_a_draft(open_engine: Load, tiny_folder: Path) -> None:
    import tiny_gguf

    other = tiny_folder / "other-words.gguf"
    words = tiny_gguf.MERGES
    try:
        tiny_gguf.MERGES = (*words[:-1], "z z")
        write_transformer(other, seed=1)
    finally:
        tiny_gguf.MERGES = words
    with pytest.raises(PairError) as caught:
        open_engine(draft=other)
    assert "other-words.gguf" in caught.value.message
    assert "target.gguf" in caught.value.message
    assert open_engine(draft=other, allow_plain=True).generate("Hi", sampling=_sampling(max_tokens=2)).text is not None


@pytest.mark.parametrize("padding", [5, 40])
def test_a_draft_with_a_longer_or_shorter_tail_drafts(open_engine: Load, tiny_folder: Path, padding: int) -> None:
    padded = write_transformer(tiny_folder / f"padded-{padding}.gguf", seed=1, near=0.02, padding=padding)
    expected = open_engine(draft="none").generate(PROMPT, sampling=_sampling())
    result = open_engine(draft=padded).generate(PROMPT, sampling=_sampling())
    assert result.token_ids == expected.token_ids
    assert result.statistics.sources["model"].accepted > 0
    swapped = open_engine(padded, "none").generate(PROMPT, sampling=_sampling())
    result = open_engine(padded).generate(PROMPT, sampling=_sampling())
    assert result.token_ids == swapped.token_ids


def test_plain_on_request_and_draft_length_zero(open_engine: Load) -> None:
    engine = open_engine()
    plain = engine.generate(PROMPT, sampling=_sampling(), speculate=False)
    assert (plain.speculation_state, plain.statistics.drafted) == ("off", 0)
    assert "this request" in plain.speculation_reason
    zero = open_engine(draft_length=0)
    result = zero.generate(PROMPT, sampling=_sampling())
    assert (result.token_ids, result.speculation_reason) == (plain.token_ids, "the draft length is 0")
    assert result.model["draft"] is None  # it is not even loaded


def test_text_drafts_stand_beside_a_draft_model_that_was_named(open_engine: Load) -> None:
    assert set(open_engine(draft_length="auto").speculator.drafters) == {"model", "text"}
    assert set(open_engine(draft_length=4).speculator.drafters) == {"model"}
    assert set(open_engine(draft="text").speculator.drafters) == {"text"}
    assert set(open_engine(draft="none", draft_length="auto").speculator.drafters) == set()


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


def test_measuring_what_a_pass_costs_can_be_stopped(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("spec_local.session.saved.cache_folder", lambda: tmp_path)
    said: list[tuple[str, float]] = []

    def progress(what: str, done: float) -> bool:
        said.append((what, done))
        return not (what.startswith("finding out") and done > 0.3)

    options = EngineOptions(n_ctx=256, threads=1)
    with pytest.raises(Aborted, match="stopped"):
        load(tiny_target, draft=tiny_draft, options=options, progress=progress)
    assert said[-1][1] < 0.5
    load(tiny_target, draft=tiny_draft, options=options).close()  # what was loaded is free again


def test_recommended_values_fill_what_was_not_set(open_engine: Load, tiny_folder: Path) -> None:
    path = write_transformer(tiny_folder / "recommends.gguf", seed=1, recommended={"temp": 0.25, "top_p": 0.5})
    engine = open_engine(path, "text")
    sampling, origins = engine.complete(Sampling(top_p=0.9))
    assert (sampling.temperature, sampling.top_p) == (0.25, 0.9)
    assert origins["top_p"] == "request"
    assert "temperature" in origins


def test_several_at_once_get_what_each_gets_alone(open_engine: Load) -> None:
    engine = open_engine(parallel=3, draft_length=4, pad_width=24)
    prompts = [PROMPT, "x", "the abcd"]
    alone = [engine.generate(prompt, sampling=_sampling(seed=i)).token_ids for i, prompt in enumerate(prompts)]
    with engine.using():
        generations = [
            engine.prepare(_request(prompt, sampling=_sampling(seed=i)), slot=i) for i, prompt in enumerate(prompts)
        ]
        for generation in generations:
            engine.prefill(generation)
        while not all(generation.finished for generation in generations):
            engine.step(generations)
    assert [engine.result(generation).token_ids for generation in generations] == alone


def test_options_out_of_range_are_sentences() -> None:
    for values in ({"n_ctx": 0}, {"draft_length": 99}, {"threads": -1}, {"acceptance": "maybe"}, {"unknown": 1}):
        with pytest.raises(UsageError) as caught:
            engine_options(**values)
        assert next(iter(values)) in caught.value.message
