"""Plain decoding here against llama-cpp-python's own `Llama`: same file, prompt, threads and tokens, interleaved.

    python scripts/compare_plain.py [-m MODEL] [--tokens 64] [--repeats 3] [--threads N]

Prints decode speed of both (prefill excluded, the first run of each dropped) and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from spec_local.llama.processor import physical_cores
from spec_local.models_manifest import resolve_model
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions

PROMPT = "List the planets of the solar system, each with one sentence about it."


def ours(engine: Engine, tokens: int) -> float:
    """Decode tokens/s of one greedy answer without speculation, its first token left out."""
    stream = engine.stream(PROMPT, sampling=Sampling(temperature=0, max_tokens=tokens), speculate=False)
    pieces = iter(stream)
    count, started = 0, 0.0
    for piece in pieces:
        if started:
            count += len(piece.tokens)
        else:
            started = time.perf_counter()
    return count / (time.perf_counter() - started)


def theirs(llama: object, prompt: list[int], tokens: int) -> float:
    """The same through `Llama.generate`."""
    stream = llama.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0)  # type: ignore[attr-defined]
    next(stream)
    started = time.perf_counter()
    for count, _token in enumerate(stream, 1):
        if count == tokens - 1:
            break
    return count / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=physical_cores())
    arguments = parser.parse_args()

    from llama_cpp import Llama

    path = resolve_model(arguments.target).path
    llama = Llama(str(path), n_ctx=2048, n_threads=arguments.threads, n_threads_batch=arguments.threads, verbose=False)
    options = EngineOptions(n_ctx=2048, threads=arguments.threads)
    with load(path, draft="none", options=options) as engine:
        ids, _ = engine.tokenize(Request(PROMPT))
        arms: dict[str, Callable[[], float]] = {
            "spec-local": lambda: ours(engine, arguments.tokens),
            "Llama": lambda: theirs(llama, ids, arguments.tokens),
        }
        speeds: dict[str, list[float]] = {name: [] for name in arms}
        for repeat in range(arguments.repeats + 1):
            for name, arm in arms.items():
                speed = arm()
                if repeat:
                    speeds[name].append(speed)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, values in speeds.items():
        print(f"{name:<11} {medians[name]:7.2f} tokens/s   ({min(values):.2f} to {max(values):.2f})")
    ratio = medians["spec-local"] / medians["Llama"]
    print(f"spec-local is {ratio:.2f} times as fast")
    print(json.dumps({"model": path.name, "threads": arguments.threads, "tokens_per_s": speeds, "ratio": ratio}))


if __name__ == "__main__":
    main()
