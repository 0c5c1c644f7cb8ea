"""What the draft model is made to compute: nothing twice, nothing for tokens nobody draws after."""

from __future__ import annotations

import numpy as np
import pytest
from toy_drafters import right_for
from toy_model import Table
from toy_runs import (
    DRAFT,
    GREEDY,
    PROMPT,
    TARGET,
    VOCABULARY,
    WARM,
    Watched,
    draft_model,
    go_on,
    make_sequence,
    model_drafter,
    plain,
    play,
    read,
    speculator,
)

from spec_local.drafting.model import ModelDrafter, confidence
from spec_local.drafting.token_cache import common_prefix
from spec_local.speculation.controller import FixedController

TEXT = plain(GREEDY).tokens


@pytest.mark.parametrize("controller", [FixedController("model", 0), FixedController(("text", "model"), 3)])
def test_a_draft_model_that_will_not_draft_first_does_not_read_the_prompt(controller: FixedController) -> None:
    draft, sequence = draft_model(), make_sequence(GREEDY)
    engine = speculator({"model": ModelDrafter(draft), "text": right_for(TEXT, VOCABULARY, 2, 3)}, controller)
    read(engine, sequence)
    assert draft.calls == []


def test_nor_does_one_for_a_plain_stream() -> None:
    draft, sequence = draft_model(), make_sequence(GREEDY)
    sequence.speculate = False
    read(speculator({"model": ModelDrafter(draft)}, 3), sequence)
    assert draft.calls == []


def test_a_prompt_that_the_draft_model_fails_to_read_costs_the_draft_only() -> None:
    draft, sequence = draft_model(), make_sequence(GREEDY)
    draft.fail_at(0)
    engine = speculator({"model": ModelDrafter(draft)}, 3)
    play(engine, sequence)
    assert sequence.tokens == TEXT[: len(sequence.tokens)]
    assert "pass 0" in engine.off["model"]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_one_pass_for_each_drafted_token_and_none_for_the_last(length: int) -> None:
    draft = draft_model()
    engine, sequence = speculator({"model": ModelDrafter(draft)}, length), make_sequence(WARM, seed=3)
    read(engine, sequence)
    # Reading the prompt is no part of a round.
    assert [list(call[0].tokens) for call in draft.calls] == [list(PROMPT[:-1])]
    while sequence.finish is None:
        passes = len(draft.calls)
        kept = _agreeing(draft.caches[0], sequence.tokens)
        known = len(sequence.tokens)
        (record,) = engine.step([sequence])
        made = draft.calls[passes:]
        assert len(made) == record.drafted
        if made:
            # The first step reads what the cache lacks, the last token included, in one batch; each further one, one.
            assert [len(call[0].tokens) for call in made] == [known - min(kept, known - 1)] + [1] * (len(made) - 1)
            assert draft.length(0) == known + record.drafted - 1


def _agreeing(cache: list[int], tokens: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(cache, tokens, strict=False)) if a != b), min(len(cache), len(tokens))
    )


def test_every_token_is_decoded_once_when_all_are_accepted() -> None:
    draft = draft_model(TARGET)
    sequence = make_sequence(WARM, seed=3, max_tokens=30)
    play(speculator({"model": ModelDrafter(draft)}, 4), sequence)
    assert draft.decoded <= len(sequence.tokens) - 1
    assert [t for call in draft.calls for t in call[0].tokens] == sequence.tokens[: draft.decoded]
    assert not draft.trims


def test_rejected_tokens_are_decoded_at_most_once_and_cut() -> None:
    draft = draft_model()
    sequence = make_sequence(WARM, seed=3, max_tokens=60)
    play(speculator({"model": ModelDrafter(draft)}, 4), sequence)
    rejected = sum(r.drafted - r.accepted for r in sequence.rounds)
    assert rejected > 10
    assert draft.decoded <= len(sequence.tokens) - 1 + rejected


def test_a_draft_that_was_off_catches_up_in_one_batch() -> None:
    draft = draft_model(n_batch=256)
    sequence = make_sequence(WARM, seed=3, max_tokens=100)
    engine = speculator({"model": ModelDrafter(draft)}, 3)
    read(engine, sequence)
    go_on(engine, sequence, rounds=2)
    passes = len(draft.calls)
    sequence.speculate = False
    go_on(engine, sequence, rounds=30)
    assert len(draft.calls) == passes
    sequence.speculate = True
    known, held = len(sequence.tokens), draft.length(0)
    go_on(engine, sequence, rounds=1)
    assert len(draft.calls) == passes + 3
    assert known - held <= len(draft.calls[passes][0].tokens) <= known - held + 3
    assert draft.calls[passes][0].rows == 1


def test_catching_up_is_cut_into_batches_and_only_the_last_wants_a_row() -> None:
    prompt = [i % VOCABULARY for i in range(50)]
    draft = draft_model(n_batch=16)
    sequence = make_sequence(WARM, seed=3, prompt=prompt)
    play(speculator({"model": ModelDrafter(draft)}, 3), sequence)
    calls = [(len(call[0].tokens), call[0].rows) for call in draft.calls[:5]]
    assert calls == [(16, 0), (16, 0), (16, 0), (1, 0), (1, 1)]
    late = draft_model(n_batch=16)
    engine, sequence = speculator({"model": ModelDrafter(late)}, 3), make_sequence(WARM, seed=3, prompt=prompt)
    sequence.speculate = False
    read(engine, sequence)
    sequence.speculate = True
    go_on(engine, sequence, rounds=1)
    assert [(len(call[0].tokens), call[0].rows) for call in late.calls[:4]] == [(16, 0), (16, 0), (2, 0), (16, 1)]


def test_two_lagging_slots_share_a_batch() -> None:
    sequences = [make_sequence(WARM, slot=i, prompt=[i + 1] * 40, seed=i) for i in range(2)]
    draft = Watched(DRAFT, sequences, n_batch=32)
    engine = speculator({"model": ModelDrafter(draft)}, 3)
    for sequence in sequences:
        sequence.speculate = False
        read(engine, sequence)
        sequence.speculate = True
    go_on(engine, *sequences, rounds=1)
    both = next(call for call in draft.calls if len(call) == 2)
    assert [len(chunk.tokens) for chunk in both] == [8, 8], "the other 32 of each were read before"


def test_the_next_request_reuses_the_drafts_cache() -> None:
    draft = draft_model()
    engine = speculator({"model": ModelDrafter(draft)}, 3)
    first = make_sequence(WARM, seed=1, max_tokens=20)
    play(engine, first)
    decoded = draft.decoded
    longer = [*first.tokens, 1, 2, 3]
    second = make_sequence(WARM, seed=2, prompt=longer, max_tokens=1 + 4)
    read(engine, second)
    go_on(engine, second, rounds=1)
    assert draft.decoded - decoded <= 3 + 4 + 3  # the new tokens, what the last round left out, and the draft


def test_a_short_draft_context_stops_drafting_and_nothing_else() -> None:
    draft = draft_model(n_ctx=len(PROMPT) + 6)
    sequence = make_sequence(WARM, seed=1, max_tokens=20)
    engine = speculator({"model": ModelDrafter(draft)}, 4)
    play(engine, sequence)
    assert not engine.off
    assert draft.length(0) <= draft.n_ctx
    assert len(sequence.emitted) == 20
    assert sequence.rounds[0].source == "model"
    assert sequence.rounds[-1].source == "none"
    assert max(len(call[0].tokens) for call in draft.calls) <= draft.n_ctx


def test_a_history_with_tokens_the_draft_does_not_know_is_drafted_for_too() -> None:
    small = Table(VOCABULARY - 3, seed=2, scale=0.5, near=TARGET)
    foreign = make_sequence(WARM, seed=1, prompt=[1, VOCABULARY - 1, 2])
    usual = make_sequence(WARM, seed=1, slot=1, prompt=[1, 2], max_tokens=8)
    engine = speculator(model_drafter(small), 3)
    play(engine, foreign, usual)
    assert not engine.off
    for sequence in (foreign, usual):
        assert "model" in {r.source for r in sequence.rounds}
        assert sum(r.accepted for r in sequence.rounds) > 0


def test_drafting_stops_at_an_end_token_and_when_the_controller_says_so() -> None:
    class Doubtful(FixedController):
        def more(self, plan, confidence):
            asked.append(len(confidence))
            return len(confidence) < 2

    asked: list[int] = []
    sequence = make_sequence(WARM, seed=1)
    play(speculator(model_drafter(), Doubtful("model", 6)), sequence)
    assert {r.drafted for r in sequence.rounds} <= {0, 1, 2}
    assert 2 in asked
    ends = list(range(VOCABULARY))
    ended = make_sequence({**WARM, "min_tokens": 0}, seed=1, ends=ends)
    play(speculator(model_drafter(), 6), ended)
    assert [(r.drafted, r.emitted) for r in ended.rounds] == [(1, 1)]


def test_confidence_is_the_probability_or_a_little_more() -> None:
    rng = np.random.default_rng(0)
    for size in (5, 63, 64, 1000, 151_936):
        for spread in (0.1, 1.0, 4.0, 12.0):
            logits = (rng.normal(size=size) * spread).astype(np.float32)
            exact = np.exp(logits - logits.max(), dtype=np.float64)
            exact /= exact.sum()
            for token in (int(logits.argmax()), int(rng.integers(size))):
                got = confidence(logits, token)
                assert exact[token] * (1 - 1e-4) <= got <= 1.0
            if exact.max() > 0.9:
                assert confidence(logits, int(logits.argmax())) - exact.max() < 0.1


def test_common_prefix() -> None:
    for at in range(12):
        a, b = list(range(12)), list(range(12))
        b[at] = -1
        assert common_prefix(a, b) == at
        assert common_prefix(a, b[:at]) == at
        assert all(common_prefix(a, b, known) == at for known in range(at + 1))
    assert common_prefix([], [1]) == common_prefix([1], []) == 0
    assert common_prefix([1, 2], [1, 2], 5) == 2
