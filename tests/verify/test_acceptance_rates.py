"""Closed forms against the rules themselves, played on rows that do not depend on what precedes."""

from __future__ import annotations

import numpy as np
import pytest
from tabulating.acceptance_rates import Pair, Step, kept, rates

from spec_local.sampling import RULES, Noise, Row

LENGTH = 3


def rows(seed: int, distance: float) -> list[Row]:
    chance, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    made = []
    for _ in range(LENGTH + 1):
        logits = chance.normal(size=9) + distance * other.normal(size=9)
        keep = np.arange(9) != (4 if distance else 6)  # the two models keep different tokens
        probs = np.exp(logits[keep])
        made.append(Row(np.flatnonzero(keep).astype(np.int32), probs / probs.sum()))
    return made


def texts(p: list[Row], q: list[Row], count: int) -> list[list[Step]]:
    """What the rules need to know of texts drawn from the target's rows."""
    chance = np.random.default_rng(0)
    drawn = [chance.choice(row.ids, count, p=row.probs).tolist() for row in p[:LENGTH]]
    pairs = [Pair(a, b) for a, b in zip(p, q, strict=True)]
    known = [{token: pair.step(token) for token in set(tokens)} for pair, tokens in zip(pairs, drawn, strict=False)]
    return [[steps[token] for steps, token in zip(known, text, strict=True)] for text in zip(*drawn, strict=True)]


@pytest.mark.parametrize("name", RULES)
def test_expected_tokens_per_pass_are_those_of_the_rule(name: str) -> None:
    p, q = rows(3, 0.0), rows(3, 0.8)
    rule, rounds = RULES[name], 2_500
    emitted = 0
    for seed in range(rounds):
        noise = Noise(seed).for_round(0)
        drafted = [rule.draft_token(row, noise, i) for i, row in enumerate(q[:LENGTH])]
        emitted += len(rule.verify(drafted, q[:LENGTH], p.__getitem__, noise, 0).tokens)
    expected = rates(name, texts(p, q, rounds), LENGTH).tokens_per_pass
    assert emitted / rounds == pytest.approx(expected, abs=0.09)  # about 4 standard errors


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    p = rows(5, 0.0)
    steps = [Pair(row, row).step(int(row.ids[2])) for row in p]
    for name in RULES:
        assert kept(name, steps) == pytest.approx([1.0] * len(steps))


def test_block_is_never_worse_than_rejection_on_average_and_the_first_token_is_the_overlap() -> None:
    p, q = rows(9, 0.0), rows(9, 1.0)
    steps = texts(p, q, 3_000)
    one, all_at_once = rates("rejection", steps, LENGTH), rates("block", steps, LENGTH)
    assert all_at_once.tokens_per_pass >= one.tokens_per_pass - 0.01
    assert one.first == pytest.approx(steps[0][0].overlap, abs=0.03)


def test_a_token_the_draft_cannot_give_is_never_kept() -> None:
    p, q = rows(2, 0.0), rows(2, 0.8)
    missing = Pair(p[0], q[0]).step(4) if p[0].prob(4) else Pair(q[0], p[0]).step(4)
    for name in RULES:
        assert kept(name, [missing, missing]) == [0.0, 0.0]


def test_greedy_rows_make_all_rules_equal() -> None:
    sure, other = Row(np.array([7], np.int32), np.ones(1)), Row(np.array([2], np.int32), np.ones(1))
    steps = [Pair(sure, sure).step(7), Pair(sure, sure).step(7), Pair(sure, other).step(7), Pair(sure, sure).step(7)]
    for name in (*RULES, "arg-max"):
        assert kept(name, steps) == [1.0, 1.0, 0.0, 0.0]
