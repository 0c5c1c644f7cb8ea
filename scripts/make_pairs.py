"""Make the model files of the measured pairs from the default pair's, by requantising.

    python scripts/make_pairs.py [--again]

Pair A: the 1.5B target in Q8_0 and the 0.5B draft in Q4_0. Its target is a cost model, not a better model: it has the
quality of the Q4_K_M file it is made from, and passes that are bound by memory, as those of large targets are on most
machines. Pair B is the default pair as it is pulled; pair C its target with pair A's draft. About 20 seconds, 2.3 GB.
"""

from __future__ import annotations

import argparse
import sys
import time

from spec_local.errors import SpecLocalError
from spec_local.llama.quantise import quantise
from spec_local.models_manifest import requantised_path, resolve_model

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
MADE = ((TARGET, "q8_0"), (DRAFT, "q4_0"))
PAIRS = (
    ("A", f"{TARGET}:q8_0", f"{DRAFT}:q4_0"),
    ("B", TARGET, DRAFT),
    ("C", TARGET, f"{DRAFT}:q4_0"),
)


def make(name: str, kind: str, again: bool) -> None:
    """Make one file, every tensor of it in that type, unless it is there already."""
    path = requantised_path(name, kind)
    if path.is_file() and not again:
        print(f"{path} is there already")
        return
    started = time.perf_counter()

    def show(done: float) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{name}:{kind} {done:4.0%}")
            sys.stderr.flush()

    quantise(resolve_model(name).path, path, kind, show, pure=True)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB in {time.perf_counter() - started:.0f} s")


def main() -> int:
    """Make all files; say how to use them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="make files anew that are there")
    again = parser.parse_args().again
    try:
        for name, kind in MADE:
            make(name, kind, again)
    except SpecLocalError as error:
        print(error, file=sys.stderr)
        return 1
    for letter, target, draft in PAIRS:
        print(f"pair {letter}: spec-local bench -m {target} -d {draft}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
