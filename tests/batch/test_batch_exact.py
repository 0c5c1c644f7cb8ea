"""Results do not depend on the number of sequences, their order, or their neighbours: real rounds on toys."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from batch_engines import ToyEngine
from toy_drafters import junk
from toy_model import ToyModel
from toy_runs import DRAFT, TARGET, VOCABULARY

from spec_local.batch.records import BadLine, Item
from spec_local.batch.requests import Recipe
from spec_local.batch.runner import Runner
from spec_local.drafting.drafter import Drafter
from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.text import TextDrafter
from spec_local.speculation.controller import FixedController
from spec_local.speculation.speculator import Speculator

Answers = dict[str | int | None, tuple[tuple[int, ...], int]]


def make_items(count: int = 24) -> list[Item]:
    chance = random.Random(5)
    shared = "a system prompt that many lines share: "
    items = []
    for i in range(count):
        prompt = (shared if i % 3 else "") + "".join(chance.choices("abcdefgh", k=chance.randint(1, 30)))
        sampling = {"temperature": chance.choice([0.0, 0.7, 1.5]), "seed": i % 5, "max_tokens": chance.randint(1, 60)}
        if i % 4 == 0:
            sampling |= {"repeat_penalty": 1.3, "top_k": 5}
        items.append(Item(i + 1, f"n{i}", prompt, None, sampling))
    return items


def drafters(kind: str, slots: int) -> dict[str, Drafter]:
    model = ModelDrafter(ToyModel(DRAFT, VOCABULARY, slots=slots, n_batch=256))
    known: dict[str, dict[str, Drafter]] = {
        "none": {}, "model": {"model": model}, "text": {"text": TextDrafter()}, "junk": {"text": junk(VOCABULARY)},
        "both": {"text": TextDrafter(), "model": model},
    }  # fmt: skip
    return known[kind]


def answer(items: list[Item], slots: int, kind: str, length: int) -> tuple[Answers, ToyEngine]:
    target = ToyModel(TARGET, VOCABULARY, slots=slots, n_batch=256)
    sources = drafters(kind, slots)
    speculator = Speculator(target, sources, FixedController(tuple(sources), length), max_rows=slots * (length + 1))
    engine = ToyEngine(speculator, VOCABULARY, slots=slots)
    feed: Iterator[Item | BadLine] = iter(items)
    found: Answers = {}
    for outcome in Runner(engine, slots, Recipe().request).run(feed):
        assert outcome.result is not None, outcome.error
        found[outcome.id] = (outcome.result.token_ids, outcome.result.seed)
    return found, engine


@pytest.fixture(scope="module")
def alone() -> Answers:
    """Every item by itself, on a fresh model, without a draft."""
    return {item.id: answer([item], 1, "none", 0)[0][item.id] for item in make_items()}


@pytest.mark.parametrize("slots", [1, 2, 5, 24])
@pytest.mark.parametrize("kind", ["none", "model", "text", "junk", "both"])
def test_an_answer_depends_on_its_own_request_only(alone: Answers, slots: int, kind: str) -> None:
    items = make_items()
    random.Random(slots).shuffle(items)
    found, engine = answer(items, slots, kind, 0 if kind == "none" else 4)
    assert found == alone
    assert max(map(len, engine.steps)) == slots


def test_an_answer_does_not_depend_on_the_lines_before_it(alone: Answers) -> None:
    for skip in (1, 7, 20):
        found, _ = answer(make_items()[skip:], 3, "both", 4)
        assert found == {name: alone[name] for name in found}


def test_seeds_belong_to_lines_not_to_positions() -> None:
    """One seed for all lines gives equal prompts equal answers; without one they differ, and each is reported."""
    same = [Item(i, i, "abc", None, {"temperature": 1.5, "seed": 7, "max_tokens": 40}) for i in range(1, 6)]
    found, _ = answer(same, 2, "model", 4)
    assert len(set(found.values())) == 1
    zero, _ = answer([Item(1, 1, "abc", None, {"temperature": 1.5, "seed": 0, "max_tokens": 40})], 2, "model", 4)
    assert zero[1][1] == 0
    assert zero[1] != found[1]
    free = {"temperature": 1.5, "max_tokens": 40}
    first, _ = answer([Item(i, i, "abc", None, free) for i in range(1, 6)], 2, "model", 4)
    assert len(set(first.values())) == 5
    again = [Item(9, name, "abc", None, {**free, "seed": seed}) for name, (_, seed) in first.items()]
    assert answer(again, 3, "text", 3)[0] == first


def test_what_prompts_share_is_prefilled_once() -> None:
    shared = "a long beginning that all of these prompts have in common, and then some: "
    items = [Item(i, i, f"{shared}{name}", None, {"seed": i, "max_tokens": 12}) for i, name in enumerate("abcdefgh", 1)]
    found, engine = answer(items, 4, "model", 3)
    target = engine.speculator.target
    assert isinstance(target, ToyModel)
    prefilled = sum(len(chunk.tokens) for call in target.calls for chunk in call if not chunk.rows)
    assert prefilled < len(shared) + 8 * 3, "once, and the few tokens that differ"
    draft = engine.speculator.drafters["model"]
    assert isinstance(draft, ModelDrafter)
    assert isinstance(draft.model, ToyModel)
    assert draft.model.copies, "the draft's cache shares as well"
    assert draft.model.decoded < 4 * len(shared), "eight prompts, each with its answer"
    for item in items:
        assert found[item.id] == answer([item], 1, "none", 0)[0][item.id]


def test_a_cache_that_cannot_be_copied_in_part_is_filled_as_before() -> None:
    shared = "a long beginning that all of these prompts have in common, and then some: "
    items = [Item(i, i, f"{shared}{name}", None, {"seed": i, "max_tokens": 6}) for i, name in enumerate("abcd", 1)]
    target = ToyModel(TARGET, VOCABULARY, slots=4, n_batch=256)
    target.trim_mode = "refuses"
    speculator = Speculator(target, {}, FixedController((), 0), max_rows=4)
    source: Iterator[Item | BadLine] = iter(items)
    found = {
        o.id: o.result for o in Runner(ToyEngine(speculator, VOCABULARY, slots=4), 4, Recipe().request).run(source)
    }
    assert target.copies
    for item in items:
        result = found[item.id]
        assert result is not None
        assert (result.token_ids, result.seed) == answer([item], 1, "none", 0)[0][item.id]
