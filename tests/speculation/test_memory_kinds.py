"""Every kind of memory behind the same rounds: the text is plain decoding's, token for token, whatever must be undone.

The toy is strict: a state that was not marked and is in no snapshot cannot be cut to, and the caches are compared token
by token after every round.
"""

from __future__ import annotations

import pytest
from toy_model import ToyModel
from toy_runs import (
    GREEDY,
    WARM,
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
from spec_local.errors import Aborted, BackendError
from spec_local.language_model import Memory, MemoryKind
from spec_local.speculation.speculator import Speculator

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
KINDS = [
    Memory(MemoryKind.ANYWHERE),
    Memory(MemoryKind.SNAPSHOTS, depth=7),
    Memory(MemoryKind.SNAPSHOTS, depth=2),
    Memory(MemoryKind.CHECKPOINTS),
]
NAMES = ["anywhere", "snapshots", "few snapshots", "checkpoints"]


@pytest.mark.parametrize("settings", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("memory", KINDS, ids=NAMES)
def test_the_same_text_with_any_memory(memory: Memory, settings: dict[str, float]) -> None:
    for ends in ((), (7, 11)):
        expected = plain(settings, seed=3, prompt=PROMPT, max_tokens=60, ends=ends)
        for length in (1, 3, 7):
            for drafters in (
                model_drafter(),
                {"model": ModelDrafter(draft_model(memory=memory), 4)},
                text_drafter(),
                {**model_drafter(memory=memory), **text_drafter()},
            ):
                target = target_model(memory=memory, n_batch=9)
                engine = speculator(drafters, length, target=target)
                sequence = make_sequence(settings, seed=3, prompt=PROMPT, max_tokens=60, ends=ends)
                play(engine, sequence)
                assert sequence.tokens == expected.tokens
                assert (sequence.finish, sequence.limit) == (expected.finish, expected.limit)
                assert not engine.off


@pytest.mark.parametrize("memory", KINDS[1:], ids=NAMES[1:])
def test_regenerating_and_editing_come_back_to_marks(memory: Memory) -> None:
    """A later turn cuts far back: to the end of its prompt nothing is read again; to before it the text is right."""
    target = target_model(memory=memory)
    engine = speculator({"model": ModelDrafter(draft_model(memory=memory))}, 3, target=target)
    first = make_sequence(WARM, seed=1, prompt=PROMPT, max_tokens=40)
    play(engine, first)
    again = make_sequence(WARM, seed=2, prompt=PROMPT, max_tokens=40)
    assert read(engine, again) == len(PROMPT) - 1
    go_on(engine, again)
    assert again.tokens == plain(WARM, seed=2, prompt=PROMPT, max_tokens=40).tokens

    turn = [*again.tokens, 5, 5, 1]
    later = make_sequence(WARM, seed=1, prompt=turn, max_tokens=20)
    assert read(engine, later) >= len(PROMPT) - 1
    go_on(engine, later)
    edited = make_sequence(WARM, seed=1, prompt=[*PROMPT[:6], 8, 8], max_tokens=20)
    assert read(engine, edited) == 0
    go_on(engine, edited)
    for sequence in (later, edited):
        prompt = sequence.tokens[: sequence.prompt_length]
        assert sequence.tokens == plain(WARM, seed=1, prompt=prompt, max_tokens=20).tokens


def test_accepted_tokens_are_read_again_with_the_round_not_before_it() -> None:
    """One target pass a round, also after a rejection; only a long backlog is read by itself."""
    target = target_model(memory=Memory(MemoryKind.CHECKPOINTS))
    engine = speculator(model_drafter(), 3, target=target)
    sequence = make_sequence(WARM, seed=1, prompt=PROMPT, max_tokens=60)
    read(engine, sequence)
    before = len(target.calls)
    go_on(engine, sequence)
    passes = target.calls[before:]
    rounds = [p for p in passes if p[0].rows]
    assert len(rounds) == len(sequence.rounds)
    assert [len(p[0].tokens) for p in rounds] == [record.width for record in sequence.rounds]
    assert len(passes) - len(rounds) <= len(rounds) // 3
    assert max(record.width - record.drafted for record in sequence.rounds) > 1
    assert all(record.width <= 8 + 4 for record in sequence.rounds)


@pytest.mark.parametrize("memory", KINDS[1:], ids=NAMES[1:])
def test_many_sequences_each_with_its_own_marks(memory: Memory) -> None:
    target = target_model(memory=memory)
    engine = speculator({"model": ModelDrafter(draft_model(memory=memory))}, 3, target=target)
    sequences = [make_sequence(WARM, seed=i, prompt=PROMPT[i:], slot=i, max_tokens=25 + i) for i in range(4)]
    play(engine, *sequences)
    for i, sequence in enumerate(sequences):
        assert sequence.tokens == plain(WARM, seed=i, prompt=PROMPT[i:], max_tokens=25 + i).tokens


@pytest.mark.parametrize("error", [Aborted, BackendError])
@pytest.mark.parametrize("memory", KINDS[1:], ids=NAMES[1:])
def test_a_pass_that_fails_at_every_call_with_a_running_state(memory: Memory, error: type[Exception]) -> None:
    """A running state that a pass broke off is lost whole; what is lost is read again."""
    expected = plain(WARM, seed=13, prompt=PROMPT).tokens
    probe = target_model(n_batch=9, memory=memory)
    play(speculator(model_drafter(), 3, target=probe), make_sequence(WARM, seed=13, prompt=PROMPT))
    for call in range(len(probe.calls)):
        target = target_model(n_batch=9, memory=memory)
        target.fail_at(call, error=error)
        target.loses_cache = True
        engine, sequence = speculator(model_drafter(), 3, target=target), make_sequence(WARM, seed=13, prompt=PROMPT)
        failed = 0
        while sequence.finish is None:
            try:
                if not sequence.rounds and not failed:
                    read(engine, sequence)
                go_on(engine, sequence)
            except error:
                failed += 1
        assert failed == 1
        assert sequence.tokens == expected
        assert not engine.off


def test_an_interrupt_with_a_running_state() -> None:
    class Interrupted(ToyModel):
        strike_at = -1

        def decode(self, chunks):
            rows = super().decode(chunks)
            if len(self.calls) == self.strike_at:
                raise KeyboardInterrupt
            return rows

    expected = plain(WARM, seed=13, prompt=PROMPT).tokens
    for memory in KINDS[1:]:
        for strike_at in range(1, 9):
            target = Interrupted(target_model().logits, 23, n_batch=9, memory=memory)
            target.strike_at = strike_at
            engine = speculator(model_drafter(), 3, target=target)
            sequence = make_sequence(WARM, seed=13, prompt=PROMPT)
            struck = 0
            while sequence.finish is None:
                try:
                    if not struck and not sequence.rounds:
                        read(engine, sequence)
                    go_on(engine, sequence)
                except KeyboardInterrupt:
                    struck += 1
            assert struck == 1
            assert sequence.tokens == expected


def test_a_memory_that_can_only_be_emptied_decodes_plainly() -> None:
    target = target_model(memory=Memory(MemoryKind.NOWHERE, reason="it forgets"))
    engine = Speculator(target, {}, speculator({}).controller)
    sequence = make_sequence(WARM, seed=13, prompt=PROMPT)
    play(engine, sequence)
    assert sequence.tokens == plain(WARM, seed=13, prompt=PROMPT).tokens
    again = make_sequence(WARM, seed=13, prompt=PROMPT)
    assert read(engine, again) == 0
    go_on(engine, again)
    assert again.tokens == sequence.tokens
