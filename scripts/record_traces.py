"""Record traces for replay: what a target answers, and what a draft model would have said at every position of it.

    python scripts/record_traces.py traces.npz --target TARGET.gguf --draft DRAFT.gguf --temperature 0 0.8

The target decodes plainly; the draft model then reads each answer in batches. A trace is saved after every answer, so a
run can be stopped at any time. Prompts are a JSON list of objects with "name", "kind" and "prompt".
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from replaying.trace_file import save

from spec_local.bench.trace_recording import draft_rows, record_trace
from spec_local.bench.traces import Trace
from spec_local.errors import SpecLocalError
from spec_local.sampling import Sampling
from spec_local.session.engine import load
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions

PROMPTS = Path(__file__).resolve().parent / "trace_prompts.json"


def main() -> None:
    """Record and save."""
    parser = argparse.ArgumentParser(description="Record traces for scripts/replay_traces.py.")
    parser.add_argument("output", type=Path, help="the .npz to write")
    parser.add_argument("--target", required=True, help="name or path of the target")
    parser.add_argument("--draft", required=True, help="name or path of the draft model")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--tokens", type=int, default=160, help="most tokens of an answer")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", nargs="+", help="names of prompts")
    arguments = parser.parse_args()
    prompts = [
        p
        for p in json.loads(arguments.prompts.read_text(encoding="utf-8"))
        if not arguments.only or p["name"] in arguments.only
    ]
    traces: list[Trace] = []
    options = EngineOptions(threads=arguments.threads, draft_length=1)
    with (
        load(arguments.target, draft=arguments.draft, options=options) as engine,
        draft_rows(engine) as model,
    ):
        for temperature in arguments.temperature:
            sampling = Sampling(temperature=temperature, seed=arguments.seed, max_tokens=arguments.tokens)
            for prompt in prompts:
                generation = engine.prepare(Request(prompt["prompt"], sampling, speculate=False))
                engine.loop.play(generation)
                name = prompt["name"] if temperature == 0 else f"{prompt['name']}-t{temperature:g}"
                traces.append(record_trace(model, generation.sequence, name, prompt["kind"]))
                save(arguments.output, traces)
                agreed = traces[-1].agree.mean()
                print(f"{name}: {len(traces[-1])} tokens, the draft agrees with {agreed:.0%}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except SpecLocalError as error:
        raise SystemExit(str(error)) from error
