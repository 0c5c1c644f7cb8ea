"""How long does somebody wait for the next token while somebody else's long prompt is read?

Two streams over one engine, from two threads: in the middle of the first one, the second comes with a long prompt.
Printed are the first stream's waits between two pieces before, during and after that, in units of its usual round.

    python scripts/research/two_streams.py -m qwen2.5-coder-1.5b-instruct --prompt-tokens 3000
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from itertools import pairwise

from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions

SENTENCE = "The quick brown fox jumps over the lazy dog near the river bank at noon. "


def waits(engine: Engine, prompt_tokens: int, warm_up: int) -> dict[str, object]:
    """Play it once.

    Returns:
        Seconds: the usual round (median before), the longest and the 99th percentile of the waits during the reading,
        and how long the second stream waited for its first token.
    """
    times: list[float] = []
    first_token: list[float] = []
    sampling = Sampling(temperature=0.0, seed=1, max_tokens=100_000, min_tokens=100_000)
    writing = engine.stream("Count from one upwards, in words, without end.", sampling=sampling)

    def read() -> None:
        asked = time.perf_counter()
        long = engine.stream(SENTENCE * (prompt_tokens // 16), sampling=Sampling(temperature=0.0, max_tokens=8))
        next(long)
        first_token.extend((asked, time.perf_counter()))
        long.close()

    reader = threading.Thread(target=read)
    for piece in writing:
        if piece.tokens:
            times.append(time.perf_counter())
        if len(times) == warm_up:
            reader.start()
        if first_token:
            break
    writing.close()
    reader.join()
    begun, ended = first_token
    gaps = [(b, b - a) for a, b in pairwise(times)]
    before = [gap for at, gap in gaps[4:] if at < begun]
    during = sorted(gap for at, gap in gaps if begun < at <= ended)
    usual = statistics.median(before)
    return {
        "usual round s": usual,
        "longest wait / usual": during[-1] / usual,
        "99th percentile / usual": during[int(0.99 * (len(during) - 1))] / usual,
        "median during / usual": statistics.median(during) / usual,
        "rounds while reading": len(during),
        "first token of the long one s": ended - begun,
    }


def main() -> None:
    """Run it and print one line a run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("-d", "--draft", default="none")
    parser.add_argument("--prompt-tokens", type=int, default=3000)
    parser.add_argument("--warm-up", type=int, default=40, help="tokens written before the long prompt comes")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    options = EngineOptions(n_ctx=4096, parallel=2)
    with load(arguments.target, draft=arguments.draft, options=options) as engine:
        for _ in range(arguments.repeats):
            for slot in range(2):
                engine.loop.call(lambda slot=slot: engine.speculator.release(slot))  # type: ignore[misc]
            figures = waits(engine, arguments.prompt_tokens, arguments.warm_up)
            print(", ".join(f"{name} {value:.3g}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
