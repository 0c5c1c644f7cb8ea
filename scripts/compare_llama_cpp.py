"""spec-local against llama.cpp's own server speculation: same files, prompts, threads, temperatures and answer lengths.

    python scripts/compare_llama_cpp.py [-m TARGET] [-d DRAFT] [--threads N] [--workload NAME ...] [--temperature T ...]

The server (the Python package `xllamacpp`, in a virtual environment of its own, made here) has static settings: they
are swept first, with one prompt of each workload: draft lengths, `p_min`, its n-gram kinds, and above temperature 0 its
`probabilistic` acceptance. The best few of each workload then take turns with its plain decoding and with spec-local's
plain and default decoding, prompt by prompt. What counts is the ratio of decode speeds, reading of prompts excluded
on both sides, to the best setting *of each workload in hindsight*. Above temperature 0 every repeat has another seed,
since the two sides draw different texts. The last line is one JSON object; Ctrl-C shows what there is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from comparing.servers import Answer, Files, Pool, ServerError, environment
from comparing.sweep import PLAIN, Setting, settings

from spec_local.bench.arms import AUTO, make_arms
from spec_local.bench.curves import Clock, measure_curves
from spec_local.bench.player import Player
from spec_local.bench.results import geometric_mean
from spec_local.bench.speed_report import table
from spec_local.bench.workloads import BenchPrompt, Workload, choose_workloads
from spec_local.errors import SpecLocalError
from spec_local.llama.processor import physical_cores
from spec_local.paths import cache_folder
from spec_local.sampling.params import Sampling
from spec_local.session.engine import Engine, load
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions
from spec_local.speculation.statistics import summarise

OURS_PLAIN, OURS_AUTO = "spec-local plain", "spec-local auto"
THEIRS_PLAIN = "llama.cpp plain"
N_CTX = 2048


@dataclass
class Found:
    """Decode speeds of one workload at one temperature: name of the arm → tokens/s, one for each prompt and repeat."""

    speeds: dict[str, list[float]] = field(default_factory=dict)
    same_text: list[bool] = field(default_factory=list)
    """For each answer of llama.cpp's plain decoding, whether spec-local's is the same text."""

    def median(self, arm: str) -> float:
        """Median speed of an arm."""
        return statistics.median(self.speeds[arm])

    def ratio(self, arm: str, to: str) -> float:
        """Median of the ratios of answers that were given one after the other."""
        return statistics.median(a / b for a, b in zip(self.speeds[arm], self.speeds[to], strict=False))

    def best(self) -> str:
        """The fastest static setting of the server, plain decoding among them."""
        theirs = [arm for arm in self.speeds if arm not in (OURS_PLAIN, OURS_AUTO)]
        return max(theirs, key=self.median)


class Comparison:
    """Both sides, ready to answer."""

    def __init__(
        self, arguments: argparse.Namespace, engine: Engine, pool: Pool, clock: Clock = time.perf_counter
    ) -> None:
        self.arguments = arguments
        self.engine = engine
        self.pool = pool
        curves = measure_curves(engine, clock=clock)
        arms = make_arms(tuple(engine.speculator.drafters), (), alone=False)
        self._arms = {OURS_PLAIN: arms[0], OURS_AUTO: arms[-1]}
        assert arms[-1].name == AUTO, "spec-local has something to draft with"
        self._player = Player(engine, arms, curves, clock)
        self.sweep: dict[tuple[float, str], dict[str, float]] = {}
        """(temperature, workload) → setting → tokens/s of the sweep."""
        self.found: dict[tuple[float, str], Found] = {}
        warm_up = BenchPrompt("warm-up", "Hello")
        self._player.read(warm_up)
        for arm in arms:
            self._player.play(arm, warm_up, Sampling(temperature=0, max_tokens=8, min_tokens=8))

    def sampling(self, temperature: float, seed: int) -> Sampling:
        """The same numbers as in `request`, none left to a recommendation."""
        tokens = self.arguments.max_tokens
        return Sampling(
            temperature=temperature, top_k=40, top_p=0.95, min_p=0.05, seed=seed, max_tokens=tokens, min_tokens=tokens
        )

    def request(self, prompt: BenchPrompt, temperature: float, tokens: int, seed: int) -> dict[str, Any]:
        """For the server: the very tokens spec-local reads, as text, and the same sampling; no end before its time."""
        ids, _ = self.engine.tokenize(Request(prompt.prompt, system=prompt.system))
        return {
            "prompt": self.engine.vocabulary.text(ids, special=True),
            "n_predict": tokens,
            "temperature": temperature,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "seed": seed,
            "ignore_eos": True,
            "cache_prompt": False,
        }

    def ours(self, arm: str, prompt: BenchPrompt, temperature: float, seed: int) -> tuple[float, str]:
        """Tokens/s and text of one of spec-local's arms; the prompt was read."""
        played = self._player.play(self._arms[arm], prompt, self.sampling(temperature, seed))
        speed = summarise(played.rounds).tokens_per_s
        assert speed is not None
        return speed, self.engine.vocabulary.text(list(played.tokens))

    def theirs(self, setting: Setting, prompt: BenchPrompt, temperature: float, tokens: int, seed: int) -> Answer:
        """One answer of the server."""
        return self.pool.get(setting).ask(self.request(prompt, temperature, tokens, seed))

    # -- 1. which settings are worth a closer look -------------------------------------------------------------------

    def sweep_all(self, workloads: Sequence[Workload], candidates: dict[float, list[Setting]]) -> Iterator[str]:
        """Every setting on the first prompt of every workload; yields what is done next."""
        for temperature, found in candidates.items():
            for setting in found:
                for workload in workloads:
                    yield f"sweep, temperature {temperature:g}: {setting.name} on {workload.title}"
                    prompt, tokens, seed = workload.prompts[0], self.arguments.sweep_tokens, self.arguments.seed
                    speeds = self.sweep.setdefault((temperature, workload.name), {})
                    try:
                        speeds[setting.name] = self.theirs(setting, prompt, temperature, tokens, seed).tokens_per_s
                    except ServerError as error:
                        print(f"note: {error}", file=sys.stderr)
                        break

    def finalists(self, workload: Workload, candidates: list[Setting], temperature: float) -> list[Setting]:
        """The settings that did best on this workload in the sweep."""
        speeds = self.sweep.get((temperature, workload.name), {})
        known = [setting for setting in candidates if setting.name in speeds]
        return sorted(known, key=lambda s: -speeds[s.name])[: self.arguments.finalists]

    # -- 2. the comparison ---------------------------------------------------------------------------------------------

    def compare(self, workloads: Sequence[Workload], candidates: dict[float, list[Setting]]) -> Iterator[str]:
        """The finalists, plain decoding and spec-local in turn; yields what is done next."""
        for workload in workloads:
            for temperature, swept in candidates.items():
                chosen = [PLAIN, *self.finalists(workload, swept, temperature)]
                found = self.found.setdefault((temperature, workload.name), Found())
                turn = 0
                for repeat in range(self.arguments.repeats):
                    for prompt in workload.prompts[: self.arguments.per_workload]:
                        yield f"{workload.title}, temperature {temperature:g}, repeat {repeat + 1}: {prompt.name}"
                        seed = self.arguments.seed + (repeat if temperature > 0 else 0)
                        self._turns(prompt, temperature, seed, chosen, found, turn)
                        turn += 1

    def _turns(
        self, prompt: BenchPrompt, temperature: float, seed: int, chosen: Sequence[Setting], found: Found, turn: int
    ) -> None:
        self._player.read(prompt)
        texts: dict[str, str] = {}
        speeds: dict[str, float] = {}

        def ours(arm: str) -> None:
            speeds[arm], texts[arm] = self.ours(arm, prompt, temperature, seed)

        def theirs(setting: Setting) -> None:
            answer = self.theirs(setting, prompt, temperature, self.arguments.max_tokens, seed)
            name = THEIRS_PLAIN if setting is PLAIN else setting.name
            speeds[name], texts[name] = answer.tokens_per_s, answer.text

        for setting in chosen:  # those that must be loaded load before anybody is timed
            self.pool.get(setting)
        acts: list[Callable[[], None]] = [partial(ours, arm) for arm in (OURS_PLAIN, OURS_AUTO)]
        acts += [partial(theirs, setting) for setting in chosen]
        at = turn % len(acts)
        for act in acts[at:] + acts[:at]:
            act()
        for name, speed in speeds.items():
            found.speeds.setdefault(name, []).append(speed)
        found.same_text.append(texts[OURS_PLAIN] == texts[THEIRS_PLAIN])

    # -- 3. what came of it --------------------------------------------------------------------------------------------

    def summary(self) -> list[dict[str, Any]]:
        """For each temperature its workloads with their ratios, and the geometric means."""
        told = []
        for temperature in sorted({t for t, _ in self.found}):
            rows = []
            for (t, name), found in self.found.items():
                if t != temperature or not found.speeds:
                    continue
                best = found.best()
                row: dict[str, Any] = {
                    "workload": name,
                    "tokens_per_s": {arm: found.median(arm) for arm in found.speeds},
                    "answers": len(found.same_text),
                    "best_setting": best,
                    "auto_vs_best": found.ratio(OURS_AUTO, best),
                    "auto_vs_their_plain": found.ratio(OURS_AUTO, THEIRS_PLAIN),
                    "auto_vs_our_plain": found.ratio(OURS_AUTO, OURS_PLAIN),
                    "best_vs_their_plain": found.ratio(best, THEIRS_PLAIN),
                    "our_plain_vs_their_plain": found.ratio(OURS_PLAIN, THEIRS_PLAIN),
                    "same_text": sum(found.same_text),
                }
                rows.append(row)
            names = [key for key in rows[0] if "_vs_" in key] if rows else []
            means = {key: geometric_mean([row[key] for row in rows]) for key in names}
            if means:
                means["gain_vs_best_gain"] = means["auto_vs_our_plain"] / means["best_vs_their_plain"]
            told.append({"temperature": temperature, "workloads": rows, "geometric_means": means})
        return told

    def report(self) -> str:
        """Tables for a person."""
        parts = []
        for told in self.summary():
            rows = [["", "our plain", "our auto", "their plain", "their best", "setting", "auto/best", "auto/plain"]]
            for row in told["workloads"]:
                speeds = row["tokens_per_s"]
                ours = [f"{speeds[name]:.1f}" for name in (OURS_PLAIN, OURS_AUTO, THEIRS_PLAIN, row["best_setting"])]
                rows.append(
                    [row["workload"], *ours, row["best_setting"], f"{row['auto_vs_best']:.2f}",
                     f"{row['auto_vs_their_plain']:.2f}"]
                )  # fmt: skip
            means = told["geometric_means"]
            if means:
                rows.append(
                    ["geometric mean", "", "", "", "", "", f"{means['auto_vs_best']:.2f}",
                     f"{means['auto_vs_their_plain']:.2f}"]
                )  # fmt: skip
                words = (
                    f"Against each side's own plain decoding: auto {means['auto_vs_our_plain']:.2f}×, llama.cpp's best "
                    f"settings {means['best_vs_their_plain']:.2f}×. Our plain decoding is "
                    f"{means['our_plain_vs_their_plain']:.2f}× theirs (another build of llama.cpp)."
                )
                parts.append(f"Temperature {told['temperature']:g}, tokens/s\n{table(rows, left=(0, 5))}\n  {words}")
        return "\n\n".join(parts)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--target", default="qwen2.5-coder-1.5b-instruct:q8_0", metavar="NAME|PATH")
    parser.add_argument("-d", "--draft", default="qwen2.5-coder-0.5b-instruct:q4_0", metavar="NAME|PATH")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--workload", action="append", default=[], metavar="NAME")
    parser.add_argument("--temperature", action="append", type=float, default=[], help="default: 0 and 0.8")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--per-workload", type=int, default=1, help="prompts of each workload")
    parser.add_argument("--sweep-tokens", type=int, default=32, help="tokens of each answer of the sweep")
    parser.add_argument("--lengths", default="2,3,5,7", help="draft lengths to sweep")
    parser.add_argument("--p-min", default="0,0.5,0.75", help="values of p_min to sweep")
    parser.add_argument("--no-ngram", action="store_true", help="leave the n-gram kinds out of the sweep")
    parser.add_argument("--finalists", type=int, default=3, help="settings per workload that go on from the sweep")
    parser.add_argument("--servers", type=int, default=0, help="servers in memory at a time (default: what fits)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--venv", type=Path, default=cache_folder() / "xllamacpp", help="the server's environment")
    return parser.parse_args()


def main() -> int:
    """Sweep, compare, print."""
    arguments = parse()
    temperatures = arguments.temperature or [0.0, 0.8]
    lengths = [int(n) for n in arguments.lengths.split(",")]
    p_mins = [float(p) for p in arguments.p_min.split(",")]
    try:
        python = environment(arguments.venv)
        workloads = choose_workloads(arguments.workload)
        options = EngineOptions(n_ctx=N_CTX, threads=arguments.threads)
        with load(arguments.target, draft=arguments.draft, options=options) as engine:
            return run(arguments, engine, python, workloads, temperatures, lengths, p_mins)
    except (SpecLocalError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1


def run(
    arguments: argparse.Namespace,
    engine: Engine,
    python: Path,
    workloads: Sequence[Workload],
    temperatures: Sequence[float],
    lengths: Sequence[int],
    p_mins: Sequence[float],
) -> int:
    """Everything behind the loading."""
    described = engine.describe()
    draft = described["draft_path"]
    target = Path(described["target_path"])
    files = Files(target, None if draft is None else Path(draft), arguments.threads, N_CTX)
    size = sum(path.stat().st_size for path in (files.target, files.draft) if path is not None)
    room = arguments.servers or max(1, min(8, int(psutil.virtual_memory().available / (1.3 * size)) - 1))
    warm_up = {"prompt": "Hello", "n_predict": 8, "ignore_eos": True, "temperature": 0.0, "cache_prompt": False}
    pool = Pool(python, files, room, warm_up)
    candidates = {t: settings(lengths, p_mins, t, draft is not None, not arguments.no_ngram) for t in temperatures}
    complete = False
    comparison: Comparison | None = None
    started = time.perf_counter()
    try:
        comparison = Comparison(arguments, engine, pool)
        for what in comparison.sweep_all(workloads, candidates):
            note(started, what)
        for what in comparison.compare(workloads, candidates):
            note(started, what)
        complete = True
    except KeyboardInterrupt:
        pass
    finally:
        pool.close()
    if comparison is None:
        return 130
    print("\n" + comparison.report())
    told = {
        "target": described["target"],
        "draft": described["draft"],
        "threads": arguments.threads,
        "tokens": arguments.max_tokens,
        "repeats": arguments.repeats,
        "seed": arguments.seed,
        "complete": complete,
        "temperatures": comparison.summary(),
        "sweep": [
            {"temperature": t, "workload": name, "tokens_per_s": speeds}
            for (t, name), speeds in comparison.sweep.items()
        ],
    }
    print(json.dumps(told))
    return 0 if complete else 130


def note(started: float, what: str) -> None:
    """One line of progress on a terminal, and in a log one for each new thing."""
    minutes, seconds = divmod(int(time.perf_counter() - started), 60)
    end = "\x1b[K\r" if sys.stderr.isatty() else "\n"
    print(f"{minutes}:{seconds:02d} {what}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
