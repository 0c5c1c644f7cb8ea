"""What the production code really emits, with real noise and real transforms, follows the target's law.

Power of a χ² test with N samples against a law at total variation d: for 26 degrees of freedom and α = 1e-3, N = 6 900
sees d = 0.05 with probability above 0.99. `power` computes it for each test. Seeds are fixed: nothing here is flaky.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from spec_local.sampling import RULES, AcceptanceRule, Noise, Row, Ruling, Sampling, Transform

ALPHA = 1e-3
by_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def power(count: int, cells: int, total_variation: float) -> float:
    """Least power against any law at that distance: Σ(p-q)²/q ≥ 4·TV², as by Cauchy-Schwarz."""
    critical = stats.chi2.ppf(1 - ALPHA, cells - 1)
    return float(stats.ncx2.sf(critical, cells - 1, count * 4 * total_variation**2))


def goodness(counts: Counter, law: dict) -> tuple[float, float]:
    """Total variation from the law, and the p-value of the χ² test."""
    total = sum(counts.values())
    observed = np.array([counts[key] for key in law])
    expected = np.array([law[key] for key in law]) * total
    assert observed.sum() == total, "something outside the law was emitted"
    return np.abs(observed - expected).sum() / 2 / total, stats.chisquare(observed, expected).pvalue


# --- one token: five-token vocabulary, known p and q ----------------------------------------------------------------

DRAWS = 20_000
P = np.array([0.42, 0.25, 0.18, 0.1, 0.05])
Q = np.array([0.1, 0.3, 0.05, 0.35, 0.2])
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


NOISE = Noise(2024)


def one_round(rule: AcceptanceRule, p: Row, q: Row, start: int, count: int = 1) -> Ruling:
    """A round of its own at position `start`."""
    noise = NOISE.for_round(start)
    tokens = [rule.draft_token(q, noise, start + i) for i in range(count)]
    return rule.verify(tokens, [q] * count, lambda i: p, noise, start)


@by_rule
@pytest.mark.parametrize("fields", [OFF, OFF | {"top_k": 2, "temperature": 0.7}], ids=["whole", "top-k 2, T 0.7"])
def test_next_token_follows_the_target(rule: AcceptanceRule, fields: dict) -> None:
    transform = Transform(Sampling(**fields), 5, frozenset(), 0)
    p, q = (transform.row(np.log(probs).astype(np.float32), [], 8) for probs in (P, Q))
    if fields["top_k"]:
        shape = P[:2] ** (1 / 0.7)
        np.testing.assert_allclose(p.probs, shape / shape.sum(), rtol=1e-6)
    counts = Counter(one_round(rule, p, q, start).tokens[0] for start in range(DRAWS))
    law = dict(zip(p.ids.tolist(), p.probs.tolist(), strict=True))
    assert power(DRAWS, 5, 0.02) > 0.95
    distance, p_value = goodness(counts, law)
    assert distance < 0.02
    assert p_value > ALPHA


@by_rule
def test_a_draft_that_is_the_target_is_accepted_whole(rule: AcceptanceRule) -> None:
    """Independent draws would agree with probability Σp² only; every rule here must agree always."""
    rng = np.random.default_rng(1)
    transform = Transform(Sampling(temperature=1.0), 300, frozenset(), 0)
    for start in range(0, 3_000, 10):
        row = transform.row(rng.normal(scale=2, size=300).astype(np.float32), [], 8)
        ruling = one_round(rule, row, row, start, count=5)
        assert (ruling.accepted, len(ruling.tokens)) == (5, 6)


@pytest.mark.parametrize(("name", "expected"), [("coupled", 10 / 9), ("rejection", 10 / 9), ("block", 11 / 9)])
def test_accepted_tokens_of_the_textbook_case(name: str, expected: float) -> None:
    p, q = (Row(np.arange(2, dtype=np.int32), np.array([a, 1 - a])) for a in (1 / 3, 2 / 3))
    accepted = np.array([one_round(RULES[name], p, q, start, 2).accepted for start in range(0, 15_000, 3)])
    assert abs(accepted.mean() - expected) < 4 * accepted.std() / np.sqrt(len(accepted))


# --- whole texts: rows depend on history, several rounds share one seed ---------------------------------------------

LENGTH = 3
TEXTS = 6_900
SHAPE = {
    "target": np.array([[5.0, 2, 5], [9, 2, 1], [5, 1, 1]]),
    "draft": np.array([[1.0, 1, 9], [2, 1, 9], [5, 2, 1]]),
}


def model() -> Transform:
    return Transform(Sampling(**OFF, repeat_penalty=1.4, presence_penalty=0.3, penalty_last_n=2), 3, frozenset(), 0)


TRANSFORM = model()
ROWS: dict[tuple[str, tuple[int, ...]], Row] = {}


def row_of(name: str, history: tuple[int, ...]) -> Row:
    """The row after `history`, penalties included."""
    key = name, history
    if key not in ROWS:
        logits = np.log(SHAPE[name][history[-1] if history else 0]).astype(np.float32)
        ROWS[key] = TRANSFORM.row(logits, history, len(history))
    return ROWS[key]


def text_law() -> dict[tuple[int, ...], float]:
    law = {}
    for text in itertools.product(range(3), repeat=LENGTH):
        law[text] = float(np.prod([row_of("target", text[:i]).prob(text[i]) for i in range(LENGTH)]))
    return law


def text(rule: AcceptanceRule, seed: int, limit: int, keep_round: bool = True) -> tuple[int, ...]:
    history: tuple[int, ...] = ()
    whole = Noise(seed)
    while len(history) < LENGTH:
        start = len(history)
        # A caller that binds the noise once and for all instead of to each round: the fault to be seen.
        noise = whole.for_round(start) if keep_round else Forgetful(seed, start)
        tokens: list[int] = []
        rows: list[Row] = []
        while len(tokens) < min(limit, LENGTH - start - 1):
            rows.append(row_of("draft", (*history, *tokens)))
            tokens.append(rule.draft_token(rows[-1], noise, start + len(tokens)))

        def target_row(i: int, prefix: tuple[int, ...] = history, tokens: list[int] = tokens) -> Row:
            return row_of("target", (*prefix, *tokens[:i]))

        history += rule.verify(tokens, rows, target_row, noise, start).tokens
    return history


class Forgetful(Noise):
    """Noise that claims to be bound to a round and is not."""

    __slots__ = ("claimed",)

    def __init__(self, seed: int, claimed: int) -> None:
        super().__init__(seed)
        self.claimed = claimed

    @property
    def start(self) -> int | None:
        return self.claimed


@by_rule
def test_texts_of_several_rounds_follow_the_target(rule: AcceptanceRule) -> None:
    assert power(TEXTS, 27, 0.05) > 0.99
    distance, p_value = goodness(Counter(text(rule, seed, 2) for seed in range(TEXTS)), text_law())
    assert distance < 0.05
    assert p_value > ALPHA


def test_noise_that_forgets_its_round_is_seen() -> None:
    counts = Counter(text(RULES["block"], seed, 2, keep_round=False) for seed in range(2_500))
    assert goodness(counts, text_law())[1] < 1e-6


def test_coupled_texts_are_the_same_with_any_draft() -> None:
    coupled = RULES["coupled"]
    for seed in range(200):
        assert text(coupled, seed, 0) == text(coupled, seed, 1) == text(coupled, seed, 2)
