"""A draft of another vocabulary: the text is plain decoding's, and the draft reads that very text in its own ids."""

from __future__ import annotations

from typing import Any

import pytest
from toy_drafters import perfect
from toy_grammar import LIST, ToyGrammar, is_list
from toy_runs import (
    GREEDY,
    PROMPT,
    VOCABULARY,
    WARM,
    go_on,
    make_sequence,
    plain,
    play,
    read,
    speculator,
    target_model,
    text_drafter,
)
from toy_vocabularies import FOREIGN, PARTNERS, other_drafter, other_model, other_vocabulary

from spec_local.drafting.drafter import Drafter, DraftRequest
from spec_local.drafting.grammar import GrammarDrafter
from spec_local.drafting.model import ModelDrafter
from spec_local.language_model import Memory, MemoryKind
from spec_local.sampling import RULES
from spec_local.sampling.constraint import Walk

SETTINGS: dict[str, Any] = {
    "greedy": GREEDY,
    "warm": WARM,
    "truncated": {"temperature": 1.0, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
    "penalties": {**WARM, "repeat_penalty": 1.3, "frequency_penalty": 0.2, "penalty_last_n": -1},
    "bias and bans": {**WARM, "logit_bias": {FOREIGN[0]: 2.0, 4: -100.0, 5: 1.0}},
    "min tokens": {**WARM, "min_tokens": 12},
}
KINDS = [Memory(), Memory(MemoryKind.SNAPSHOTS, depth=3), Memory(MemoryKind.CHECKPOINTS)]


@pytest.mark.parametrize("memory", KINDS, ids=lambda memory: memory.kind.value)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_text_is_that_of_plain_decoding(name: str, memory: Memory) -> None:
    ends = (2,) if name == "min tokens" else ()
    for seed in range(3):
        expected = plain(SETTINGS[name], seed=seed, max_tokens=60, ends=ends)
        for length, rows in ((1, 1), (4, 1), (6, 8)):
            sequence = make_sequence(SETTINGS[name], seed=seed, max_tokens=60, ends=ends)
            drafters: dict[str, Drafter] = {"model": other_drafter(rows, memory=memory), **text_drafter()}
            engine = speculator(drafters, length)
            play(engine, sequence)
            assert sequence.tokens == expected.tokens
            assert (sequence.finish, sequence.limit) == (expected.finish, expected.limit)
            assert not engine.off


def test_its_drafts_are_accepted_and_hold_what_both_have_only() -> None:
    sequence = make_sequence(WARM, seed=1, max_tokens=200)
    play(speculator({"model": other_drafter()}, 4), sequence)
    assert any(token in FOREIGN for token in sequence.emitted), "the history holds what the draft lacks"
    accepted, tested = (sum(getattr(r, name) for r in sequence.rounds) for name in ("accepted", "tested"))
    assert 0.3 < accepted / tested < 1


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
def test_a_token_is_drawn_from_the_row_that_is_handed_on(rule: str) -> None:
    """In the target's ids: what the rules divide by is what the token was drawn from."""
    drafter, seen = other_drafter(), set()
    for seed in range(20):
        s = make_sequence(WARM, seed=seed, rule=rule)
        request = DraftRequest(0, s.tokens, 5, s.draft_transform, s.noise.for_round(len(s.tokens)), RULES[rule])
        (draft,) = drafter.draft([request])
        assert draft.rows is not None
        assert len(draft) == 5
        for token, row in zip(draft.tokens, draft.rows, strict=True):
            assert row.prob(token) > 0
            assert row.probs.sum() == pytest.approx(1)
            assert not {*row.ids.tolist()} & {*FOREIGN}
            seen.add(token)
    assert len(seen) > 8


def test_its_cache_holds_the_text_in_its_own_ids() -> None:
    draft, vocabulary = other_model(slots=2), other_vocabulary()
    engine = speculator({"model": ModelDrafter(draft, 1, vocabulary)}, 3, target=target_model(slots=2))
    sequences = [make_sequence(WARM, seed=seed, slot=seed, prompt=[seed + 1, *PROMPT]) for seed in range(2)]
    for sequence in sequences:
        read(engine, sequence)
    while any(sequence.finish is None for sequence in sequences):
        go_on(engine, *sequences, rounds=1)
        for sequence in sequences:
            drafted = sequence.rounds[-1].drafted - sequence.rounds[-1].emitted  # of the last draft, what may be left
            kept = vocabulary.spell(sequence.tokens)
            cache = draft.caches[sequence.slot]
            same = next(
                (i for i, (a, b) in enumerate(zip(cache, kept, strict=False)) if a != b), min(len(cache), len(kept))
            )
            assert len(cache) - same <= max(0, drafted) + sequence.rounds[-1].emitted


def test_an_answer_from_the_middle_reads_what_is_new_only() -> None:
    draft, vocabulary = other_model(), other_vocabulary()
    engine = speculator({"model": ModelDrafter(draft, 1, vocabulary)}, 3)
    prompt = [*PROMPT, *FOREIGN, *PROMPT, *PROMPT]
    play(engine, make_sequence(WARM, seed=1, prompt=prompt))
    start = len(draft.calls)
    again = make_sequence(WARM, seed=2, prompt=[*prompt[:-4], 1, 2])
    read(engine, again)
    go_on(engine, again, rounds=1)
    assert sum(len(chunk.tokens) for call in draft.calls[start:] for chunk in call) <= 2 + 1 + 4
    assert draft.caches[0][: len(vocabulary.spell(again.tokens[:-4]))][:20] == vocabulary.spell(again.tokens)[:20]
    go_on(engine, again)
    assert again.tokens == plain(WARM, seed=2, prompt=[*prompt[:-4], 1, 2]).tokens


@pytest.mark.parametrize("n_ctx", [len(PROMPT) + 4, len(PROMPT) + 9, len(PROMPT) + 15])
def test_its_context_is_counted_in_its_own_ids(n_ctx: int) -> None:
    draft = other_model(n_ctx=n_ctx)
    engine = speculator({"model": ModelDrafter(draft, 1, other_vocabulary())}, 4)
    sequence = make_sequence(WARM, seed=3, max_tokens=40)
    play(engine, sequence)
    assert sequence.tokens == plain(WARM, seed=3, max_tokens=40).tokens
    assert not engine.off
    assert sequence.rounds[-1].source == "none"


@pytest.mark.parametrize("settings", [GREEDY, WARM])
def test_a_grammar_that_spells_what_the_draft_lacks(settings: dict[str, Any]) -> None:
    for seed in range(12):
        texts = []
        sources: list[dict[str, Drafter]] = [
            {},
            {"grammar": GrammarDrafter(), "model": other_drafter(4)},
            {"model": other_drafter()},
        ]
        for drafters in sources:
            sequence = make_sequence(settings, seed=seed, ends=(0,))
            sequence.constraint = ToyGrammar(LIST, VOCABULARY)
            sequence.walk = Walk(sequence.constraint)
            engine = speculator(drafters, 5)
            play(engine, sequence)
            assert not engine.off
            assert is_list([t for t in sequence.emitted if t != 0], complete=sequence.finish == "stop")
            texts.append(sequence.tokens)
        assert texts[0] == texts[1] == texts[2]


def test_another_drafters_guess_is_read_along_as_far_as_the_draft_has_it() -> None:
    expected = plain(WARM, seed=3)
    passes = {}
    for rows in (1, 8):
        draft = other_model()
        engine = speculator(
            {"model": ModelDrafter(draft, rows, other_vocabulary()), "text": perfect(expected.tokens)}, 5
        )
        sequence = make_sequence(WARM, seed=3)
        play(engine, sequence)
        assert sequence.tokens == expected.tokens
        passes[rows] = len(draft.calls)
    assert passes[8] <= passes[1]
    assert len(PARTNERS) != VOCABULARY
