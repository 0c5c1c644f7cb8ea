"""Two drafters written against the seam alone: the round knows neither of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from toy_runs import GREEDY, TARGET, WARM, go_on, make_sequence, plain, play, read, speculator, target_model

from spec_local.drafting.draft import Draft
from spec_local.drafting.drafter import BaseDrafter, DraftRequest, Offer, ReadyDrafter
from spec_local.errors import BackendError
from spec_local.language_model import States
from spec_local.sampling.row import Row


class FromStates(BaseDrafter):
    """Draws its first token from the target's hidden state of the position before the last token, and guesses on.

    A toy's state tells the last tokens it has seen, so with the right one every drafted token is the target's own.
    """

    source = "states"
    needs_states = True

    def __init__(self, rolled: int = 0) -> None:
        self.rolled = rolled
        """By how many positions it mistakes whose state is whose."""
        self.states: dict[int, dict[int, np.ndarray]] = {}

    def offer(self, request: DraftRequest) -> Offer | None:
        known = self.states.get(request.slot, {})
        return Offer(request.limit) if len(request.tokens) - 2 in known else None

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        state = self.states[request.slot][len(request.tokens) - 2]
        history = [int(token) for token in state if token >= 0]
        tokens: list[int] = []
        rows: list[Row] = []
        confidence: list[float] = []
        while len(tokens) < request.limit and (not tokens or request.more(confidence)):
            logits = TARGET([*history, request.tokens[-1], *tokens])
            position = len(request.tokens) + len(tokens)
            row = request.transform.row(logits, request.transform.history(request.tokens, tokens), position, None)
            tokens.append(request.rule.draft_token(row, request.noise, position))
            rows.append(row)
            confidence.append(0.9)
        return Draft(tokens, rows, self.source, confidence)

    def seen(self, slot: int, tokens: Sequence[int], start: int, stop: int, states: States | None) -> None:
        assert states is not None and len(states) == stop - start
        kept = self.states.setdefault(slot, {})
        for i, state in enumerate(np.roll(states, self.rolled, axis=0)):
            kept[start + i] = state.copy()

    def forget(self, slot: int, length: int) -> None:
        kept = self.states.get(slot, {})
        self.states[slot] = {at: state for at, state in kept.items() if at < length}


class FromIds(ReadyDrafter):
    """Remembers what came after each token, in any slot: it learns from `seen`, not from the text it continues."""

    source = "ids"

    def __init__(self) -> None:
        self.after: dict[int, int] = {}
        self.told: list[tuple[int, int, int]] = []

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        tokens: list[int] = []
        last = request.tokens[-1]
        while len(tokens) < request.limit and (following := self.after.get(last)) is not None:
            tokens.append(following)
            last = following
        return Draft(tokens, None, self.source, [0.5] * len(tokens))

    def seen(self, slot: int, tokens: Sequence[int], start: int, stop: int, states: States | None) -> None:
        assert states is None
        self.told.append((slot, start, stop))
        for at in range(max(1, start), stop):
            self.after[tokens[at - 1]] = tokens[at]


@pytest.mark.parametrize("settings", [GREEDY, WARM])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_drafter_from_hidden_states(settings: dict[str, float], rule: str) -> None:
    prompts = ([3, 1, 4, 1, 5, 9, 2, 6], [2, 7], [5] * 40)
    sequences = [make_sequence(settings, slot=i, seed=i, prompt=p, rule=rule) for i, p in enumerate(prompts)]
    target = target_model(state_width=3, n_batch=32)
    play(speculator({"states": FromStates()}, 3, target=target), *sequences)
    for i, sequence in enumerate(sequences):
        drafted = sum(r.drafted for r in sequence.rounds)
        assert drafted > 20
        assert sum(r.accepted for r in sequence.rounds) == sum(r.tested for r in sequence.rounds), "it cannot be wrong"
        if rule == "coupled":
            assert sequence.tokens == plain(settings, seed=i, prompt=prompts[i]).tokens


def test_states_of_another_position_are_noticed() -> None:
    sequence = make_sequence(WARM, seed=1)
    play(speculator({"states": FromStates(rolled=1)}, 3, target=target_model(state_width=3)), sequence)
    assert sequence.tokens == plain(WARM, seed=1).tokens
    accepted, tested = (sum(getattr(r, name) for r in sequence.rounds) for name in ("accepted", "tested"))
    assert accepted < tested / 2


def test_a_target_without_states_gives_the_drafter_up_with_that_reason() -> None:
    sequence = make_sequence(GREEDY)
    engine = speculator({"states": FromStates()}, 3)
    play(engine, sequence)
    assert engine.off == {"states": "the target gives no hidden states"}
    assert sequence.tokens == plain(GREEDY).tokens


@pytest.mark.parametrize("settings", [GREEDY, WARM])
def test_a_drafter_from_ids(settings: dict[str, float]) -> None:
    drafter = FromIds()
    sequences = [make_sequence(settings, slot=i, seed=i, prompt=[3, 1, 4, i]) for i in range(3)]
    engine = speculator({"ids": drafter}, 4)
    play(engine, *sequences)
    for i, sequence in enumerate(sequences):
        assert sequence.tokens == plain(settings, seed=i, prompt=[3, 1, 4, i]).tokens
        assert sum(r.accepted for r in sequence.rounds) > 0
        told = sorted((start, stop) for slot, start, stop in drafter.told if slot == i)
        assert [at for start, stop in told for at in range(start, stop)] == list(range(len(sequence.tokens) - 1)), (
            "every token that stays is told once, and none that does not"
        )


def test_what_is_told_stays_after_a_pass_that_failed() -> None:
    drafter = FromIds()
    target = target_model()
    engine, sequence = speculator({"ids": drafter}, 4, target=target), make_sequence(GREEDY)
    read(engine, sequence)
    go_on(engine, sequence, rounds=3)
    told = len(drafter.told)
    target.fail_at(len(target.calls), error=BackendError)
    with pytest.raises(BackendError):
        engine.step([sequence])
    assert len(drafter.told) == told
    go_on(engine, sequence)
    assert sequence.tokens == plain(GREEDY).tokens
