"""How long `spec-local --help` takes, and which heavy packages it loads (none, if all is well).

    python scripts/measure_startup.py [--runs 5]

The limit is 0.3 s from the start of the process to its end. The time of a Python that does nothing is printed beside
it: that much nobody can save. Ends with one line of JSON; the exit code is 1 where a heavy package is loaded, or where
the help takes longer than the limit and than three times a Python that does nothing (a slow machine is no fault).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_S, TIMES_PYTHON = 0.3, 3.0
HEAVY = ("llama_cpp", "textual", "numpy", "pydantic", "huggingface_hub", "jinja2", "rich")


def best_of(runs: int, command: Sequence[str]) -> float:
    """The shortest of several times, in seconds: the others are the same work with somebody else's in between."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return min(times)


def loaded(code: str) -> list[str]:
    """The heavy packages in memory after some code has run in a process of its own."""
    probe = f"import sys, json\n{code}\nprint(json.dumps(sorted(set(sys.modules) & set({HEAVY!r}))), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    return list(json.loads(done.stderr.splitlines()[-1]))


HELP = "from spec_local.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"


def measure(runs: int) -> dict[str, Any]:
    """All figures: seconds, and lists of packages."""
    program = Path(sys.executable).with_name("spec-local")
    return {
        "help_s": round(best_of(runs, [str(program), "--help"]), 4),
        "python_s": round(best_of(runs, [sys.executable, "-c", "pass"]), 4),
        "import_loads": loaded("import spec_local"),
        "help_loads": loaded(HELP),
    }


def faults(figures: dict[str, Any]) -> list[str]:
    """What is wrong with these figures of `measure`, a sentence each."""
    found = []
    for what, key in (("`import spec_local`", "import_loads"), ("`spec-local --help`", "help_loads")):
        if figures[key]:
            found.append(f"{what} loads {', '.join(figures[key])}.")
    if figures["help_s"] > max(LIMIT_S, TIMES_PYTHON * figures["python_s"]):
        found.append(f"`spec-local --help` takes {figures['help_s']} s.")
    return found


def main() -> int:
    """Measure and print; exit 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    figures = measure(parser.parse_args().runs)
    print(
        f"spec-local --help   {figures['help_s']} s (limit {LIMIT_S} s)\npython -c pass       {figures['python_s']} s"
    )
    print(f"loaded by import    {figures['import_loads'] or 'nothing heavy'}")
    print(f"loaded by --help    {figures['help_loads'] or 'nothing heavy'}")
    wrong = faults(figures)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    print(json.dumps(figures))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
