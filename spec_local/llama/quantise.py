"""Make another quantisation of a model file with llama.cpp, in a child process.

llama.cpp's quantiser cannot be stopped, and ends the process where an assertion fails; a child can be, and may. What it
logs for every tensor is the progress.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from spec_local.errors import BackendError, ModelError, UsageError

QuantiseProgress = Callable[[int, int, str], None]
"""Called with (tensors done, tensors in all, name of the tensor); may raise to stop."""

FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12,
    "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "bf16": 32,
}  # fmt: skip
"""Names of the types that need no importance matrix, and llama.cpp's `llama_ftype` of each."""

_TENSOR = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]\s*(\S+)")


def quantise(
    source: Path, target: Path, type: str, progress: QuantiseProgress | None = None, *, pure: bool = False
) -> None:
    """Write `source` in another type; `target` appears whole or not at all.

    Args:
        source: A GGUF file; of a split model its first file.
        target: Where to.
        type: One of `FILE_TYPES`.
        progress: Told before every tensor.
        pure: This type for every matrix, instead of llama.cpp's mixture with better ones where it matters most.

    Raises:
        UsageError: There is no such type.
        ModelError: The file cannot be quantised, or not written.
        BackendError: llama.cpp does not run here.
    """
    if type not in FILE_TYPES:
        raise UsageError(f"{type!r} is no type a model can be made in.", f"Choose one of {', '.join(FILE_TYPES)}.")
    part = target.with_name(f"{target.name}.part")
    command = [sys.executable, "-m", __name__, str(source), str(part), type, str(int(pure))]
    last: list[str] = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            assert child.stdout is not None
            for raw in child.stdout:
                line = raw.decode("utf-8", "replace").strip()
                tensor = _TENSOR.match(line)
                if tensor and progress is not None:
                    progress(int(tensor[1]) - 1, int(tensor[2]), tensor[3])
                elif line:
                    last = [*last[-9:], line]
            status = child.wait()
        finally:
            child.kill()
            child.wait()
        if status != 0:
            said = next((line for line in reversed(last) if "failed" in line or "error" in line.lower()), "")
            said = said or (last[-1] if last else f"it ended with status {status}")
            raise ModelError(f"llama.cpp cannot make {type} of {source}: {said}.".replace("..", "."))
        part.replace(target)
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)


def _quantise_here(source: str, target: str, type: str, pure: bool) -> int:
    """The child's work; returns its exit status."""
    from spec_local.llama.library import llama, set_verbose

    set_verbose(True)
    try:
        library = llama()
    except BackendError as error:
        print(error.message)
        return 1
    params = library.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[type]
    params.pure = pure
    params.allow_requantize = True
    params.nthread = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    encoded = (os.fsencode(path) if os.name != "nt" else path.encode() for path in (source, target))
    return int(library.llama_model_quantize(*encoded, params))


if __name__ == "__main__":
    raise SystemExit(min(1, abs(_quantise_here(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "1"))))
