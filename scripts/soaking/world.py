"""Conversations over one engine, at random: questions, edits, regenerations, cancels, other settings, faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from native_faults import ABORTED, FAILED, NO_ROOM, OUT_OF_MEMORY, NativeFaults

from soaking.ledger import Ledger
from spec_local.drafting.model import ModelDrafter
from spec_local.errors import SpecLocalError
from spec_local.language_model import Chunk
from spec_local.llama.context import Context
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine
from spec_local.session.generation import Generation, Request
from spec_local.speculation.controller import FixedController

WORDS = ("the ", "abcd ", "inn ", "on ", "an ", "re ", "q", "w ", "😀", "é", "\n", "1, 2, 3, ", "<|im_end|>")
STOPS = ((), (), ("ab",), ("e", "the"), ("\n",))
SOURCES = (("model", "text"), ("text", "model"), ("model",), ("text",))
STATUSES = {"no room": NO_ROOM, "stopped": ABORTED, "out of memory": OUT_OF_MEMORY, "failed": FAILED}


@dataclass(eq=False)
class _Talk:
    """One slot's conversation and the answer on its way."""

    text: str = ""
    generation: Generation | None = None
    pieces: list[str] = field(default_factory=list)
    failed: bool = False
    passes: int = 0


class World:
    """One engine under test and one that decodes plainly; both over the same target file.

    Args:
        engine: With as many slots as conversations.
        plain: The reference: one slot, no drafts.
        exact: Whether texts must be equal to the letter (padded passes, or float32 files).
        seed: Of everything that happens.
        ledger: Where it is counted.
    """

    def __init__(self, engine: Engine, plain: Engine, exact: bool, seed: int, ledger: Ledger) -> None:
        self.engine, self.plain, self.exact, self.ledger = engine, plain, exact, ledger
        self.chance = random.Random(seed)
        self.talks = [_Talk() for _ in range(engine.options.parallel)]
        self.drafters = dict(engine.speculator.drafters)
        self.controller = engine.speculator.controller
        self.target = NativeFaults(engine.loaded.target)
        self.draft = None if engine.loaded.draft is None else NativeFaults(engine.loaded.draft)
        self._probe = Context(engine.loaded.target.model, plain.loaded.target.options)

    def step(self) -> None:
        """Something happens; then every invariant is looked at."""
        kinds = {
            "ask": 3,
            "play": 10,
            "regenerate": 1,
            "edit": 1,
            "cancel": 0.5,
            "settings": 1,
            "fault": 1.5,
            "leave": 0.3,
        }
        kind = self.chance.choices(list(kinds), list(kinds.values()))[0]
        self.ledger.steps[kind] += 1
        getattr(self, f"_{kind}")()
        self._check()

    def close(self) -> None:
        """Give the engine back as it was."""
        self.target.undo()
        if self.draft is not None:
            self.draft.undo()
        self._probe.close()

    # -- what happens ----------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        talk = self.chance.choice(self.talks)
        text = talk.text + "".join(self.chance.choices(WORDS, k=self.chance.randint(1, 12)))
        self._start(talk, text)

    def _regenerate(self) -> None:
        talk = self.chance.choice(self.talks)
        if talk.generation is not None:
            self._start(talk, str(talk.generation.request.prompt))

    def _edit(self) -> None:
        talk = self.chance.choice(self.talks)
        if talk.text:
            self._start(talk, talk.text[: self.chance.randrange(len(talk.text))] + self.chance.choice(WORDS))

    def _leave(self) -> None:
        talk = self.chance.choice(self.talks)
        self._end(talk)
        self.engine.speculator.release(self.talks.index(talk))
        talk.text, talk.generation = "", None

    def _settings(self) -> None:
        speculator = self.engine.speculator
        if self.chance.random() < 0.2:
            speculator.controller = self.controller
        else:
            speculator.controller = FixedController(self.chance.choice(SOURCES), self.chance.randint(0, 7))
        for talk in self.talks:
            if talk.generation is not None:
                talk.generation.sequence.state = speculator.controller.enter()

    def _cancel(self) -> None:
        running = self._running()
        if running and self.chance.random() < 0.5:
            self.chance.choice(running).sequence.cancel()
        else:
            self.engine.cancel()
            if running:
                self._step(running)
            self.engine._allow()

    def _fault(self) -> None:
        target = self.draft is None or self.chance.random() < 0.5
        faults = self.target if target or self.draft is None else self.draft
        kind = self.chance.choice([*STATUSES, "not a number"])
        at = faults.decodes + self.chance.randint(0, 3)
        if kind == "not a number":
            faults.logits_at(at, self.chance.choice((float("nan"), float("inf"))))
        else:
            faults.decode_at(at, STATUSES[kind])
        self.ledger.faults[f"{kind} ({'target' if faults is self.target else 'draft'})"] += 1

    def _play(self) -> None:
        for _ in range(self.chance.randint(1, 8)):
            if running := self._running():
                self._step(running)

    # -- how -------------------------------------------------------------------------------------------------------

    def _running(self) -> list[Generation]:
        return [t.generation for t in self.talks if t.generation is not None and not t.generation.finished]

    def _start(self, talk: _Talk, text: str) -> None:
        self._end(talk)
        sampling = Sampling(
            temperature=self.chance.choice((0.0, 0.8, 1.3)),
            top_k=self.chance.choice((0, 20)),
            top_p=1.0,
            min_p=0.0,
            seed=self.chance.randrange(1000),
            max_tokens=self.chance.choice((0, 3, 20, 60, None)),
            min_tokens=self.chance.choice((0, 0, 5)),
            repeat_penalty=self.chance.choice((1.0, 1.3)),
            stop=self.chance.choice(STOPS),
        )
        request = Request(text or "a", sampling, raw=self.chance.random() < 0.7, speculate=self.chance.random() < 0.9)
        slot = self.talks.index(talk)
        try:
            generation = self.engine.prepare(request, slot)
        except SpecLocalError:  # it has outgrown the context, or ends in nothing: a new conversation begins
            talk.text, talk.generation = "", None
            self.engine.speculator.release(slot)
            return
        talk.text, talk.generation, talk.pieces, talk.failed = text, generation, [], False
        self.engine.prefill(generation)

    def _step(self, running: list[Generation]) -> None:
        counted = sum(len(g.sequence.rounds) for g in running)
        rows_before = self.target.decodes
        lags = [self.engine.speculator._cache.holds(g.sequence.slot, len(g.sequence.tokens) - 1) for g in running]
        active = sum(not g.finished for g in running)
        self.engine.step(running)
        played = sum(len(g.sequence.rounds) for g in running) - counted
        if played and all(lags):
            passes = self.target.decodes - rows_before
            self.ledger.check(2, passes == (active if self.engine.options.pad_width else 1), f"{passes} passes")
        for talk in self.talks:
            if talk.generation in running:
                piece = talk.generation.piece()
                talk.pieces.append(piece.text)
                self.ledger.check(8, piece.text.encode().decode() == piece.text, repr(piece.text))

    def _end(self, talk: _Talk) -> None:
        """The answer is over, by itself or because another one takes its slot."""
        generation = talk.generation
        if generation is None or not isinstance(generation, Generation):
            return
        if not generation.finished:
            generation.sequence.cancel()
        talk.pieces.append(generation.piece().text)
        result = self.engine.result(generation)
        self._judge(talk, generation, result)
        talk.text += result.text
        talk.generation = None
        for source in list(self.engine.speculator.off):  # a drafter that was given up comes back for the next answers
            del self.engine.speculator.off[source]
        for source, drafter in self.drafters.items():
            self.engine.speculator.drafters.setdefault(source, drafter)

    def _judge(self, talk: _Talk, generation: Generation, result: Any) -> None:
        check, request = self.ledger.check, generation.request
        self.ledger.ends[result.finish_reason] += 1
        self.ledger.tokens += len(result.token_ids)
        self.ledger.drafted += sum(r.drafted for r in result.rounds)
        self.ledger.accepted += sum(r.accepted for r in result.rounds)
        check(4, sum(r.emitted for r in result.rounds) == len(result.token_ids), "emitted tokens do not add up")
        check(4, all(0 <= r.accepted <= r.tested <= r.drafted for r in result.rounds), "counts out of order")
        ends = [i for i, token in enumerate(result.token_ids) if token in self.engine.end_ids]
        check(4, ends in ([], [len(result.token_ids) - 1]), "tokens behind an end token")
        check(4, result.prompt_tokens + len(result.token_ids) <= self.engine.n_ctx, "more than the context")
        limit = generation.sequence.max_tokens
        check(4, limit is None or len(result.token_ids) <= limit, "more than the budget")
        check(8, "".join(talk.pieces) == result.text, "the stream is not the text")
        check(8, not any(stop in result.text for stop in request.sampling.stop), "a stop string is in the text")
        if self.exact:
            self.plain.speculator.release(0)
            expected = self.plain.generate(request.prompt, sampling=request.sampling, raw=request.raw)
            ids = result.token_ids
            check(6, ids == expected.token_ids[: len(ids)], f"{ids} is not {expected.token_ids}")
            if result.finish_reason not in ("cancelled", "error"):
                same = (result.text, result.finish_reason, result.limit)
                check(6, same == (expected.text, expected.finish_reason, expected.limit), "another end than plain")

    # -- what must hold --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        speculator, check = self.engine.speculator, self.ledger.check
        target = self.engine.loaded.target
        for slot, talk in enumerate(self.talks):
            held = speculator._cache.tokens(slot)
            known = target.length(slot) == len(held)
            check(3, known, f"slot {slot} holds {target.length(slot)}, not {len(held)}")
            if talk.generation is None or talk.generation.finished or not talk.generation.sequence.rounds:
                continue
            tokens = talk.generation.sequence.tokens
            right = list(held) == tokens[: len(held)] and len(held) < len(tokens)
            check(1, right or not known, f"slot {slot}: the target's cache is of another text")
            if known and target.memory.free and talk.generation.sequence.error is None:
                check(1, len(held) in (0, len(tokens) - 1), f"slot {slot}: {len(held)} of {len(tokens) - 1}")
            drafter = speculator.drafters.get("model")
            if isinstance(drafter, ModelDrafter):
                theirs = drafter.model.length(slot)
                check(3, theirs <= drafter.model.n_ctx, "the draft's cache is fuller than full")
        self._compare(self.chance.randrange(len(self.talks)))

    def _compare(self, slot: int) -> None:
        """Oracle O3 for one slot: the next row from the live cache against one from an empty cache."""
        target, cache = self.engine.loaded.target, self.engine.speculator._cache
        held = list(cache.tokens(slot))
        if not held or target.length(slot) != len(held) or len(held) >= target.n_ctx or self.chance.random() < 0.7:
            return
        probe, lib = self._probe, target._lib
        probe.trim(0, 0)
        for start in range(0, len(held), probe.n_batch):
            probe.decode([Chunk(0, held[start : start + probe.n_batch], 0)])
        right = probe.decode([Chunk(0, [0], 1)])[0][0]
        target._lib = self.target.lib  # this look is no part of what is being tested
        try:
            state = None if target.memory.free else target.checkpoint(slot)
            rows = target.decode([Chunk(slot, [0], 1)])[0]
            self.ledger.check(5, not rows.flags.owndata and rows.shape == (1, target.n_vocab), "a copy of logits")
            live = rows[0].copy()
            if state is None:  # (of a sliding window only what it shows would come back with a saved state)
                target.trim(slot, len(held))
            else:
                target.trim(slot, 0)
                target.restore(slot, state)
        finally:
            target._lib = lib
        apart = float(np.abs(live - right).max())
        self.ledger.check(7, apart < TOLERANCE, f"slot {slot}: logits {apart:.3g} apart after {len(held)} tokens")


TOLERANCE = 0.3
"""Rounding of float16 caches and passes of other widths; another history moves logits by whole units."""
