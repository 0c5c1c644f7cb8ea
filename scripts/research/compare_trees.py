"""Two checkouts of this program against each other, in turns: time to first token, and tokens per second of one stream,
of four and of eight at once.

    python scripts/research/compare_trees.py /path/to/before /path/to/after --repeats 3

Each has been set up by its own scripts/bootstrap.py. Only the command line is used, which both share.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LONG = "How could this text be shortened? " + "The river is wide and slow. " * 40
SUBJECTS = ("rain", "bread", "clocks", "rust", "soap", "wind", "glass", "paper", "salt", "maps", "ink", "wool")


def run(tree: Path, *words: str) -> str:
    """Standard output of `spec-local WORDS` of a checkout."""
    program = tree / ".venv" / "bin" / "spec-local"
    return subprocess.run([program, *words], capture_output=True, text=True, check=True, cwd=tree).stdout


def one(tree: Path, common: list[str], tokens: int) -> dict[str, float]:
    """Time to first token and speed of one stream."""
    words = ["generate", "-p", LONG, "--json", "--max-tokens", str(tokens), *common]
    timings = json.loads(run(tree, *words))["timings"]
    return {"ttft_s": timings["ttft_s"], "tokens_per_s": timings["decode_tokens_per_s"]}


def many(tree: Path, common: list[str], parallel: int, prompts: int, tokens: int) -> float:
    """Tokens per second of a whole batch, prompts included."""
    with tempfile.TemporaryDirectory() as folder:
        source, summary = Path(folder) / "in.jsonl", Path(folder) / "summary.json"
        lines = [{"prompt": f"Write about {SUBJECTS[i % 12]} ({i}), please."} for i in range(prompts)]
        source.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        words = ["generate", "--input", str(source), "--output", str(Path(folder) / "out.jsonl")]
        words += ["--summary", str(summary), "--parallel", str(parallel), "--max-tokens", str(tokens), *common]
        run(tree, *words)
        figures = json.loads(summary.read_text(encoding="utf-8"))
    return float(figures["tokens_per_s"])


def main() -> None:
    """Measure in turns and print medians and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("-m", "--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("-d", "--draft", default="none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--parallel", default="4,8")
    arguments = parser.parse_args()
    common = ["-m", arguments.target, "-d", arguments.draft, "--temperature", "0", "--n-ctx", "1024"]
    trees = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(arguments.repeats):
        for name in sorted(trees, reverse=turn % 2 == 0):
            tree = trees[name]
            figures = one(tree, common, arguments.tokens)
            for parallel in map(int, arguments.parallel.split(",")):
                speed = many(tree, common, parallel, arguments.prompts, arguments.tokens)
                figures[f"{parallel} at once, tokens_per_s"] = speed
            for figure, value in figures.items():
                found.setdefault(figure, {}).setdefault(name, []).append(value)
            print(name, figures, file=sys.stderr, flush=True)
    for figure, sides in found.items():
        before, after = (statistics.median(sides[name]) for name in ("before", "after"))
        print(f"{figure}: before {before:.3f}, after {after:.3f}, after / before {after / before:.3f}")


if __name__ == "__main__":
    main()
