"""The acceptance rules without floats: the production code runs on rationals, over every outcome of chance.

`enumerate_law` replays a program once per path through its random decisions and adds up exact path probabilities. A
rule is right iff the law of everything it emits equals the target's: total variation exactly 0. Every known way of
getting a rule wrong is put into the same machine and must be caught by it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction as F
from functools import cache
from typing import Any

import numpy as np
import pytest
from exact_chance import ExactChance, ExactRow, Tape, enumerate_law, exact_row, race, total_variation

from spec_local.sampling import RULES, AcceptanceRule, Block, Noise, Purpose, Row, Ruling, acceptance

# --- a toy world ----------------------------------------------------------------------------------------------------

END = 3
LENGTH = 3
TARGET = {0: (4, 3, 2, 1), 1: (1, 0, 5, 2), 2: (3, 2, 0, 1), END: (1, 1, 1, 1)}
DRAFT = {0: (0, 1, 5, 4), 1: (3, 2, 1, 0), 2: (1, 1, 4, 1), END: (1, 2, 3, 4)}


@cache
def target(history: tuple[int, ...]) -> ExactRow:
    """A row that depends on the last token and, like a repetition penalty, on everything before it."""
    counts = Counter(history)
    return exact_row({x: F(w, 1 + counts[x]) for x, w in enumerate(TARGET[history[-1] if history else 0])})


@cache
def draft(history: tuple[int, ...]) -> ExactRow:
    return exact_row({x: F(w) for x, w in enumerate(DRAFT[history[-1] if history else 0])})


def until_end(tokens: Sequence[int]) -> tuple[int, ...]:
    """The text: up to LENGTH tokens, up to the first end token."""
    text = tuple(tokens[:LENGTH])
    return text[: text.index(END) + 1] if END in text else text


def plain_law() -> Mapping[tuple[int, ...], F]:
    law: Mapping[tuple[int, ...], F] = {(): F(1)}
    for _ in range(LENGTH):
        longer: defaultdict[tuple[int, ...], F] = defaultdict(F)
        for text, probability in law.items():
            if END in text:
                longer[text] += probability
                continue
            row = target(text)
            for token, step in zip(row.ids, row.probs, strict=True):
                longer[*text, int(token)] += probability * step
        law = longer
    return law


@dataclass(frozen=True)
class Draftsman:
    """How much is drafted and how the tokens come about."""

    limit: int = 2
    stop_below: F = F(0)
    """Non-anticipating stop: no further token after one whose row had no probability this large."""
    discard_below: F = F(0)
    """Anticipating (wrong in ratio rules): a token drawn with less probability than this is dropped; drafting ends."""
    all_or_nothing: bool = False
    """Anticipating: a draft that came out shorter than `limit` is dropped."""
    one_hot: bool = False
    """Take the arg-max instead of drawing, and say so (rows None)."""
    dishonest: bool = False
    """Take the arg-max instead of drawing, and claim that it was drawn."""

    def draft(
        self, rule: AcceptanceRule, history: tuple[int, ...], chance: ExactChance, room: int
    ) -> tuple[list[int], list[Row] | None]:
        tokens: list[int] = []
        rows: list[Row] = []
        while len(tokens) < min(self.limit, room):
            row = draft((*history, *tokens))
            if self.one_hot or self.dishonest:
                token = int(row.ids[np.argmax(row.probs)])
            else:
                token = rule.draft_token(row, chance, len(history) + len(tokens))
            if row.prob(token) < self.discard_below:
                break
            tokens.append(token)
            rows.append(row)
            if max(row.probs) < self.stop_below:
                break
        if self.all_or_nothing and len(tokens) < min(self.limit, room):
            return [], []
        return tokens, None if self.one_hot else rows


def speculate(rule: AcceptanceRule, draftsman: Draftsman, chance: ExactChance, rounds: int = LENGTH) -> tuple[int, ...]:
    """Generate one text; after `rounds` rounds with drafts, plain decoding."""
    history: tuple[int, ...] = ()
    while until_end(history) == history and len(history) < LENGTH:
        noise = chance.for_round(len(history))
        room = LENGTH - len(history) - 1 if rounds else 0
        tokens, rows = draftsman.draft(rule, history, noise, room)
        prefix = history

        def target_row(i: int, prefix: tuple[int, ...] = prefix, tokens: list[int] = tokens) -> Row:
            return target((*prefix, *tokens[:i]))

        ruling = rule.verify(tokens, rows, target_row, noise, len(history))
        assert ruling.tokens[: ruling.accepted] == tuple(tokens[: ruling.accepted])
        assert len(ruling.tokens) == ruling.accepted + 1
        assert ruling.accepted <= len(tokens)
        history += ruling.tokens
        rounds -= 1 if rounds else 0
    return until_end(history)


def distance(
    rule: AcceptanceRule,
    draftsman: Draftsman,
    rounds: int = LENGTH,
    merged: frozenset[Purpose] = frozenset(),
    per_round: bool = True,
) -> F:
    law = enumerate_law(lambda tape: speculate(rule, draftsman, ExactChance(tape, merged, per_round), rounds))
    return total_variation(law, plain_law())


RATIO = [RULES["rejection"], RULES["block"]]
by_name = pytest.mark.parametrize("rule", RATIO, ids=lambda rule: rule.name)

# --- the machine itself ---------------------------------------------------------------------------------------------


def test_race_is_a_joint_law_with_the_right_margins() -> None:
    q = {0: F(1, 6), 1: F(1, 2), 2: F(1, 3)}
    p = {1: F(1, 5), 2: F(1, 5), 3: F(3, 5)}
    joint = {(x, y): race(tuple(q.items()), x, tuple(p.items()), y) for x in q for y in p}
    assert {x: sum(joint[x, y] for y in p) for x in q} == q
    assert {y: sum(joint[x, y] for x in q) for y in p} == p


def test_race_on_equal_rows_always_agrees() -> None:
    q = ((0, F(1, 4)), (1, F(3, 4)))
    assert race(q, 0, q, 1) == race(q, 1, q, 0) == 0


# --- right rules ----------------------------------------------------------------------------------------------------

DRAFTSMEN = {
    "none": Draftsman(limit=0),
    "one": Draftsman(limit=1),
    "two": Draftsman(limit=2),
    "stops early": Draftsman(limit=2, stop_below=F(3, 5)),
    "one-hot": Draftsman(limit=2, one_hot=True),
}


@by_name
@pytest.mark.parametrize("draftsman", DRAFTSMEN.values(), ids=DRAFTSMEN.keys())
def test_ratio_rules_emit_the_target_law(rule: AcceptanceRule, draftsman: Draftsman) -> None:
    assert distance(rule, draftsman) == 0


@pytest.mark.parametrize("draftsman", DRAFTSMEN.values(), ids=DRAFTSMEN.keys())
def test_coupled_rule_emits_the_target_law(draftsman: Draftsman) -> None:
    assert distance(RULES["coupled"], draftsman, rounds=1) == 0


def test_coupled_rule_tolerates_every_truncation() -> None:
    for draftsman in (Draftsman(discard_below=F(2, 5)), Draftsman(discard_below=F(2, 5), all_or_nothing=True)):
        assert RULES["coupled"].tolerates_truncation
        assert distance(RULES["coupled"], draftsman, rounds=1) == 0


@by_name
def test_one_hot_drafts_may_be_truncated_under_every_rule(rule: AcceptanceRule) -> None:
    assert distance(rule, Draftsman(one_hot=True, discard_below=F(3, 5), all_or_nothing=True)) == 0


def expected_accepted(rule: AcceptanceRule, p: ExactRow, q: ExactRow, count: int) -> F:
    def program(tape: Tape) -> int:
        chance = ExactChance(tape).for_round(0)
        tokens = [rule.draft_token(q, chance, i) for i in range(count)]
        return rule.verify(tokens, [q] * count, lambda i: p, chance, 0).accepted

    return sum((accepted * probability for accepted, probability in enumerate_law(program).items()), F(0))


def test_expected_accepted_tokens_of_the_textbook_case() -> None:
    p, q = exact_row({0: F(1), 1: F(2)}), exact_row({0: F(2), 1: F(1)})
    assert expected_accepted(RULES["rejection"], p, q, 2) == F(10, 9)
    assert expected_accepted(RULES["block"], p, q, 2) == F(11, 9)
    assert expected_accepted(RULES["coupled"], p, q, 2) == F(2, 3) + F(4, 9)


def test_one_token_acceptance_has_its_theoretical_rate() -> None:
    p, q = exact_row({0: F(5), 1: F(1), 3: F(2)}), exact_row({0: F(2), 1: F(3), 2: F(1)})
    kept = sum(min(p.prob(x), q.prob(x)) for x in range(4))
    match = sum(1 / sum(max(p.prob(z) / p.prob(x), q.prob(z) / q.prob(x)) for z in range(4)) for x in (0, 1))
    assert expected_accepted(RULES["rejection"], p, q, 1) == expected_accepted(RULES["block"], p, q, 1) == kept
    assert expected_accepted(RULES["coupled"], p, q, 1) == match
    assert kept / (2 - kept) <= match <= kept  # between (1-TV)/(1+TV) and 1-TV


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_draft_equal_to_the_target_is_always_accepted(rule: AcceptanceRule) -> None:
    p = exact_row({0: F(5), 1: F(1), 3: F(2)})
    assert expected_accepted(rule, p, p, 3) == 3


# --- wrong rules: each must be caught -------------------------------------------------------------------------------


@by_name
def test_arg_max_draft_tested_with_its_full_row_is_caught(rule: AcceptanceRule) -> None:
    assert distance(rule, Draftsman(dishonest=True)) > F(1, 50)


@by_name
def test_discarding_improbable_drafted_tokens_is_caught(rule: AcceptanceRule) -> None:
    assert not rule.tolerates_truncation
    assert distance(rule, Draftsman(discard_below=F(2, 5))) > F(1, 50)
    assert distance(rule, Draftsman(discard_below=F(2, 5), all_or_nothing=True)) > F(1, 50)


@by_name
def test_residual_without_the_draft_subtracted_is_caught(rule: AcceptanceRule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, q, weight: (p.ids, weight * p.probs))
    assert distance(rule, Draftsman()) > F(1, 50)


@by_name
def test_residual_by_array_index_is_caught(rule: AcceptanceRule, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_index(p: Row, q: Row, weight: float) -> tuple[np.ndarray, np.ndarray]:
        left = weight * p.probs - np.array([*q.probs, *[F(0)] * len(p.probs)], object)[: len(p.probs)]
        return p.ids[left > 0], left[left > 0]

    monkeypatch.setattr(acceptance, "residual", by_index)
    assert distance(rule, Draftsman()) > F(1, 50)


@by_name
def test_shared_noise_in_a_ratio_test_is_caught(rule: AcceptanceRule) -> None:
    merged = frozenset({Purpose.DRAFT, Purpose.RESIDUAL})
    assert distance(rule, Draftsman(limit=1), rounds=1, merged=merged) > F(1, 100)


def test_block_residual_without_its_weight_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = acceptance.residual
    monkeypatch.setattr(acceptance, "residual", lambda p, q, weight: right(p, q, 1))
    assert distance(RULES["block"], Draftsman()) > F(1, 1000)
    monkeypatch.setattr(acceptance, "residual", right)
    draw = acceptance._draw_residual  # the weight in h only, not in the draw
    monkeypatch.setattr(
        acceptance, "_draw_residual", lambda p, q, weight, noise, position: draw(p, q, 1, noise, position)
    )
    assert distance(RULES["block"], Draftsman()) > F(1, 1000)


class ResidualAtTheEnd(Block):
    """h_γ by the formula of i < γ, with the row q_{γ+1} = q_γ that a draft model could still compute."""

    def verify(self, tokens, rows, target_row, noise, position) -> Ruling:
        targets = [target_row(i) for i in range(len(tokens) + 1)]
        weights: list[Any] = [F(1)]
        for token, p, q in zip(tokens, targets, rows, strict=False):
            weights.append(acceptance.block_weight(weights[-1], p.prob(token), q.prob(token)))
        ahead = [*rows, rows[-1]]
        for kept in range(len(tokens), -1, -1):
            mass = acceptance.residual(targets[kept], ahead[kept], weights[kept])[1].sum()
            chance = acceptance.block_acceptance(weights[kept], mass)
            if kept == 0 or noise.happens(Purpose.ACCEPT, position + kept - 1, chance):
                break
        if kept == len(tokens):
            added = acceptance._draw(targets[kept], Purpose.RESIDUAL, noise, position + kept)
        else:
            added = acceptance._draw_residual(targets[kept], rows[kept], weights[kept], noise, position + kept)
        return Ruling((*tokens[:kept], added), kept)


@pytest.mark.parametrize(("rule", "right"), [(RULES["block"], True), (ResidualAtTheEnd(), False)])
def test_residual_formula_for_the_last_token_is_caught(rule: AcceptanceRule, right: bool) -> None:
    p, q = exact_row({0: F(1), 1: F(2), 2: F(1)}), exact_row({0: F(2), 1: F(1), 2: F(1)})

    def program(tape: Tape) -> tuple[int, ...]:
        chance = ExactChance(tape).for_round(0)
        drafted = [rule.draft_token(q, chance, i) for i in range(2)]
        text = list(rule.verify(drafted, [q, q], lambda i: p, chance, 0).tokens)
        while len(text) < 3:
            text.append(tape.decide((int(x), w) for x, w in zip(p.ids, p.probs, strict=True)))
        return tuple(text)

    wanted = {(x, y, z): p.prob(x) * p.prob(y) * p.prob(z) for x in range(3) for y in range(3) for z in range(3)}
    assert (total_variation(enumerate_law(program), wanted) == 0) == right


def test_block_rule_with_noise_that_forgets_the_round_is_caught() -> None:
    """Positions behind a rejection are drafted and tested again: with the same numbers, that is biased."""
    assert distance(RULES["block"], Draftsman()) == 0
    assert distance(RULES["block"], Draftsman(), per_round=False) > F(1, 1000)


# --- preconditions --------------------------------------------------------------------------------------------------


@by_name
def test_ratio_rules_insist_on_the_noise_of_their_round(rule: AcceptanceRule) -> None:
    row = target(())
    with pytest.raises(AssertionError, match="for_round"):
        rule.verify([0], [row], lambda i: row, Noise(1), 5)
    with pytest.raises(AssertionError, match="for_round"):
        rule.verify([0], [row], lambda i: row, Noise(1).for_round(4), 5)
    with pytest.raises(AssertionError, match="not in its draft row"):
        rule.verify([7], [row], lambda i: row, Noise(1).for_round(5), 5)
    with pytest.raises(AssertionError, match="2 drafted tokens came with 1 rows"):
        rule.verify([0, 0], [row], lambda i: row, Noise(1).for_round(5), 5)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_target_rows_are_asked_for_in_order_once_and_only_where_needed(rule: AcceptanceRule) -> None:
    asked: list[int] = []

    def target_row(i: int) -> Row:
        asked.append(i)
        return float_row({1: 1.0})

    drafted = float_row({0: 1.0})
    noise = Noise(3).for_round(9)
    assert rule.verify([0, 0, 0], [drafted] * 3, target_row, noise, 9).tokens == (1,)
    assert asked == [0]
    asked.clear()
    sure = float_row({1: 1.0})
    assert rule.verify([1, 1], [sure] * 2, target_row, noise, 9) == Ruling((1, 1, 1), 2)
    assert asked == [0, 1, 2]
    asked.clear()
    assert rule.verify([], [], target_row, noise, 9) == Ruling((1,), 0)
    assert asked == [0]


def float_row(probs: dict[int, float]) -> Row:
    return Row(np.array(list(probs), np.int32), np.array(list(probs.values())))
