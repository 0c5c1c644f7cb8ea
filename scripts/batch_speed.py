"""Throughput of several sequences at once against one at a time, and whether the answers are the same.

    python scripts/batch_speed.py -m TARGET -d DRAFT --parallel 1,4,8 --prompts 64 --pad-width 8
    python scripts/batch_speed.py -m TARGET -d DRAFT --parallel 1,4,8 --prompts 64 --llama-cpp

With `--pad-width` all target passes have one width and one sequence each, so the answers of all arms must be equal
token by token; without it near-ties may fall otherwise. `--llama-cpp` has llama.cpp's own server (`scripts/comparing`,
in a virtual environment of its own) answer the same prompts with as many slots, plainly and, with `--server-drafts`,
with drafts of three tokens; there every answer has the same number of tokens. Prints a line for each arm and, last, one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comparing.servers import Files, Server, ServerError, environment
from comparing.sweep import PLAIN, Setting

from spec_local.batch.records import BadLine, Item
from spec_local.batch.requests import Recipe
from spec_local.batch.runner import Runner
from spec_local.llama.processor import physical_cores
from spec_local.paths import cache_folder
from spec_local.sampling import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions
from spec_local.speculation.statistics import Tally

SHARED = (
    "You answer questions about everyday things in a few plain sentences, for readers who know nothing of the subject. "
)
SUBJECTS = ("rain", "bread", "clocks", "rust", "soap", "wind", "glass", "paper", "salt", "maps", "ink", "wool", "tides")
QUESTIONS = ("What is the history of", "How does one explain", "List three facts about", "Write a short poem about")
DRAFT_3 = Setting("draft 3", ("draft_simple",), 3)


def make_items(arguments: argparse.Namespace) -> list[Item]:
    """Questions that share a system message."""
    most = arguments.max_tokens
    sampling = {"temperature": arguments.temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "max_tokens": most}
    if arguments.llama_cpp:
        sampling["min_tokens"] = most
    texts = [f"{QUESTIONS[i % 4]} {SUBJECTS[i % 13]}, please? ({i})" for i in range(arguments.prompts)]
    return [Item(i, i, text, SHARED, {**sampling, "seed": i}) for i, text in enumerate(texts, 1)]


def measure(engine: Engine, items: list[Item]) -> dict[str, Any]:
    """One arm of spec-local: speed, and the answers by item."""
    slots = engine.options.parallel
    source: Iterator[Item | BadLine] = iter(items)
    started = time.perf_counter()
    outcomes = list(Runner(engine, slots, Recipe(Sampling()).request).run(source))
    seconds = time.perf_counter() - started
    tally, cached = Tally(), 0
    answers: dict[int, tuple[int, ...]] = {}
    for outcome in outcomes:
        assert outcome.result is not None, outcome.error
        tally.add(outcome.result.rounds)
        cached += outcome.result.cached_tokens
        answers[outcome.line] = outcome.result.token_ids
    figures = tally.statistics()
    return {
        "arm": "spec-local",
        "parallel": slots,
        "seconds": seconds,
        "tokens": figures.emitted,
        "tokens_per_s": figures.emitted / seconds,
        "decode_tokens_per_s": figures.throughput_tokens_per_s,
        "tokens_per_pass": figures.tokens_per_pass,
        "acceptance_rate": figures.acceptance_rate,
        "cached_tokens": cached,
        "answers": answers,
    }


def requests(engine: Engine, items: list[Item]) -> list[dict[str, Any]]:
    """The same prompts, token by token, and sampling for llama.cpp's server."""
    made = []
    for item in items:
        assert isinstance(item.prompt, str)
        ids, _ = engine.tokenize(Request(item.prompt, system=item.system))
        sampling = {name: item.sampling[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
        made.append(
            {
                "prompt": engine.vocabulary.text(ids, special=True),
                "n_predict": item.sampling["max_tokens"],
                "ignore_eos": True,
                "cache_prompt": True,
                **sampling,
            }
        )
    return made


def measure_server(python: Path, files: Files, setting: Setting, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """One arm of llama.cpp's server."""
    server = Server(python, files, setting)
    try:
        server.ask({**asked[0], "n_predict": 4})
        answers, seconds = server.ask_all(asked)
    finally:
        server.close()
    tokens, drafted = sum(answer.tokens for answer in answers), sum(answer.drafted for answer in answers)
    return {
        "arm": f"llama.cpp {setting.name}",
        "parallel": files.slots,
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "acceptance_rate": sum(answer.accepted for answer in answers) / drafted if drafted else None,
    }


def describe(arm: dict[str, Any], first: dict[str, Any]) -> str:
    """A line for a person; `first` is what the arm is compared with."""
    rate, passes = arm["acceptance_rate"], arm.get("tokens_per_pass")
    parts = [
        f"{arm['arm']:18} {arm['parallel']:3} at once: {arm['tokens_per_s']:7.1f} tokens/s",
        f"{arm['tokens_per_s'] / first['tokens_per_s']:.2f}×",
        *([] if passes is None else [f"{passes:.2f} tokens per pass"]),
        "nothing drafted" if rate is None else f"{rate:.0%} accepted",
    ]
    if "answers" in arm:
        equal = sum(arm["answers"][line] == first["answers"][line] for line in first["answers"])
        parts.append(f"{equal}/{len(first['answers'])} answers equal to those of the first arm")
    return ", ".join(parts)


def main() -> int:
    """Measure every arm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--target", required=True)
    parser.add_argument("-d", "--draft", default="none")
    parser.add_argument("--parallel", default="1,4,8")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--draft-length", default="auto")
    parser.add_argument("--n-ctx", type=int, default=512)
    parser.add_argument("--pad-width", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--llama-cpp", action="store_true", help="measure llama.cpp's own server too")
    parser.add_argument("--server-drafts", action="store_true", help="and that with drafts")
    parser.add_argument("--venv", type=Path, default=cache_folder() / "xllamacpp", help="the server's environment")
    arguments = parser.parse_args()
    length = arguments.draft_length
    items = make_items(arguments)
    python = environment(arguments.venv) if arguments.llama_cpp else None
    arms: list[dict[str, Any]] = []

    def done(arm: dict[str, Any]) -> None:
        arms.append(arm)
        print(describe(arm, arms[0]), flush=True)

    for slots in map(int, arguments.parallel.split(",")):
        options = EngineOptions(
            n_ctx=arguments.n_ctx,
            parallel=slots,
            pad_width=arguments.pad_width,
            threads=arguments.threads,
            draft_length="auto" if length == "auto" else int(length),
        )
        with load(arguments.target, draft=arguments.draft, options=options) as engine:
            done(measure(engine, items))
            asked, described = requests(engine, items), engine.describe()
        if python is not None:
            target, draft = (
                None if path is None else Path(path) for path in (described["target_path"], described["draft_path"])
            )
            assert target is not None
            files = Files(target, draft, arguments.threads or physical_cores(), arguments.n_ctx, slots)
            for setting in [PLAIN, DRAFT_3] if draft is not None and arguments.server_drafts else [PLAIN]:
                try:
                    done(measure_server(python, files, setting, asked))
                except ServerError as error:
                    print(f"llama.cpp {setting.name}, {slots} at once: {error}", flush=True)
    print(json.dumps([{name: value for name, value in arm.items() if name != "answers"} for arm in arms]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
