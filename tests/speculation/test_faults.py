"""Failing passes, cuts and cancels: the caches are consistent afterwards and the text is what it would have been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from toy_drafters import Breaking, perfect
from toy_model import ToyModel
from toy_runs import (
    GREEDY,
    WARM,
    check_caches,
    draft_model,
    go_on,
    make_sequence,
    model_drafter,
    plain,
    play,
    read,
    speculator,
    target_model,
    text_drafter,
)

from spec_local.drafting.model import ModelDrafter
from spec_local.errors import Aborted, BackendError, CacheError
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def _make(**options: object) -> Sequence:
    return make_sequence(WARM, seed=13, prompt=PROMPT, **options)  # type: ignore[arg-type]


EXPECTED = plain(WARM, seed=13, prompt=PROMPT).tokens


def _insist(step: Callable[[], object], errors: type[Exception]) -> int:
    """Do a step until it does not fail; returns how often it failed."""
    failed = 0
    while True:
        try:
            step()
            return failed
        except errors:
            failed += 1
            assert failed < 50


@pytest.mark.parametrize("loses_cache", [False, True])
@pytest.mark.parametrize("error", [Aborted, BackendError])
def test_a_target_pass_that_fails_at_every_call(error: type[Exception], loses_cache: bool) -> None:
    """Prefill in batches of five, then rounds; each pass of the run fails once and the run goes on."""
    for drafters in (model_drafter, text_drafter):
        probe = target_model(n_batch=9)
        play(speculator(drafters(), 3, target=probe), _make())
        for call in range(len(probe.calls)):
            target = target_model(n_batch=9)
            target.fail_at(call, error=error)
            target.loses_cache = loses_cache
            engine, sequence = speculator(drafters(), 3, target=target), _make()
            failed = _insist(partial(read, engine, sequence), error)
            while sequence.finish is None:
                before = list(sequence.tokens), len(sequence.rounds)
                try:
                    go_on(engine, sequence, rounds=1)
                except error:
                    failed += 1
                    assert (sequence.tokens, len(sequence.rounds)) == before
                    if not loses_cache:
                        check_caches(engine, sequence)
            assert failed == 1
            assert sequence.tokens == EXPECTED
            assert not engine.off


def test_a_draft_pass_that_is_stopped_at_every_call() -> None:
    probe = draft_model(n_batch=9)
    play(speculator({"model": ModelDrafter(probe)}, 3), _make())
    for call in range(len(probe.calls)):
        draft = draft_model(n_batch=9)
        draft.abort_at(call)
        engine, sequence = speculator({"model": ModelDrafter(draft)}, 3), _make()
        try:
            read(engine, sequence)
        except Aborted:
            check_caches(engine, sequence)
        while sequence.finish is None:
            before = list(sequence.tokens)
            try:
                go_on(engine, sequence, rounds=1)
            except Aborted:
                assert sequence.tokens == before
                check_caches(engine, sequence)
        assert sequence.tokens == EXPECTED
        assert not engine.off


def test_a_draft_pass_that_fails_at_every_call_costs_the_draft_only() -> None:
    probe = draft_model(n_batch=9)
    play(speculator({"model": ModelDrafter(probe)}, 3), _make())
    for call in range(len(probe.calls)):
        draft = draft_model(n_batch=9)
        draft.fail_at(call)
        engine, sequence = speculator({"model": ModelDrafter(draft)}, 3), _make()
        play(engine, sequence)
        assert sequence.tokens == EXPECTED
        assert f"pass {call}" in engine.off["model"]
        assert len(draft.calls) == call + 1  # never asked again


def test_a_draft_model_that_makes_nan_costs_the_draft_only() -> None:
    draft = ToyModel(lambda tokens: draft_model().logits(tokens) * (float("nan") if len(tokens) > 30 else 1), 23)
    engine, sequence = speculator({"model": ModelDrafter(draft)}, 3), _make()
    play(engine, sequence)
    assert sequence.tokens == EXPECTED
    assert "NaN" in engine.off["model"]
    assert sequence.rounds[0].source == "model"


@pytest.mark.parametrize("mode", ["refuses", "lies"])
def test_a_target_cache_that_cannot_be_cut_ends_speculation_not_the_text(mode: str) -> None:
    for drafters in (model_drafter(), text_drafter(), {**model_drafter(), **text_drafter()}):
        target = target_model()
        target.trim_mode = mode  # type: ignore[assignment]
        engine, sequence = speculator(drafters, 4, target=target), make_sequence(GREEDY, max_tokens=60)
        play(engine, sequence)
        assert sequence.tokens == plain(GREEDY, max_tokens=60).tokens
        assert set(engine.off) == set(drafters)
        assert all("target's cache cannot be cut back" in reason for reason in engine.off.values())
        assert not engine.drafters
        assert sequence.rounds[-1].source == "none"
        # The next request of the slot shares a prefix that cannot be kept: it is read again, and right.
        again = make_sequence(GREEDY, max_tokens=30)
        assert read(engine, again) == 0
        go_on(engine, again)
        assert again.tokens == sequence.tokens[: len(again.tokens)]


def test_a_target_cache_that_cannot_even_be_emptied_is_an_error_not_a_wrong_text() -> None:
    target = target_model()
    target.trim_mode = "never"
    engine, sequence = speculator({"text": perfect(EXPECTED)}, 4, target=target), _make(ends=[EXPECTED[20]])
    read(engine, sequence)
    while sequence.finish is None:
        engine.step([sequence])
    assert sequence.tokens == EXPECTED[:21]  # the end came inside a block; the text is right, the cache is not
    assert sequence.finish == "stop"
    with pytest.raises(CacheError):
        read(engine, _make())

    target = target_model()
    target.trim_mode = "never"
    engine, sequence = speculator(model_drafter(), 4, target=target), _make()
    read(engine, sequence)
    while sequence.finish is None:
        engine.step([sequence])
    assert sequence.finish == "error"
    assert isinstance(sequence.error, CacheError)
    assert sequence.tokens == EXPECTED[: len(sequence.tokens)]


@pytest.mark.parametrize("mode", ["refuses", "lies", "never"])
def test_a_draft_cache_that_cannot_be_cut_is_given_up_with_its_reason(mode: str) -> None:
    draft = draft_model()
    draft.trim_mode = mode  # type: ignore[assignment]
    engine, sequence = speculator({"model": ModelDrafter(draft), **text_drafter()}, 4), _make()
    play(engine, sequence)
    assert sequence.tokens == EXPECTED
    assert set(engine.off) == {"model"}
    assert "cut" in engine.off["model"]
    assert sequence.rounds[0].source == "model"


def test_a_drafter_that_cannot_forget_is_given_up() -> None:
    engine = speculator({"text": Breaking(perfect(EXPECTED), forgetting=True), **model_drafter()}, 4)
    sequence = _make()
    play(engine, sequence)
    assert engine.off == {"text": "the drafter cannot forget"}
    assert sequence.tokens == EXPECTED


def test_a_callback_that_raises_leaves_a_sequence_that_can_go_on() -> None:
    """An exception of the caller's own passes through; the next round starts from what was emitted."""
    seen: list[int] = []

    def on_token(token: int) -> bool:
        seen.append(token)
        if len(seen) == 10:
            raise KeyboardInterrupt
        return False

    engine, sequence = speculator(model_drafter(), 4), _make(on_token=on_token)
    read(engine, sequence)
    with pytest.raises(KeyboardInterrupt):
        go_on(engine, sequence)
    go_on(engine, sequence)
    assert sequence.tokens == EXPECTED
    assert seen == sequence.emitted


def test_an_interrupt_between_a_pass_and_its_booking() -> None:
    """Ctrl-C may strike after the model has taken the tokens and before anybody noted it."""

    class Interrupted(ToyModel):
        strike_at = -1

        def decode(self, chunks):
            rows = super().decode(chunks)
            if len(self.calls) == self.strike_at:
                raise KeyboardInterrupt
            return rows

    for strike_at in range(1, 9):
        for victim in ("target", "draft"):
            models = {
                "target": Interrupted(target_model().logits, 23, n_batch=9),
                "draft": Interrupted(draft_model().logits, 23, n_batch=9),
            }
            models[victim].strike_at = strike_at
            engine = speculator({"model": ModelDrafter(models["draft"])}, 3, target=models["target"])
            sequence = _make()
            struck = 0
            while sequence.finish is None:
                try:
                    if not struck and not sequence.rounds:
                        read(engine, sequence)
                    go_on(engine, sequence)
                except KeyboardInterrupt:
                    struck += 1
            assert struck == 1
            assert sequence.tokens == EXPECTED


def test_caches_that_somebody_else_emptied_or_cut_are_read_again() -> None:
    """The models are the truth, not what is remembered of them: between requests and between rounds."""
    target, draft = target_model(), draft_model()
    engine = speculator({"model": ModelDrafter(draft)}, 3, target=target)
    for left in (0, 5):
        play(engine, _make())
        for model in (target, draft):
            model.trim(0, left)
        sequence = _make()
        assert read(engine, sequence) == left
        go_on(engine, sequence, rounds=3)
        for model in (target, draft):
            model.trim(0, left)
        go_on(engine, sequence)
        assert sequence.tokens == EXPECTED
        assert not engine.off


def test_progress_is_told_and_a_stopped_prefill_is_not_begun_anew() -> None:
    target = target_model(n_batch=4)
    target.abort_at(2)
    engine = speculator(model_drafter(), 3, target=target)

    def told(sequence: Sequence) -> Iterator[tuple[int, int]]:
        while sequence.reading.computed < sequence.reading.lacking or not sequence.reading.begun:
            engine.step([sequence])
            yield sequence.reading.computed, sequence.reading.lacking

    stopped = told(_make())
    assert [next(stopped), next(stopped)] == [(4, 11), (8, 11)]
    with pytest.raises(Aborted):
        next(stopped)
    sequence = _make()
    assert list(told(sequence)) == [(3, 3)]
    assert read(engine, sequence) == 8
    go_on(engine, sequence)
    assert sequence.tokens == EXPECTED


def test_a_finished_or_empty_round_does_nothing() -> None:
    engine = Speculator(target_model(), {}, speculator({}).controller)
    assert engine.step([]) == []
    done = _make(max_tokens=0)
    read(engine, done)
    assert engine.step([done]) == []
    assert done.tokens == PROMPT
