"""`models requantise`: another quantisation of a model that is on this machine, made by llama.cpp."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.interrupt import Interrupt
from spec_local.cli.loading import progress_bar
from spec_local.cli.models.output import print_json
from spec_local.cli.terminal import say
from spec_local.errors import ModelError, UsageError
from spec_local.llama.quantise import TYPES, quantise
from spec_local.models_manifest import Header, read_header, requantised_path, resolve_model, show_bytes
from spec_local.words import harmless

_BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_k": 6.6, "q5_1": 6.0, "q5_0": 5.5, "q5_k_m": 5.7}
_BITS |= {"q5_k_s": 5.5, "q4_1": 5.0, "q4_0": 4.6, "q4_k_m": 4.9, "q4_k_s": 4.6, "iq4_nl": 4.5, "iq4_xs": 4.3}
"""Bits a weight takes, roughly, the finer types of a mixture included; less for what is not listed."""


def run_requantise(arguments: Any) -> int:
    """Make the file, put it beside the model's others, and say how to use it."""
    kind = arguments.type.lower()
    if kind not in TYPES:
        raise UsageError(f"There is no type {arguments.type!r}.", f"Choose one of {', '.join(TYPES)}.")
    found = resolve_model(arguments.name)
    header = read_header(found.path)
    name = found.entry.name if found.entry is not None else found.path.stem.lower()
    target = requantised_path(name, kind)
    if target.exists() and target.samefile(found.path):
        raise UsageError(f"{found.path} is that file already.", "Choose another --type, or another source.")
    made = arguments.force or not target.is_file()
    if made:
        _make(header, target, kind, arguments.pure)
    size = target.stat().st_size
    spec = f"{name}:{kind}" if found.entry is not None else str(target)
    if arguments.json:
        print_json({"name": spec, "path": str(target), "bytes": size, "made": made})
        return ExitCode.OK
    say(target)
    print(harmless(f"Use it with -m {spec} or -d {spec} ({show_bytes(size)})."), file=sys.stderr)
    if header.quantisation not in ("F32", "F16", "BF16"):
        source = f"It was made of {header.quantisation}, not of the full weights"
        print(f"{source}: it is for speed, and no better than that.", file=sys.stderr)
    return ExitCode.OK


def _make(header: Header, target: Path, kind: str, pure: bool) -> None:
    expected = int(header.parameters * _BITS.get(kind, 4.2) / 8)
    there = target.parent
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if expected > free:
        raise ModelError(
            f"{target.name} takes about {show_bytes(expected)}, and {there} has {show_bytes(free)} left.",
            "Make room, or set SPEC_LOCAL_MODELS to a folder on a larger disk.",
        )
    about = f"{header.path.name} ({show_bytes(header.file_bytes)}, {header.quantisation})"
    print(harmless(f"Making {kind} of {about}, about {show_bytes(expected)}"), file=sys.stderr)
    started = time.monotonic()
    with Interrupt(_stop), progress_bar("quantising") as report:
        quantise(header.path, target, kind, lambda done: report(done, 1.0, target.name), pure=pure)
    print(f"Made in {time.monotonic() - started:.0f} s", file=sys.stderr)


def _stop() -> None:
    raise KeyboardInterrupt
