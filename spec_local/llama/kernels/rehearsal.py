"""The first use of the kernels, in a child process, because its outcome may be a crash.

A child compares products of every format with ggml's, and decodes a few tokens of a tiny model with and without them.
What it found is remembered for as long as library, llama.cpp and processor stay what they are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

from spec_local.errors import BackendError, SpecLocalError
from spec_local.llama.kernels.library import FORMATS, Taken, computed
from spec_local.llama.kernels.trial import check
from spec_local.llama.probe import machine_key
from spec_local.llama.signals import signal_name
from spec_local.paths import cache_folder

TIMEOUT_S = 120
NO_CHILD = "no child process could be started to try them"
_TOKENS = (72, 101, 108, 108, 111)
_LOGITS_TOLERANCE = 0.02
"""Of the largest logit: activations are rounded to eight bits, where a last bit can decide."""


def rehearse(path: Path, *, fresh: bool = False) -> str:
    """What is wrong with the library at `path`, as a clause; empty where nothing is.

    Args:
        path: The library.
        fresh: Ask again although the answer is known.
    """
    try:
        content = sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"their library cannot be read: {error.strerror}"
    remembered = cache_folder() / "probes" / f"kernels-{machine_key(content)}.json"
    if not fresh:
        try:
            return str(json.loads(remembered.read_text(encoding="utf-8"))["problem"])
        except (OSError, ValueError, TypeError, KeyError):
            pass
    problem = _run_child(path)
    if problem == NO_CHILD:
        return problem  # which says nothing of the library
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        remembered.write_text(json.dumps({"problem": problem}), encoding="utf-8")
    except OSError:
        pass  # then the next start asks again
    return problem


def _run_child(path: Path) -> str:
    command = [sys.executable, "-m", "spec_local.llama.kernels.rehearsal", str(path)]
    try:
        child = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return f"their first use did not end within {TIMEOUT_S} s"
    except OSError:
        return NO_CHILD
    if child.returncode == 0:
        return ""
    if child.returncode < 0:
        return f"their first use dies with {signal_name(child.returncode)}"
    said = child.stderr.decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else f"their first use ends with status {child.returncode}"


def perform() -> None:
    """The child's part: raises or dies where something is wrong."""
    from spec_local.llama.tiny_model import write_tiny_model

    check(threads=2)
    everything: Taken = tuple((number, -1) for number in FORMATS.values())
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"
        write_tiny_model(model, "Q8_0")
        plain = _decode(model, ())
        before = computed()
        ours = _decode(model, everything)
    if computed() == before:
        raise BackendError("llama.cpp does not use them")
    apart = max(abs(a - b) for a, b in zip(plain, ours, strict=True))
    if not apart <= _LOGITS_TOLERANCE * max(map(abs, plain)):
        raise BackendError(f"logits of a tiny model differ by {apart:.2g}")


def _decode(path: Path, kernels: Taken) -> list[float]:
    """Logits of the last of a few tokens of a model."""
    from spec_local.language_model import Chunk
    from spec_local.llama.context import Context
    from spec_local.llama.model import Model, Offload
    from spec_local.llama.model_context import ContextOptions

    model = Model(path, Offload(devices=("none",), repack=False))
    context = Context(model, ContextOptions(n_ctx=64, n_batch=32, kernels=kernels))
    (logits,) = context.decode([Chunk(0, list(_TOKENS), 1)])
    values = [float(value) for value in logits[0]]
    context.close()
    model.close()
    return values


if __name__ == "__main__":
    from spec_local.llama.kernels import library

    library.use(Path(sys.argv[1]))
    try:
        perform()
    except SpecLocalError as failure:
        print(failure.message, file=sys.stderr)
        raise SystemExit(1) from None
