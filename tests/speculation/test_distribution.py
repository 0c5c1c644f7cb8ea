"""The ratio rules through the whole round: the emitted text follows the target's law, and broken engines are caught.

Each answer is three tokens over a vocabulary of three, so the law of all 27 texts is enumerated and compared with a
chi-square test. Draft and target differ a lot, and a penalty makes every row depend on the drafted prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from scipy import stats
from toy_drafters import FunctionDrafter
from toy_model import Table, ToyModel
from toy_runs import read

from spec_local.drafting.draft import Draft
from spec_local.drafting.drafter import Drafter
from spec_local.drafting.model import ModelDrafter
from spec_local.sampling import RULES, Noise, Sampling, Transform, acceptance
from spec_local.sampling.acceptance import AcceptanceRule
from spec_local.speculation.controller import FixedController, Plan
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator

VOCABULARY, COUNT, SLOTS, ANSWERS = 3, 3, 50, 2000
ALPHA = 1e-3 / 3
"""Chance of a false alarm in one test; three laws are tested."""
FEW = 600
"""Answers that suffice to catch a broken engine."""
PROMPT = [0, 2]
TARGET = Table(VOCABULARY, seed=5, order=1, scale=0.35)
DRAFT = Table(VOCABULARY, seed=8, order=1, scale=1.2)
SAMPLING = Sampling(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0, frequency_penalty=0.3, penalty_last_n=-1)


def _transform() -> Transform:
    return Transform(SAMPLING, VOCABULARY, frozenset(), len(PROMPT))


def _law() -> dict[tuple[int, ...], float]:
    transform, law = _transform(), {}
    for text in product(range(VOCABULARY), repeat=COUNT):
        chance = 1.0
        for i, token in enumerate(text):
            history = [*PROMPT, *text[:i]]
            chance *= transform.row(TARGET(history), history, len(history)).prob(token)
        law[text] = chance
    return law


LAW = _law()


class Curious(FixedController):
    """Would drop a drafted token, and all behind it, that its draft row found unlikely."""

    def shorten(self, plan: Plan, draft: Draft) -> int:
        if draft.rows is None:
            return len(draft)
        likely = [row.prob(token) > 0.45 for row, token in zip(draft.rows, draft.tokens, strict=True)]
        return likely.index(False) if False in likely else len(draft)


def _texts(rule: AcceptanceRule, drafters: Mapping[str, Drafter], answers: int = ANSWERS) -> Counter[tuple[int, ...]]:
    texts: Counter[tuple[int, ...]] = Counter()
    target = ToyModel(TARGET, VOCABULARY, slots=SLOTS, n_batch=4096)
    engine = Speculator(target, drafters, Curious(tuple(drafters), 3), max_rows=4 * SLOTS)
    for start in range(0, answers, SLOTS):
        sequences = [
            Sequence(
                slot=slot,
                tokens=list(PROMPT),
                transform=_transform(),
                draft_transform=_transform(),
                noise=Noise(start + slot),
                rule=rule,
                n_ctx=64,
                max_tokens=COUNT,
            )
            for slot in range(SLOTS)
        ]
        for sequence in sequences:
            read(engine, sequence)
        while any(sequence.finish is None for sequence in sequences):
            engine.step(sequences)
        texts.update(tuple(sequence.emitted) for sequence in sequences)
    return texts


def _p_value(texts: Counter[tuple[int, ...]]) -> float:
    expected = [texts.total() * chance for chance in LAW.values()]
    return float(stats.chisquare([texts[text] for text in LAW], expected).pvalue)


def _model() -> dict[str, Drafter]:
    return {"model": ModelDrafter(ToyModel(DRAFT, VOCABULARY, slots=SLOTS, n_batch=4096))}


def _one_hot() -> dict[str, Drafter]:
    return {"text": FunctionDrafter(lambda tokens, limit: [(len(tokens) * 7 + i) % VOCABULARY for i in range(limit)])}


@pytest.mark.parametrize(("rule", "drafters"), [("rejection", _model), ("block", _model), ("rejection", _one_hot)])
def test_texts_follow_the_target(rule: str, drafters: Callable[[], dict[str, Drafter]]) -> None:
    assert min(LAW.values()) * ANSWERS > 5  # chi-square is fair
    assert _p_value(_texts(RULES[rule], drafters())) > ALPHA


def test_dropping_a_drafted_token_after_a_look_is_caught() -> None:
    """The same controller, let loose on a rule that does not tolerate it: the round is what holds it back."""
    loose: Any = replace(RULES["rejection"], tolerates_truncation=True)  # type: ignore[type-var]
    assert _p_value(_texts(loose, _model(), FEW)) < ALPHA


def test_a_residual_that_forgets_the_draft_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, _q, _weight: (p.ids, p.probs))
    assert _p_value(_texts(RULES["rejection"], _model(), FEW)) < ALPHA


def test_draft_rows_of_another_transform_are_caught() -> None:
    """Tokens drawn greedily, tested with the row they were not drawn from."""

    class Greedy(ModelDrafter):
        def draft(self, requests: Any) -> list[Draft]:
            drafts = super().draft([replace(request, limit=1) for request in requests])
            for draft in drafts:
                if draft.rows:
                    draft.tokens[0] = int(draft.rows[0].ids[draft.rows[0].probs.argmax()])
            return drafts

    model = ToyModel(DRAFT, VOCABULARY, slots=SLOTS, n_batch=4096)
    assert _p_value(_texts(RULES["rejection"], {"model": Greedy(model)}, FEW)) < ALPHA
