"""The statistical tests on made rows: they pass for the rules as they are, and see each fault, by its kind."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from spec_local.sampling import RULES, AcceptanceRule, Purpose, Row, acceptance
from spec_local.verify import distribution as module
from spec_local.verify.distribution import LEVEL, Stages, Stream, cut, integral_transform, resample, total_variation
from spec_local.verify.findings import Kind
from spec_local.verify.reference import accepted_law, added_law


def rows(seed: int, count: int, tokens: int = 12, distance: float = 1.0) -> tuple[list[Row], list[Row]]:
    """Target and draft rows of made-up models that agree more or less; draft rows hold other tokens too."""
    chance = np.random.default_rng(seed)
    target, draft = [], []
    for _ in range(count):
        logits = chance.normal(size=tokens) * 1.5
        near = logits + distance * chance.normal(size=tokens)
        pairs = []
        for values, keep in ((logits, np.arange(tokens) != 3), (near, np.arange(tokens) != 5)):
            ids = np.flatnonzero(keep).astype(np.int32)
            probs = np.exp(values[keep])
            pairs.append(Row(ids, probs / probs.sum()))
        target.append(pairs[0])
        draft.append(pairs[1])
    return target, draft


def judged(rule: AcceptanceRule, tokens: int = 3_000, chains: int = 2) -> set[Kind]:
    """Kinds of fault that the resampled tests find in a rule."""
    made = [rows(seed, 24) for seed in range(chains)]
    chance = np.random.default_rng(1)
    stream = Stream("rule", chance)
    stages = None if rule.reproducible else Stages(rule.name, chance)
    resample(rule, made, tokens, stream, stages, lambda: None)
    level = LEVEL / 9
    tests = stream.tests(level) + (stages.tests(level) if stages is not None else [])
    return {problem.kind for problem in module._problems(tests, level, stream, stream, stages)}


@pytest.mark.parametrize("name", RULES)
def test_the_rules_pass(name: str) -> None:
    assert judged(RULES[name]) == set()


def test_a_residual_without_the_draft_subtracted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, q, weight: (p.ids, p.probs))
    for name in ("rejection", "block"):
        found = judged(RULES[name])
        assert min(found) is Kind.RESIDUAL
        assert Kind.DISTRIBUTION in found


def test_a_block_residual_without_its_weight_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = acceptance.residual
    monkeypatch.setattr(acceptance, "residual", lambda p, q, weight: right(p, q, 1.0))
    assert min(judged(RULES["block"])) in (Kind.ACCEPTANCE, Kind.RESIDUAL)


def test_a_wrong_acceptance_probability_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "acceptance_probability", lambda p, q: min(1.0, 1.15 * p / q))
    assert Kind.ACCEPTANCE in judged(RULES["rejection"])


def test_an_arg_max_draft_tested_with_its_full_row_is_named() -> None:
    class Greedy:
        name, tolerates_truncation, reproducible = "rejection", False, False
        verify = staticmethod(RULES["rejection"].verify)

        def draft_token(self, row: Row, noise: object, position: int) -> int:
            return int(row.ids[np.argmax(row.probs)])

    assert min(judged(Greedy())) is Kind.DRAFT


def test_shared_noise_in_a_ratio_test_biases_what_is_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The structural check sees this in one round; here the statistics alone must see it."""

    class Shared:
        name, tolerates_truncation, reproducible = "rejection", False, False
        verify = staticmethod(RULES["rejection"].verify)

        def draft_token(self, row: Row, noise: object, position: int) -> int:
            return noise.choose(Purpose.RESIDUAL, position, row.ids, row.probs)  # type: ignore[attr-defined,no-any-return]

    assert judged(Shared(), 6_000) & {Kind.RESIDUAL, Kind.DISTRIBUTION}


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_stage_laws_add_up_to_the_target(rule: str) -> None:
    """Σ over drafts, accepted counts and added tokens of their laws gives p for the first token: by enumeration."""
    (p, q) = rows(3, 3, tokens=7)
    emitted = np.zeros(7)
    ids = [int(x) for x in q[0].ids]
    for draft in product(ids, repeat=2):
        weight = q[0].prob(draft[0]) * q[1].prob(draft[1])
        accepted = accepted_law(rule, draft, q[:2], p)
        assert accepted.probs.sum() == pytest.approx(1.0)
        for count in range(3):
            if accepted.probs[count] <= 0:
                continue
            if count:
                emitted[draft[0]] += weight * accepted.probs[count]
            else:
                law = added_law(rule, draft, q[:2], p, 0)
                emitted[law.ids] += weight * accepted.probs[0] * law.probs
    expected = np.zeros(7)
    expected[p[0].ids] = p[0].probs
    assert emitted == pytest.approx(expected)


def test_a_transform_is_uniform_whatever_the_order() -> None:
    chance = np.random.default_rng(4)
    probs = np.array([0.5, 0.25, 0.15, 0.1])
    for order in (np.arange(4.0), np.array([2.0, 2.0, 1.0, 5.0])):
        drawn = chance.choice(4, size=20_000, p=probs)
        values = [
            integral_transform(probs, order, int(at), float(u))
            for at, u in zip(drawn, chance.random(20_000), strict=True)
        ]
        assert abs(np.mean(values) - 0.5) < 0.01
        assert abs(np.var(values) - 1 / 12) < 0.004


def test_an_impossible_token_is_a_fault_whatever_the_statistics_say() -> None:
    (p, _) = rows(5, 1)
    stream = Stream("live", np.random.default_rng(0))
    stream.add(3, p[0], None)  # target rows do not hold token 3
    assert stream.impossible == 1
    assert [x.kind for x in module._problems([], 1e-4, stream, Stream("", np.random.default_rng(0)), None)] == [
        Kind.DISTRIBUTION
    ]


def test_cut_keeps_the_likeliest_in_order() -> None:
    chance = np.random.default_rng(6)
    probs = chance.random(500)
    row = Row(np.arange(500, dtype=np.int32) * 2, probs / probs.sum())
    short = cut(row)
    assert len(short.ids) == module.LIKELIEST
    assert list(short.ids) == sorted(short.ids)
    assert short.probs.sum() == pytest.approx(1.0)
    assert {int(i) // 2 for i in short.ids} == set(np.argsort(-probs)[: module.LIKELIEST].tolist())


def test_total_variation_of_rows_with_other_tokens() -> None:
    p = Row(np.array([1, 2], np.int32), np.array([0.5, 0.5]))
    q = Row(np.array([2, 3], np.int32), np.array([0.5, 0.5]))
    assert total_variation(p, q) == pytest.approx(0.5)
    assert total_variation(p, p) == 0.0
