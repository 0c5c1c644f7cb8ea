"""Tokens per second over workers that are further and further away, plain and speculative: what drafts hide.

    python scripts/worker_delay.py -m smollm2-135m-instruct -d text --delays 0 5 20 50
    python scripts/worker_delay.py -m qwen2.5-coder-1.5b-instruct:q8_0 -d qwen2.5-coder-0.5b-instruct:q4_0 --tokens 48

Workers are processes on this machine; a proxy in front of each adds the delay to every round trip. All texts are also
compared, in passes of one width, with those of this machine alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from slow_link import SlowLink

import spec_local
from spec_local.llama.probe import Probe
from spec_local.sampling import Sampling
from spec_local.session import loading
from spec_local.session.engine import Engine
from spec_local.session.options import EngineOptions

WIDTH = 8
PROMPTS = (
    "Repeat this list exactly three times: apple, pear, plum, cherry, grape, melon, lemon, fig.",
    "Write a Python function that returns the n-th Fibonacci number, then the same function with type hints.",
    "Explain in three sentences why the sky is blue.",
)


def start_workers(count: int, threads: int) -> list[tuple[subprocess.Popen[str], str]]:
    """Workers on free ports, ready to be used."""
    command = [sys.executable, "-m", "spec_local.cli.main", "worker", "--port", "0", "--threads", str(threads)]
    workers = []
    for _ in range(count):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("worker ready at "), line
        workers.append((process, line.split()[3].rstrip(":")))
    return workers


def measure(engine: Engine, speculate: bool, tokens: int, links: Sequence[SlowLink] = ()) -> dict[str, Any]:
    """Greedy answers to all prompts; medians over prompts, sums over rounds."""
    sampling = Sampling(temperature=0.0, max_tokens=tokens, min_tokens=tokens, seed=1)
    results, traffic = [], 0
    for prompt in PROMPTS:
        stream = engine.stream(prompt, sampling=sampling, speculate=speculate)
        before = None
        for _ in stream:
            if before is None:  # decoding alone: not what prefill moves
                before = sum(link.sent + link.received for link in links)
        traffic += sum(link.sent + link.received for link in links) - (before or 0)
        results.append(stream.result)
    rounds = sum(result.statistics.rounds for result in results)
    emitted = sum(len(result.token_ids) for result in results)
    return {
        "tokens_per_s": [result.statistics.tokens_per_s for result in results],
        "median_tokens_per_s": statistics.median(result.statistics.tokens_per_s or 0.0 for result in results),
        "tokens_per_pass": emitted / rounds,
        "drafted_per_pass": sum(result.statistics.drafted for result in results) / rounds,
        "bytes_per_token": traffic / emitted,
        "token_ids": [list(result.token_ids) for result in results],
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All delays; prints a line for each."""
    # A worker's processor backend does not repack weights; compare with kernels of the same kind.
    loading.require_backend = lambda devices=(): Probe(True, False, "")  # type: ignore[attr-defined]
    base = EngineOptions(n_ctx=arguments.n_ctx, threads=arguments.threads)
    padded = base.model_copy(update={"pad_width": WIDTH})
    with spec_local.load(arguments.target, draft=arguments.draft, options=padded) as engine:
        local = measure(engine, False, arguments.tokens)["token_ids"]
        model = engine.describe()
    workers = start_workers(arguments.workers, arguments.worker_threads)
    table = []
    print(f"{'delay':>6}{'plain':>9}{'speculative':>13}{'gain':>7}{'tokens/pass':>13}{'drafted/pass':>14}  text")
    try:
        for delay in arguments.delays:
            links = [SlowLink(endpoint, delay / 1e3) for _, endpoint in workers]
            rpc = tuple(link.endpoint for link in links)
            started = time.perf_counter()
            with spec_local.load(
                arguments.target, draft=arguments.draft, options=base.model_copy(update={"rpc": rpc})
            ) as engine:
                load_s = time.perf_counter() - started
                measure(engine, True, 8)  # graphs are built and buffers grown
                plain, fast = (measure(engine, speculate, arguments.tokens, links) for speculate in (False, True))
            with spec_local.load(
                arguments.target, draft=arguments.draft, options=padded.model_copy(update={"rpc": rpc})
            ) as engine:
                texts = [measure(engine, speculate, arguments.tokens)["token_ids"] for speculate in (False, True)]
            for link in links:
                link.close()
            gain = fast["median_tokens_per_s"] / plain["median_tokens_per_s"]
            table.append({"delay_ms": delay, "load_s": load_s, "plain": plain, "speculative": fast, "gain": gain})
            table[-1]["same_text_padded"] = same = [text == local for text in texts]
            print(
                f"{delay:>4g} ms{plain['median_tokens_per_s']:>9.2f}{fast['median_tokens_per_s']:>13.2f}{gain:>6.2f}×"
                f"{fast['tokens_per_pass']:>13.2f}{fast['drafted_per_pass']:>14.2f}  "
                f"{'as here' if all(same) else 'DIFFERS'}",
                flush=True,
            )
    finally:
        for process, _ in workers:
            process.terminate()
            process.wait()
    return {"model": model, "workers": arguments.workers, "tokens": arguments.tokens, "table": table}


def main() -> int:
    """Measure; exit 1 where a text differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--target", default="smollm2-135m-instruct")
    parser.add_argument("-d", "--draft", default="text")
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 5, 20, 50], metavar="MS")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--n-ctx", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1, help="here")
    parser.add_argument("--worker-threads", type=int, default=1)
    parser.add_argument("--json", metavar="PATH", help="also write everything here")
    arguments = parser.parse_args()
    found = run(arguments)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file)
    return 0 if all(all(row["same_text_padded"]) for row in found["table"]) else 1


if __name__ == "__main__":
    sys.exit(main())
