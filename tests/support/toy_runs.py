"""Runs of the real round on toy models, with the engine's invariants checked after every round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Many
from typing import Any

from toy_model import Table, ToyModel

from spec_local.drafting.drafter import Drafter
from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.text import TextDrafter
from spec_local.drafting.vocabulary_map import VocabularyMap
from spec_local.language_model import MemoryKind
from spec_local.sampling import RULES, Noise, Sampling, Transform
from spec_local.speculation.controller import Controller, FixedController
from spec_local.speculation.round import Round
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator

VOCABULARY = 23
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
GREEDY = {"temperature": 0.0}
WARM = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
LIMIT = 32

TARGET = Table(VOCABULARY, seed=1, scale=2.0)
DRAFT = Table(VOCABULARY, seed=2, scale=0.7, near=TARGET)
"""Agrees with the target about three times in four."""


def target_model(**options: Any) -> ToyModel:
    return ToyModel(TARGET, VOCABULARY, **options)


def draft_model(table: Table = DRAFT, **options: Any) -> ToyModel:
    return ToyModel(table, table.n_vocab, **options)


def make_sequence(
    settings: Mapping[str, Any] = GREEDY,
    *,
    seed: int = 0,
    prompt: Many[int] = PROMPT,
    slot: int = 0,
    n_ctx: int = 512,
    max_tokens: int | None = LIMIT,
    ends: Many[int] = (),
    rule: str = "coupled",
    speculate: bool = True,
    on_token: Callable[[int], bool] | None = None,
) -> Sequence:
    """A sequence as the engine makes it, over the toys' vocabulary."""
    sampling = Sampling.parse(settings)
    end_ids = frozenset(ends)
    return Sequence(
        slot=slot,
        tokens=list(prompt),
        transform=Transform(sampling, VOCABULARY, end_ids, len(prompt)),
        draft_transform=Transform(sampling, VOCABULARY, end_ids, len(prompt)),
        noise=Noise(seed),
        rule=RULES[rule],
        n_ctx=n_ctx,
        max_tokens=max_tokens,
        end_ids=end_ids,
        on_token=on_token,
        speculate=speculate,
    )


def play(speculator: Speculator, *sequences: Sequence, rounds: int = 10_000) -> None:
    """Read the prompts and play to the end (or so many rounds), with every invariant checked after each step."""
    for sequence in sequences:
        read(speculator, sequence)
        if sequence.finish is None:
            check_caches(speculator, sequence)
    go_on(speculator, *sequences, rounds=rounds)


def read(speculator: Speculator, sequence: Sequence) -> int:
    """Step a sequence up to its first round, which the next step plays; returns the prompt's tokens that were in the
    target's cache already."""
    while sequence.finish is None and not _up(speculator, sequence):
        speculator.step([sequence])
    return sequence.prompt_length - 1 - sequence.reading.computed


def _up(speculator: Speculator, sequence: Sequence) -> bool:
    if not sequence.reading.begun or list(speculator._cache.tokens(sequence.slot)) != sequence.tokens[:-1]:
        return False
    while not sequence.reading.done:
        speculator._open(sequence, speculator.target.n_batch)
    return True


def go_on(speculator: Speculator, *sequences: Sequence, rounds: int = 10_000) -> None:
    """Play to the end, or so many rounds."""
    while rounds and any(sequence.finish is None for sequence in sequences):
        before = {id(s): len(s.tokens) for s in sequences}
        played = {id(s): len(s.rounds) for s in sequences}
        active = [s for s in sequences if s.finish is None]
        records = speculator.step(sequences)
        rounds -= bool(records)
        ready = [s for s in active if len(s.rounds) > played[id(s)]]
        assert len(records) == len(ready)
        for sequence, record in zip(ready, records, strict=True):
            assert sequence.rounds[-1] is record
            target = speculator.target
            again = not target.memory.free or getattr(target, "loses_cache", False)
            check_round(record, len(sequence.tokens) - before[id(sequence)], sequence, again)
            check_caches(speculator, sequence)


def check_round(record: Round, grown: int, sequence: Sequence, again: bool = False) -> None:
    assert record.emitted == grown
    assert 0 <= record.accepted <= record.tested <= record.drafted
    assert record.accepted <= record.emitted <= record.accepted + 1
    assert record.tested <= record.width - 1
    # Nothing is tested where a later row of the pass is no distribution: then plain decoding's token is taken alone.
    # A pass may be wider than its draft where a running state reads accepted tokens again.
    assert sequence.finish or record.tested in (0, record.width - 1) or again
    assert sequence.finish or record.emitted == record.accepted + 1
    assert (record.source == "none") == (record.drafted == 0)
    assert len(sequence.tokens) <= sequence.n_ctx
    assert sequence.max_tokens is None or len(sequence.emitted) <= sequence.max_tokens


def check_caches(speculator: Speculator, sequence: Sequence) -> None:
    """Oracle O3 of a toy: its caches are lists, so they are compared, not probed."""
    target = speculator.target
    assert isinstance(target, ToyModel)
    cache, right = target.caches[sequence.slot], sequence.tokens[:-1]
    if target.memory.free:
        assert cache == right or (not cache and target.trim_mode != "works")
    else:  # what a running state lacks after a rejection is read with the next round
        assert cache == right[: len(cache)]
        snapshots = target.memory.kind is MemoryKind.SNAPSHOTS and sequence.rounds
        assert not snapshots or sequence.rounds[-1].drafted > target.memory.depth or cache == right


class Watched(ToyModel):
    """A draft model that fails the test when it decodes a token that does not continue its sequence's history."""

    def __init__(self, table: Table, sequences: Many[Sequence], **options: Any) -> None:
        super().__init__(table, table.n_vocab, **options)
        self.watched = {sequence.slot: sequence for sequence in sequences}

    def decode(self, chunks: Any) -> Any:
        for chunk in chunks:
            known = self.watched[chunk.seq].tokens
            after = [*self.caches[chunk.seq], *chunk.tokens]
            assert after[: len(known)] == known[: len(after)], "the draft's cache is no prefix of the history"
        return super().decode(chunks)


def plain(settings: Mapping[str, Any] = GREEDY, **options: Any) -> Sequence:
    """The run without any draft, on a fresh model: what every other run must repeat."""
    sequence = make_sequence(settings, **options)
    play(Speculator(target_model(), {}, FixedController("text", 0)), sequence)
    return sequence


def speculator(
    drafters: Mapping[str, Drafter],
    controller: Controller | int = 4,
    *,
    target: ToyModel | None = None,
    max_rows: int = 32,
) -> Speculator:
    """A speculator over the toy target; a number stands for a fixed draft length."""
    if isinstance(controller, int):
        controller = FixedController(tuple(drafters), controller)
    return Speculator(target or target_model(), drafters, controller, max_rows=max_rows)


def model_drafter(table: Table = DRAFT, **options: Any) -> dict[str, Drafter]:
    """A draft model; tokens that a smaller one lacks are spelt as two of its own."""
    vocabulary = VocabularyMap(VOCABULARY, table.n_vocab, text=lambda _: b"xy", pieces=lambda: {b"x": 1, b"y": 2})
    return {"model": ModelDrafter(draft_model(table, **options), vocabulary=vocabulary)}


def text_drafter() -> dict[str, Drafter]:
    return {"text": TextDrafter()}
