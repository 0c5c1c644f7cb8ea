"""What a round costs the host outside the models: plain, considered and drafted rounds, by processor time.

    python scripts/research/round_cost.py [--vocab 151936] [--rounds 300]

The round, drafters, policy, sampling and records are the real ones; the models are arrays, which answer at once. A
*considered* round is one in which something could be drafted and nothing is. Least and median of the rounds of a kind.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence as Many
from typing import Any

import numpy as np

from spec_local.drafting.model import ModelDrafter
from spec_local.drafting.text import TextDrafter
from spec_local.language_model import Chunk, Logits, Memory
from spec_local.sampling import RULES, Noise, Sampling, Transform
from spec_local.speculation.cost import CostProfile, Curve
from spec_local.speculation.policy import AdaptiveController
from spec_local.speculation.sequence import Sequence
from spec_local.speculation.speculator import Speculator


class Instant:
    """A language model that takes no time: its row depends on the last token alone."""

    n_ctx, n_batch, memory = 8192, 512, Memory()

    def __init__(self, n_vocab: int, seed: int) -> None:
        self.n_vocab = n_vocab
        noise = np.random.default_rng(seed)
        self._rows = noise.normal(-5.0, 2.5, (8, n_vocab)).astype(np.float32)
        for row in self._rows:
            row[noise.choice(n_vocab, 40, replace=False)] = 12.0 - 2.0 * np.log(np.arange(1, 41))
        self._lengths: dict[int, int] = {}

    def decode(self, chunks: Many[Chunk]) -> list[Logits]:
        """Rows that are there already."""
        found = []
        for chunk in chunks:
            self._lengths[chunk.seq] = self.length(chunk.seq) + len(chunk.tokens)
            last = chunk.tokens[len(chunk.tokens) - chunk.rows :]
            first = last[0] % 8 if last else 0
            found.append(self._rows[first : first + 1] if len(last) < 2 else self._rows[[t % 8 for t in last]])
        return found

    def length(self, seq: int) -> int:
        """Tokens decoded and not trimmed."""
        return self._lengths.get(seq, 0)

    def foothold(self, seq: int, length: int) -> int:
        """Any."""
        return length

    def mark(self, seq: int, ahead: int | None = None) -> None:
        """Nothing to do."""

    def trim(self, seq: int, length: int) -> None:
        """Forget what is behind."""
        self._lengths[seq] = length


def play(kind: str, n_vocab: int, temperature: float, rounds: int) -> tuple[list[float], list[int]]:
    """Microseconds of each round, and tokens drafted in it."""
    target = Instant(n_vocab, 0)
    dear = kind == "considered"
    costs = CostProfile(Curve({1: 0.01, 64: 0.6 if dear else 0.02}), Curve({1: 0.009 if dear else 0.0005, 64: 0.1}))
    drafters: dict[str, Any] = {"model": ModelDrafter(Instant(n_vocab, 0), 16), "text": TextDrafter()}
    if kind == "plain":
        drafters = {}
    # What the arrays take is no news about the machine: decisions are made with these costs alone.
    speculator = Speculator(target, drafters, AdaptiveController(costs, frozen=True))
    sampling = Sampling(temperature=temperature, seed=1)
    prompt = list(np.random.default_rng(2).integers(0, 5000, 300))
    sequence = Sequence(
        0,
        [int(token) for token in prompt],
        Transform(sampling, n_vocab, frozenset(), len(prompt)),
        Transform(sampling.for_draft(), n_vocab, frozenset(), len(prompt)),
        Noise(1),
        RULES["coupled"],
        n_ctx=8192,
    )
    taken: list[float] = []
    drafted: list[int] = []
    while len(taken) < rounds and sequence.finish is None:
        begin = time.thread_time_ns()
        records = speculator.step([sequence])
        if records:  # the first steps read the prompt
            taken.append((time.thread_time_ns() - begin) / 1e3)
            drafted.append(records[0].drafted)
    return taken, drafted


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a round costs outside the models.")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    print(f"{'round':<14}{'T':>5}{'least µs':>10}{'median':>8}{'drafted':>9}{'median per drafted token':>26}")
    for temperature in (0.0, 0.8):
        for kind in ("plain", "considered", "drafted"):
            taken, drafted = play(kind, arguments.vocab, temperature, arguments.rounds)
            kept = [(us, n) for us, n in zip(taken, drafted, strict=True) if (n > 0) == (kind == "drafted")]
            micros = [us for us, _ in kept]
            each = f"{statistics.median(us / n for us, n in kept):.0f}" if kind == "drafted" else ""
            print(
                f"{kind:<14}{temperature:>5g}{min(micros):>10.0f}{statistics.median(micros):>8.0f}"
                f"{sum(drafted) / len(taken):>9.1f}{each:>26}"
            )


if __name__ == "__main__":
    main()
