"""Engines over every kind of memory: answers, regenerated ones, later turns, other conversations, as plain decoding's.

The files are float32, where passes of different width differ in the last bits only, so tokens are compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_engines import PROMPT, Load, drawn, together
from tiny_gguf import write_convolutional, write_experts, write_hybrid, write_recurrent, write_windowed

from spec_local.errors import UsageError
from spec_local.language_model import Memory, MemoryKind
from spec_local.session.engine import Engine, load
from spec_local.session.messages import Message
from spec_local.session.options import EngineOptions

FILES: dict[str, Callable[..., Path]] = {
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
    "snapshots": write_convolutional,
    "window": write_windowed,
    "experts": write_experts,
}
KINDS = {"recurrent": "checkpoints", "hybrid": "checkpoints", "snapshots": "snapshots"}


@pytest.fixture
def open_engine(tiny_folder: Path) -> Iterator[Load]:
    opened: list[Engine] = []

    def open_(kind: str, draft: str, **options: Any) -> Engine:
        target, near = tiny_folder / f"{kind}-target.gguf", tiny_folder / f"{kind}-draft.gguf"
        for path, noise in ((target, 0.0), (near, 0.1)):
            if not path.exists():
                FILES[kind](path, seed=6, near=noise)
        settings = EngineOptions(**{"n_ctx": 256, "threads": 1, "draft_length": 4, **options})
        opened.append(load(target, draft=near if draft == "model" else draft, options=settings))
        return opened[-1]

    yield open_
    for engine in opened:
        engine.close()


@pytest.mark.parametrize("kind", FILES)
def test_the_same_text_with_any_draft_or_none(open_engine: Load, kind: str) -> None:
    plain = open_engine(kind, "none")
    expected = [plain.generate(PROMPT, sampling=drawn(seed=seed)).token_ids for seed in range(3)]
    assert plain.describe()["caches"] == {"target": KINDS.get(kind, "anywhere"), "draft": None}
    accepted = 0
    for draft, length in (("text", 5), ("model", 1), ("model", 4), ("model", 7), ("auto", "auto")):
        engine = open_engine(kind, draft, draft_length=length)
        for seed, tokens in enumerate(expected):
            result = engine.generate(PROMPT, sampling=drawn(seed=seed))
            assert result.token_ids == tokens, (draft, length, seed)
            assert result.speculation_state == "on"
            assert result.timings.load_s > 0
            accepted += result.statistics.accepted
            engine.speculator.release(0)
        assert not engine.speculator.off
    assert accepted > 20


@pytest.mark.parametrize("kind", FILES)
def test_regenerating_later_turns_and_other_conversations(open_engine: Load, kind: str) -> None:
    """Cases 4 and 5: what is cut back far, in a later turn, leaves no trace."""
    engine, plain = open_engine(kind, "model"), open_engine(kind, "none")
    chat = [Message(role="user", content="the abcd on")]
    other = [Message(role="user", content="an inn"), Message(role="assistant", content="one"), *chat]

    def answers(messages: list[Message], seed: int) -> str:
        plain.speculator.release(0)
        fresh = plain.generate(messages, sampling=drawn(seed=seed, max_tokens=30))
        result = engine.generate(messages, sampling=drawn(seed=seed, max_tokens=30))
        assert result.token_ids == fresh.token_ids
        assert (result.finish_reason, result.limit) == (fresh.finish_reason, fresh.limit)
        return result.text

    first = answers(chat, 1)
    assert answers(chat, 2) != first  # regenerated
    assert answers(chat, 1) == first
    longer = [*chat, Message(role="assistant", content=first), Message(role="user", content="re on")]
    second = answers(longer, 3)
    answers([*longer, Message(role="assistant", content=second), Message(role="user", content="in")], 4)
    answers(other, 5)
    assert answers(chat, 1) == first
    answers([Message(role="user", content="the abce on"), *longer[1:]], 6)  # an edited first message


@pytest.mark.parametrize("kind", ["recurrent", "hybrid", "snapshots"])
def test_the_prompt_of_a_running_state_is_not_read_again_to_regenerate(open_engine: Load, kind: str) -> None:
    engine = open_engine(kind, "model")
    first = engine.generate(PROMPT, sampling=drawn())
    again = engine.generate(PROMPT, sampling=drawn(seed=6))
    assert first.prompt_tokens > 20
    assert (first.cached_tokens, again.cached_tokens) == (0, first.prompt_tokens - 1)


def test_snapshots_may_be_padded_and_saved_states_may_not(open_engine: Load) -> None:
    plain = open_engine("snapshots", "none", pad_width=8)
    padded = open_engine("snapshots", "model", pad_width=8)
    for seed in range(3):
        expected = plain.generate(PROMPT, sampling=drawn(seed=seed))
        assert padded.generate(PROMPT, sampling=drawn(seed=seed)).token_ids == expected.token_ids
    with pytest.raises(UsageError, match="cannot be padded: recurrent-target"):
        open_engine("recurrent", "text", pad_width=8)


def test_several_at_once_over_running_states(open_engine: Load) -> None:
    """Each slot has its own marks; what prompts share is read by each, since a running state is not shared in part."""
    from spec_local.session.generation import Request

    for kind in ("hybrid", "snapshots"):
        engine, plain = open_engine(kind, "model", parallel=3), open_engine(kind, "none")
        requests = [Request(PROMPT + "e" * i, drawn(seed=i, max_tokens=20 + 5 * i)) for i in range(3)]
        generations = together(engine, *requests)
        for request, generation in zip(requests, generations, strict=True):
            assert (
                engine.result(generation).token_ids
                == plain.generate(request.prompt, sampling=request.sampling).token_ids
            )


def test_what_can_only_be_emptied_answers_plainly_and_says_why(
    open_engine: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = open_engine("recurrent", "none").generate(PROMPT, sampling=drawn())

    def nowhere(context: Any) -> Memory:
        context.memory = found = Memory(MemoryKind.NOWHERE, reason="its state cannot be saved here")
        return found

    monkeypatch.setattr("spec_local.session.loading.classify", nowhere)
    engine = open_engine("recurrent", "text")
    for _ in range(2):
        result = engine.generate(PROMPT, sampling=drawn())
        assert result.token_ids == expected.token_ids
        assert (result.speculation_state, result.speculation_reason) == ("off", "its state cannot be saved here")


def test_a_draft_that_can_only_be_emptied_is_set_aside(
    open_engine: Load, tiny_target: Path, tiny_recurrent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spec_local.llama.memory_probe import classify

    def only_target(context: Any) -> Memory:
        found = classify(context)
        if context.model.recurrent:
            context.memory = found = Memory(MemoryKind.NOWHERE, reason="no way back")
        return found

    options = EngineOptions(n_ctx=256, threads=1, draft_length=4)
    with load(tiny_target, draft=tiny_recurrent, options=options) as engine:
        expected = engine.generate(PROMPT, sampling=drawn())
        assert engine.describe()["caches"] == {"target": "anywhere", "draft": "checkpoints"}
        assert "model" in expected.statistics.sources
    monkeypatch.setattr("spec_local.session.loading.classify", only_target)
    with load(tiny_target, draft=tiny_recurrent, options=options) as engine:
        assert "The draft model is not used: no way back." in engine.notices
        assert engine.generate(PROMPT, sampling=drawn()).token_ids == expected.token_ids


def test_what_a_rejection_costs_reaches_the_controller(open_engine: Load) -> None:
    from spec_local.speculation.policy import AdaptiveController

    free, running = (open_engine(kind, "text", draft_length="auto") for kind in ("experts", "recurrent"))
    costs = []
    for engine in (free, running):
        controller = engine.speculator.controller
        assert isinstance(controller, AdaptiveController)
        costs.append(controller.costs.rollback_s)
    assert costs[0] == 0.0
    assert costs[1] >= running.loaded.target.memory.seconds > 0.0


def test_a_rollback_that_costs_more_than_drafts_earn_ends_them() -> None:
    """The controller drafts where a rejection is free and does not where it takes longer than plain decoding."""
    from spec_local.drafting.draft import Draft
    from spec_local.drafting.drafter import Offer
    from spec_local.speculation.controller import Seat
    from spec_local.speculation.cost import CostProfile, Curve
    from spec_local.speculation.policy import AdaptiveController

    plans = []
    for rollback_s in (0.0, 1.0):
        controller = AdaptiveController(CostProfile(Curve({1: 0.1, 16: 0.12}), rollback_s=rollback_s), frozen=True)
        offer = Offer(4, Draft([1, 2, 3, 4], None, "text", [0.95] * 4))
        plans.append(controller.plan([Seat(controller.enter(), {"text": offer}, 64)])[0])
    assert [plan.source for plan in plans] == ["text", "none"]
