"""How fast the kernels multiply, against ggml and against reading the weights: a table for docs/kernels.md.

    python scripts/kernel_speed.py [FORMAT ...] [--threads N] [--instructions "AVX2"] [--repeats 7]

Two matrices of the shapes of a 1.5B model, of random weights, several copies of them so that they come from memory. A
cell is time over the time that reading the weights alone takes, the best of some turns: ggml (repacked, where it
repacks the format and that is faster), then the kernels. On one thread it is processor time, which other programs do
not lengthen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np

from spec_local.errors import BackendError
from spec_local.llama.kernels import library
from spec_local.llama.kernels.trial import Trial, computer, processor

SHAPES = ((1536, 8960), (8960, 1536))
"""(values in a row, rows)."""
COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16)
BYTES = 200e6
"""Of all copies of a matrix."""


def reading_s(trials: list[Trial], threads: int, clock: Callable[[], float]) -> float:
    """Seconds to read the weights of all trials once."""
    whole = [trial.weights.reshape(-1) for trial in trials]
    words = [weights[: weights.size // 8 * 8].view(np.uint64) for weights in whole]
    parts = [part for all_words in words for part in np.array_split(all_words, threads)]
    started = clock()
    if threads == 1:
        list(map(np.bitwise_xor.reduce, parts))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(np.bitwise_xor.reduce, parts))
    return clock() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", default=list(library.FORMATS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--instructions", help="instead of the processor's best")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    registered = library.register(arguments.instructions)
    print(f"{registered.instructions}, {arguments.threads} thread(s): ggml → kernels, over reading the weights\n")
    print("| columns | " + " | ".join(map(str, COLUMNS)) + " | GB/s |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for kind in arguments.formats:
        with ExitStack() as stack:
            ggml, ours = (stack.enter_context(computer(d, arguments.threads)) for d in (processor(), registered.device))
            plain: list[Trial] = []
            size = 0.0
            while size < BYTES:
                for k, rows in SHAPES:
                    plain.append(stack.enter_context(Trial(kind, k, rows, COLUMNS)))
                    size += plain[-1].weights.nbytes
            try:
                again = (Trial(kind, *trial.shape, COLUMNS, repacked=True) for trial in plain)
                repacked = [stack.enter_context(trial) for trial in again]
            except BackendError:
                repacked = []
            clock = time.thread_time if arguments.threads == 1 else time.perf_counter
            floor = float("inf")
            cells = []
            for n in COLUMNS:
                sides = [(plain, ggml), (plain, ours), *([(repacked, ggml)] if repacked else [])]
                best = [float("inf")] * len(sides)
                for _ in range(arguments.repeats):
                    floor = min(floor, reading_s(plain, arguments.threads, clock))
                    for i, (trials, backend) in enumerate(sides):
                        best[i] = min(best[i], sum(trial.seconds(backend, n, clock) for trial in trials))
                theirs = min([best[0], *best[2:]])
                cells.append((theirs, best[1]))
            shown = [f"{theirs / floor:.2f} → {own / floor:.2f}" for theirs, own in cells]
            print(f"| {kind} | " + " | ".join(shown) + f" | {size / floor / 1e9:.1f} |", flush=True)


if __name__ == "__main__":
    main()
