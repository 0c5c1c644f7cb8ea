"""Random conversations with random faults for as long as asked, and the design's invariants after every step.

    python scripts/soak.py --minutes 2                         # tiny models of every kind of memory
    python scripts/soak.py --minutes 10 -m smollm2-135m-instruct -d text

Every kind of model gets its turn: questions, edits, regenerations, cancels, other settings and parallel answers over
three slots of one engine, with faults in the target and in the draft (failed, stopped and starved passes, numbers that
are none). After each step the caches are compared with the texts, and finished answers with plain decoding. Prints one
JSON object: steps, faults injected, checks by invariant, violations. Exit status 1 where there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from soaking.ledger import Ledger
from soaking.world import World
from tiny_gguf import (
    write_convolutional,
    write_experts,
    write_hybrid,
    write_recurrent,
    write_transformer,
    write_windowed,
)

from spec_local.errors import ModelError
from spec_local.models_manifest import resolve_model
from spec_local.session.engine import Engine, load
from spec_local.session.options import EngineOptions

KINDS: dict[str, tuple[Callable[..., Path], int]] = {
    "transformer": (write_transformer, 24),
    "window": (write_windowed, 24),
    "experts": (write_experts, 24),
    "recurrent": (write_recurrent, 0),
    "hybrid": (write_hybrid, 0),
    "snapshots": (write_convolutional, 0),
}
"""Writer, and width of padded passes (0: not padded, which a running state cannot be with several sequences)."""
MOST_GROWTH = 64 << 20
"""Bytes that may come and go; a leak of one conversation's worth in a soak of minutes is more."""


@contextmanager
def engines(target: str, draft: str, pad: int, slots: int) -> Iterator[tuple[Engine, Engine]]:
    """The engine under test and the one that decodes plainly."""
    common: dict[str, Any] = {"n_ctx": 200, "threads": 1, "pad_width": pad, "batch_size": 32, "flash_attn": "off"}
    common |= dict.fromkeys(("cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v"), "f32")
    options = EngineOptions(**common, draft_n_ctx=150, draft_max=7, parallel=slots)
    plain = EngineOptions(**common)
    with load(target, draft=draft, options=options) as engine, load(target, draft="none", options=plain) as reference:
        yield engine, reference


def soak(
    minutes: float, seed: int, target: str | None = None, draft: str = "text", slots: int = 3, steps: int = 60
) -> Ledger:
    """Soak for `minutes`, each kind of model for `steps` steps in turn; stops at the first violations."""
    ledger = Ledger()
    with ExitStack() as stack:
        worlds: list[World] = []
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if target is not None:
            pair = stack.enter_context(engines(target, draft, 24, slots))
            worlds.append(World(*pair, exact=True, seed=seed, ledger=ledger))
        else:
            for kind, (write, pad) in KINDS.items():
                paths = [write(folder / f"{kind}-{i}.gguf", seed=3, near=0.1 * i) for i in range(2)]
                one = 1 if kind == "snapshots" else slots
                pair = stack.enter_context(engines(str(paths[0]), str(paths[1]), pad, one))
                worlds.append(World(*pair, exact=True, seed=seed, ledger=ledger))
        for world in worlds:
            stack.callback(world.close)
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end and not ledger.violations:
            for world in worlds:
                for _ in range(steps):
                    world.step()
                    if ledger.violations or time.monotonic() >= end:
                        break
                ledger.look()
    memory, handles = ledger.growth()
    if memory > MOST_GROWTH or handles > 4:
        ledger.violations.append(f"memory grew by {memory} bytes, handles by {handles}")
    return ledger


def main() -> int:
    """Run it; 1 where an invariant was violated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-m", "--target", help="a real model; without it tiny ones are written")
    parser.add_argument("-d", "--draft", default="text")
    parser.add_argument("-o", "--output", help="write the summary there too")
    arguments = parser.parse_args()
    try:  # names are those of the person's own models; only what the soak writes is kept apart
        target = arguments.target and str(resolve_model(arguments.target).path)
        draft = arguments.draft if arguments.draft in ("text", "none") else str(resolve_model(arguments.draft).path)
    except ModelError as error:
        parser.exit(3, f"{error}\n")
    os.environ.setdefault("SPEC_LOCAL_HOME", tempfile.mkdtemp(prefix="soak-"))
    summary = soak(arguments.minutes, arguments.seed, target, draft).as_dict()
    text = json.dumps({"seed": arguments.seed, "target": arguments.target or "tiny models", **summary}, indent=2)
    print(text)
    if arguments.output:
        Path(arguments.output).write_text(text + "\n", encoding="utf-8")
    return 1 if summary["violations"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
