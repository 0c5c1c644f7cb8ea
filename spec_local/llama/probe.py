"""Does llama.cpp compute here? Asked in a child process, because the answer may be a crash.

Some virtual machines advertise instructions (AMX) that kill the process at their first use, and drivers fail in ways no
caller can catch. A child decodes two tokens of a tiny model; its death is the answer, and becomes a sentence.
The answer is remembered for as long as the build, the processor and the devices stay what they are.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from spec_local.errors import BackendError, SpecLocalError
from spec_local.llama.model import Model, Offload
from spec_local.llama.model_context import ContextOptions, ModelContext
from spec_local.llama.padded import open_context
from spec_local.llama.signals import signal_name
from spec_local.paths import cache_folder

TIMEOUT_S = 120
"""A child that takes longer hangs."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a decode in a child process showed."""

    works: bool
    repack: bool
    """Whether weights may be repacked for the CPU's fastest kernels; False is the work-around for a crash in them."""
    problem: str
    """What went wrong at first, as a sentence; empty where nothing did."""


def probe(devices: Sequence[str] = (), *, fresh: bool = False) -> Probe:
    """Decode in a child process on `devices` (as for `Offload`), trying the work-around where it crashes.

    Args:
        devices: Offload devices by name; empty for llama.cpp's own choice, ("none",) for the CPU.
        fresh: Ask again although the answer is known.
    """
    path = cache_folder() / "probes" / f"{machine_key(*devices)}.json"
    if not fresh:
        try:
            return Probe(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            pass
    problem = _run_child(devices, repack=True)
    answer = Probe(True, True, "")
    if problem:
        answer = Probe(not _run_child(devices, repack=False), False, problem)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(answer)), encoding="utf-8")
    except OSError:
        pass  # then the next start asks again
    return answer


def probe_worker(endpoints: Sequence[str], device: str) -> str:
    """What is wrong with a decode on a worker's device, as a sentence; empty where nothing is. Nothing is remembered.

    Args:
        endpoints: All workers, in the order their devices are numbered.
        device: RPC0, RPC1, …
    """
    from spec_local.llama.hosted import Host

    try:
        with Host(endpoints) as host:
            _decode_tiny(lambda path, options: host.open(path, Offload(devices=(device,)), options))
    except BackendError as error:
        return error.message
    return ""


def require_backend(devices: Sequence[str] = ()) -> Probe:
    """The probe's answer, or a refusal.

    Raises:
        BackendError: No decode works on these devices, not even with the work-around.
    """
    answer = probe(devices)
    if not answer.works:
        raise BackendError(
            f"llama.cpp cannot compute here: {answer.problem}",
            "`spec-local doctor` tries each device by itself; building llama.cpp again on this machine may mend it.",
        )
    return answer


def machine_key(*more: str) -> str:
    """A name for what an answer depends on: the installed library, the processor, and `more`."""
    from importlib.util import find_spec

    spec = find_spec("llama_cpp")
    library = ""
    if spec is not None and spec.origin:
        files = sorted((Path(spec.origin).parent / "lib").glob("*"))
        library = " ".join(f"{file.name}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files)
    parts = (library, platform.machine(), platform.release(), cpu_flags(), *more)
    return sha256("\n".join(parts).encode()).hexdigest()[:24]


def cpu_flags() -> str:
    """What the processor can do, as the system says it; empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _run_child(devices: Sequence[str], repack: bool) -> str:
    """What went wrong in the child, as a sentence; empty where it decoded."""
    command = [sys.executable, "-m", "spec_local.llama.probe", str(int(repack)), *devices]
    try:
        child = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return f"a decode of two tokens did not end within {TIMEOUT_S} s."
    except OSError as error:
        return f"no child process could be started: {error}."
    if child.returncode == 0:
        return ""
    said = child.stderr.decode("utf-8", "replace").strip().splitlines()
    if child.returncode < 0:
        name = signal_name(child.returncode)
        return f"the first decode dies with {name}, most often an instruction this machine advertises but cannot run."
    return said[-1] if said else f"the first decode ended with status {child.returncode}."


def decode_once(devices: Sequence[str], repack: bool) -> None:
    """Load the tiny model and decode two tokens; raises or dies where that is impossible."""

    def open_here(path: Path, options: ContextOptions) -> ModelContext:
        return open_context(Model(path, Offload(devices=tuple(devices), repack=repack)), options)

    _decode_tiny(open_here)


def _decode_tiny(open_context: Callable[[Path, ContextOptions], ModelContext]) -> None:
    """Two tokens through the tiny model.

    Raises:
        BackendError: The model cannot be loaded or decoded, or gives no numbers.
    """
    from spec_local.language_model import Chunk
    from spec_local.llama.tiny_model import write_tiny_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_tiny_model(path)
        context = open_context(path, ContextOptions(n_ctx=64, n_batch=32))
        (logits,) = context.decode([Chunk(0, [72, 105], 2)])
        finite = bool((abs(logits) < 1e30).all())
        context.close()
        context.model.close()
    if not finite:
        raise BackendError("The first decode gives no finite numbers.")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        decode_once(sys.argv[2:], sys.argv[1] == "1")
    except SpecLocalError as failure:
        print(failure.message, file=sys.stderr)
        raise SystemExit(1) from None
