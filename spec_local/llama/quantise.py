"""Write a model file in another quantisation. Done in a child process: a crash in native code becomes a sentence.

Requantising an already quantised file loses a little more than quantising the original would have: good enough for a
draft model, whose errors cost speed and never change the text, and for measuring what a quantisation costs here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from spec_local.errors import BackendError, ModelError, UsageError
from spec_local.llama.signals import signal_name

TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 32,
    "q8_0": 7,
    "q6_k": 18,
    "q5_k_m": 17,
    "q5_k_s": 16,
    "q5_1": 9,
    "q5_0": 8,
    "q4_k_m": 15,
    "q4_k_s": 14,
    "q4_1": 3,
    "q4_0": 2,
    "iq4_nl": 25,
    "iq4_xs": 30,
    "q3_k_m": 12,
    "q3_k_s": 11,
    "q2_k": 10,
}
"""Quantisations and their llama.cpp numbers (`llama_ftype`)."""

Progress = Callable[[float], None]
"""Called with the fraction of tensors written, 0.0 to 1.0."""

_TENSOR = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")
_LINES = 12


def quantise(source: Path, target: Path, kind: str, progress: Progress | None = None, *, pure: bool = False) -> None:
    """Write `source` as `target` in another quantisation. `target` appears whole or not at all.

    Args:
        source: A GGUF file, quantised or not; of a split one, its first part.
        target: The file to write; one that is there is replaced.
        kind: A name from `TYPES`, in any case.
        progress: Called as tensors are written.
        pure: Every tensor in this very type. Otherwise llama.cpp keeps some, above all the output, in a finer one.

    Raises:
        UsageError: There is no such quantisation, or source and target are the same file.
        ModelError: llama.cpp cannot read the source, or the target cannot be written.
        BackendError: The child process died.
    """
    if kind.lower() not in TYPES:
        raise UsageError(f"There is no quantisation {kind!r}.", f"There are {', '.join(TYPES)}.")
    if not source.is_file():
        raise ModelError(f"There is no file {source}.")
    if source.resolve() == target.resolve():
        raise UsageError(f"{source} cannot be written over itself.")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _run_child([str(source), str(part), kind.lower(), str(int(pure))], source, progress)
        os.replace(part, target)
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            part.unlink()


def _run_child(arguments: list[str], source: Path, progress: Progress | None) -> None:
    command = [sys.executable, "-m", "spec_local.llama.quantise", *arguments]
    last: deque[str] = deque(maxlen=_LINES)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                found = _TENSOR.match(line)
                if found is None:
                    last.append(line.strip())
                elif progress is not None:
                    progress(int(found[1]) / int(found[2]))
        except BaseException:  # Ctrl-C, or the caller's own: the child writes for nobody any more
            child.kill()
            raise
    if child.returncode == 0:
        return
    if child.returncode < 0:
        name = signal_name(child.returncode)
        raise BackendError(f"llama.cpp died with {name} while quantising {source}.", _hint(source))
    said = next((line for line in reversed(last) if line), f"status {child.returncode}")
    raise ModelError(f"llama.cpp cannot quantise {source}: {said}.", _hint(source))


def _hint(source: Path) -> str:
    return f"Check the file with `spec-local models show {source}`."


def _child(source: str, target: str, kind: str, pure: str) -> int:
    """Runs in the child: llama.cpp's own log lines on standard output, its verdict as the exit status."""
    import ctypes

    from spec_local.llama.library import llama

    lib = llama()

    def on_log(_level: int, text: bytes | None, _data: Any) -> None:
        sys.stdout.buffer.write(text or b"")
        sys.stdout.buffer.flush()

    callback = lib.llama_log_callback(on_log)
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    params = lib.llama_model_quantize_default_params()
    params.ftype = TYPES[kind]
    params.allow_requantize = True
    params.pure = pure == "1"
    status = lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))
