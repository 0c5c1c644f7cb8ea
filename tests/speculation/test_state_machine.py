"""Anything in any order: requests, rounds, cancels, failures, cuts and regenerations over two slots of one engine."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toy_drafters import junk
from toy_model import ToyModel
from toy_runs import (
    GREEDY,
    VOCABULARY,
    WARM,
    check_caches,
    check_round,
    draft_model,
    make_sequence,
    plain,
    read,
    target_model,
    text_drafter,
)

from spec_local.drafting.model import ModelDrafter
from spec_local.errors import Aborted, BackendError
from spec_local.language_model import Memory, MemoryKind
from spec_local.speculation.controller import FixedController
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator

SLOTS = 2
SAMPLINGS: tuple[dict[str, Any], ...] = (GREEDY, WARM, {**WARM, "repeat_penalty": 1.6, "penalty_last_n": 5})
MEMORIES = (
    Memory(),
    Memory(MemoryKind.CHECKPOINTS),
    Memory(MemoryKind.SNAPSHOTS, depth=9),
    Memory(MemoryKind.SNAPSHOTS, depth=3),
)


class Drawn(FixedController):
    """Source, length and cut of every round come from the test."""

    def __init__(self) -> None:
        super().__init__(("model", "text"), 4)
        self.keep = 9

    def shorten(self, plan: Any, draft: Any) -> int:
        return min(len(draft), self.keep)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.target: ToyModel
        self.draft: ToyModel
        self.running: dict[int, tuple[Sequence, dict[str, Any]]] = {}
        self.last: dict[int, list[int]] = {}

    @initialize(
        n_batch=st.integers(8, 40),
        draft_batch=st.integers(2, 40),
        draft_ctx=st.integers(10, 200),
        loses=st.booleans(),
        memories=st.tuples(st.sampled_from(MEMORIES), st.sampled_from(MEMORIES)),
    )
    def begin(
        self, n_batch: int, draft_batch: int, draft_ctx: int, loses: bool, memories: tuple[Memory, Memory]
    ) -> None:
        self.target = target_model(slots=SLOTS, n_batch=n_batch, memory=memories[0])
        self.draft = draft_model(slots=SLOTS, n_batch=draft_batch, n_ctx=draft_ctx, memory=memories[1])
        self.target.loses_cache = self.draft.loses_cache = loses
        self.controller = Drawn()
        drafters = {"model": ModelDrafter(self.draft), **text_drafter(), "junk": junk(VOCABULARY)}
        self.engine = Speculator(self.target, drafters, self.controller, max_rows=n_batch)

    @rule(
        slot=st.integers(0, SLOTS - 1),
        which=st.integers(0, len(SAMPLINGS) - 1),
        seed=st.integers(0, 3),
        budget=st.integers(0, 20),
        keep=st.integers(0, 40),
        fresh=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12),
        ends=st.lists(st.integers(0, VOCABULARY - 1), max_size=2),
    )
    def ask(self, slot: int, which: int, seed: int, budget: int, keep: int, fresh: list[int], ends: list[int]) -> None:
        """A new request whose prompt shares `keep` tokens with the slot's last text."""
        prompt = [*self.last.get(slot, [])[:keep], *fresh]
        options: dict[str, Any] = {"seed": seed, "prompt": prompt, "max_tokens": budget, "ends": ends}
        sequence = make_sequence(SAMPLINGS[which], slot=slot, **options)
        while True:
            try:
                read(self.engine, sequence)
                break
            except (Aborted, BackendError):
                continue
        self.running[slot] = sequence, {"settings": SAMPLINGS[which], **options}

    @precondition(lambda self: self.running)
    @rule(
        length=st.integers(0, 7),
        keep=st.integers(0, 9),
        sources=st.permutations(["model", "text", "junk"]),
        speculate=st.lists(st.booleans(), min_size=SLOTS, max_size=SLOTS),
    )
    def play(self, length: int, keep: int, sources: list[str], speculate: list[bool]) -> None:
        self.controller.sources, self.controller.length, self.controller.keep = tuple(sources), length, keep
        sequences = [sequence for sequence, _ in self.running.values()]
        for sequence in sequences:
            sequence.speculate = speculate[sequence.slot]
        before = {s.slot: len(s.tokens) for s in sequences}
        played = {s.slot: len(s.rounds) for s in sequences}
        try:
            records = self.engine.step(sequences)
        except (Aborted, BackendError):
            assert all(len(s.tokens) == before[s.slot] for s in sequences)
            return
        ready = [s for s in sequences if len(s.rounds) > played[s.slot]]  # the others had tokens to read again
        for sequence, record in zip(ready, records, strict=True):
            again = not self.target.memory.free or self.target.loses_cache
            check_round(record, len(sequence.tokens) - before[sequence.slot], sequence, again)
            if sequence.finish is None:
                check_caches(self.engine, sequence)

    @rule(error=st.sampled_from([Aborted, BackendError]), ahead=st.integers(0, 2))
    def let_the_target_fail(self, error: type[Exception], ahead: int) -> None:
        self.target.fail_at(len(self.target.calls) + ahead, error=error)

    @rule(ahead=st.integers(0, 2))
    def stop_the_draft(self, ahead: int) -> None:
        self.draft.abort_at(len(self.draft.calls) + ahead)

    @precondition(lambda self: self.running)
    @rule(slot=st.integers(0, SLOTS - 1))
    def cancel(self, slot: int) -> None:
        if slot in self.running:
            self.running[slot][0].cancel()

    @rule(slot=st.integers(0, SLOTS - 1))
    def release(self, slot: int) -> None:
        self.running.pop(slot, None)
        self.last.pop(slot, None)
        self.engine.release(slot)
        assert self.target.length(slot) == self.draft.length(slot) == 0

    @invariant()
    def texts_are_those_of_plain_decoding(self) -> None:
        for slot, (sequence, options) in list(self.running.items()):
            assert sequence.error is None
            self.last[slot] = list(sequence.tokens)
            if sequence.finish is not None:
                expected = plain(**options)
                assert sequence.tokens == expected.tokens[: len(sequence.tokens)]
                assert sequence.finish == "cancelled" or (sequence.tokens, sequence.finish, sequence.limit) == (
                    expected.tokens,
                    expected.finish,
                    expected.limit,
                )
                del self.running[slot]


Machine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnythingInAnyOrder = Machine.TestCase
