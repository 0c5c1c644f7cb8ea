"""The audit of ordinary runs: their tokens again, one by one, from an empty cache.

A pass of one row and a pass of many differ in the last bits of their logits, so where two tokens nearly tie, an
ordinary run may choose the other one. How much the bits differ is measured here on the run's own tokens, away from
speculation: ε is the largest difference of a logit between one-by-one and wide evaluation. A disagreement is explained
when its margin, the rise of the emitted token's logit (or fall of the other's) that turns the decision, is at most 2ε:
each of the two logits may be off by ε. A larger margin is a fault.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spec_local.language_model import Chunk, Logits
from spec_local.llama.model_context import ModelContext
from spec_local.sampling.row import Row
from spec_local.verify.findings import Kind, Problem
from spec_local.verify.margins import chooser, fall, miss
from spec_local.verify.recording import Recorder
from spec_local.verify.rig import ROWS, Rig, feed

FLOOR = 5e-3
"""Where ε is smaller than this, this counts: a few tokens may have met no large rounding, and a fault moves logits by
tenths at least."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An emitted token that the one-by-one replay would not have chosen."""

    index: int
    """Place in the answer."""
    emitted: int
    replayed: int
    emitted_text: str
    replayed_text: str
    margin: float
    """Logits by which the emitted token misses being chosen."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A model over a run's tokens, from empty caches: what it says after the last one, and how much that may vary.

    The prompt was prefilled as the engine prefills it; the answer was then evaluated in narrow passes. In one batch of
    all tokens the large-batch kernels come into play, whose rounding differs more.
    """

    epsilon: float
    """Largest |Δlogit| between narrow passes of different widths over the answer."""
    logits: Logits
    """float32 [n_vocab] after the last token, in narrow passes."""
    batch_epsilon: float
    """Largest |Δlogit| between narrow passes and one batch, over the last tokens."""
    batch_logits: Logits
    """float32 [n_vocab] after the last token, from one batch."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One run against its one-by-one replay."""

    name: str
    tokens: int
    """Tokens of the answer."""
    rounds: int
    decided: bool
    """Whether the replay can decide too: not for a ratio rule above temperature 0, which tests drafted tokens."""
    disagreements: tuple[Disagreement, ...]
    margins: tuple[float, ...]
    """Of the decisions that agree: how far the chosen token's logit may fall before another one is chosen."""
    target: Fresh
    draft: Fresh | None
    """None where there is no draft model."""
    draft_rows: tuple[Row, ...] | None
    """The draft model's row before each token of the answer; None where there is no draft model."""


@dataclass(frozen=True, slots=True)
class Audit:
    """All replays."""

    replays: tuple[Replay, ...]
    problems: tuple[Problem, ...]

    @property
    def epsilon(self) -> float:
        """Largest |Δlogit| of the target between passes of one row and of several, over all runs."""
        return max((replay.target.epsilon for replay in self.replays), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        decided = [replay for replay in self.replays if replay.decided]
        tokens = sum(replay.tokens for replay in decided)
        found = [d for replay in decided for d in replay.disagreements]
        margins = [m for replay in decided for m in replay.margins]
        return {
            "epsilon": self.epsilon,
            "tokens": tokens,
            "disagreements": len(found),
            "disagreements_per_1000": 1000 * len(found) / tokens if tokens else None,
            "worst_margin": max((d.margin for d in found), default=None),
            "close_calls": len(found) + sum(m <= 2 * self.epsilon for m in margins),
            "median_margin": statistics.median(margins) if margins else None,
            "runs": [
                {
                    "name": replay.name,
                    "tokens": replay.tokens,
                    "rounds": replay.rounds,
                    "decided": replay.decided,
                    "epsilon": replay.target.epsilon,
                    "batch_epsilon": replay.target.batch_epsilon,
                    "disagreements": [asdict(d) for d in replay.disagreements],
                }
                for replay in self.replays
            ],
        }


def audit(replays: Many[Replay]) -> Audit:
    """Judge the replays, with the ε of all of them together."""
    found = Audit(tuple(replays), ())
    reach = 2 * max(found.epsilon, FLOOR)
    problems = []
    for replay in replays:
        unexplained = [d for d in replay.disagreements if d.margin > reach]
        if unexplained:
            worst = max(unexplained, key=lambda d: d.margin)
            message = (
                f"{replay.name}: {len(unexplained)} of {replay.tokens} tokens are not what the target chooses one by "
                f"one; token {worst.index + 1} is {worst.emitted_text} instead of {worst.replayed_text}, "
                f"{worst.margin:.3g} in logits away, where rounding explains {reach:.2g}"
            )
            problems.append(Problem("audit", Kind.DECISION, message))
    return Audit(found.replays, tuple(problems))


def replay(rig: Rig, name: str, recorder: Recorder, turn: int = 0) -> Replay:
    """Evaluate a recorded run's tokens again: one by one, in wide passes, and its last ones in a single batch.

    Args:
        rig: The contexts.
        name: Of the run.
        recorder: The run.
        turn: Number of the run: each starts with another of the widths that wide passes take in turn.
    """
    sequence = recorder.sequence
    tokens, start = sequence.tokens, sequence.prompt_length - 1  # the prompt's last token is a round's first row
    decided = recorder.rule.reproducible or sequence.transform.sampling.temperature == 0.0
    rig.single.trim(0, 0)
    feed(rig.single, tokens[:start])
    rig.wide.trim(0, 0)
    if start:
        rig.wide.restore(0, rig.single.checkpoint(0))  # the same prompt, without computing it twice

    disagreements: list[Disagreement] = []
    margins: list[float] = []
    tail: list[Logits] = []
    epsilon = 0.0
    widths = (rig.widest, 5, 8)
    low = start
    while low < len(tokens):
        rig.check_cancelled()
        width = widths[turn % len(widths)]
        turn += 1
        chunk = tokens[low : low + max(width, 10)]
        singly = in_passes(rig.single, chunk, 1)  # [chunk, n_vocab]
        epsilon = max(epsilon, float(np.abs(singly - in_passes(rig.wide, chunk, width)).max()))
        tail = [*tail, *singly][-ROWS:]
        low += len(chunk)
        for position, logits in enumerate(singly, low - len(chunk) + 1):
            if not decided or position >= len(tokens):
                continue
            choose = chooser(sequence, recorder.rule, recorder.noise, position)
            emitted, chosen = tokens[position], choose(logits)
            if chosen == emitted:
                margins.append(fall(choose, logits, chosen))
                continue
            gap = miss(choose, logits, emitted)
            texts = rig.text(emitted), rig.text(chosen)
            disagreements.append(Disagreement(position - start - 1, emitted, chosen, *texts, gap))
    draft_rows, draft = _draft(rig, recorder)
    return Replay(
        name=name,
        tokens=len(tokens) - sequence.prompt_length,
        rounds=len(sequence.rounds),
        decided=decided,
        disagreements=tuple(disagreements),
        margins=tuple(margins),
        target=_fresh(rig.wide, tokens, epsilon, tail),
        draft=draft,
        draft_rows=draft_rows,
    )


def _draft(rig: Rig, recorder: Recorder) -> tuple[tuple[Row, ...] | None, Fresh | None]:
    """The draft model over the same tokens: its row before each token of the answer, and its numbers."""
    context, vocabulary, sequence = rig.draft, rig.engine.loaded.vocabulary_map, recorder.sequence
    if context is None or vocabulary is None:
        return None, None
    tokens, transform = sequence.tokens, sequence.draft_transform
    ids = vocabulary.spell(tokens)
    after: defaultdict[int, list[int]] = defaultdict(list)  # by length in ids, the positions that follow so many
    for position in range(sequence.prompt_length, len(tokens)):
        after[len(vocabulary.spell(tokens[:position]))].append(position)
    start = max(0, min(after, default=len(ids)) - 1)
    context.trim(0, 0)
    feed(context, ids[:start])
    rows: list[Row] = []
    tail: list[Logits] = []
    epsilon = 0.0
    for low in range(start, len(ids), ROWS):
        rig.check_cancelled()
        chunk = ids[low : low + ROWS]
        wide = in_passes(context, chunk, len(chunk))
        if low == start:  # how much the width matters: the first tokens once more, one by one
            context.trim(0, start)
            singly = in_passes(context, chunk, 1)
            epsilon = float(np.abs(singly - wide).max())
        tail = [*tail, *wide][-ROWS:]
        for length, logits in enumerate(wide, low + 1):
            for position in after.pop(length, ()):
                rows.append(transform.row(vocabulary.row(logits), tokens[:position], position))
    return tuple(rows), _fresh(context, ids, epsilon, tail)


def _fresh(context: ModelContext, tokens: Many[int], epsilon: float, tail: Many[Logits]) -> Fresh:
    """Compare the logits [n_vocab] after the last tokens with those of one batch. Slot 0 is empty afterwards."""
    batch = last_of_batch(context, tokens, len(tail))  # [tail, n_vocab]
    return Fresh(epsilon, tail[-1], float(np.abs(np.stack(tail) - batch).max()), batch[-1])


def in_passes(context: ModelContext, tokens: Many[int], width: int) -> Logits:
    """Append tokens to slot 0 in passes of `width` rows; float32 [len(tokens), n_vocab], a copy."""
    passes = (tokens[low : low + width] for low in range(0, len(tokens), width))
    return np.concatenate([context.decode([Chunk(0, part, len(part))])[0].copy() for part in passes])


def last_of_batch(context: ModelContext, tokens: Many[int], rows: int) -> Logits:
    """Logits after the last `rows` tokens, from an empty cache, in as few passes as the batch size allows.

    Returns:
        float32 [rows, n_vocab], a copy. Slot 0 is empty afterwards.
    """
    context.trim(0, 0)
    feed(context, tokens[: (len(tokens) - rows) // context.n_batch * context.n_batch])
    rest = tokens[context.length(0) :]
    logits = context.decode([Chunk(0, rest, rows)])[0].copy() if len(rest) <= context.n_batch else None
    if logits is None:  # the batch's edge lies inside the rows
        feed(context, rest[: len(rest) - rows])
        logits = in_passes(context, rest[len(rest) - rows :], rows)
    context.trim(0, 0)
    return logits
