"""What this machine is, as far as building llama.cpp cares: processor, compiler, GPU with its toolkit."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Capture = Callable[[Sequence[str], str], tuple[int, str]]
"""Runs a command with some standard input and returns its exit status and what it printed."""

# The part of /proc/cpuinfo that decides which instructions a compiler may emit. The rest of the flags (mitigations,
# power management) changes with the kernel, and must not make anybody build again.
INSTRUCTIONS = re.compile(
    r"(sse|ssse|avx|amx|fma|f16c|bmi|abm|popcnt|movbe|aes|vaes|pclmul|vpclmul|gfni|sha|adx|xop|cx16|3dnow)"
)
MODEL = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
CPUINFO = Path("/proc/cpuinfo")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
CUDA_HOMES = ("/usr/local/cuda", "/opt/cuda")


def capture(command: Sequence[str], stdin: str = "") -> tuple[int, str]:
    """Run a command quietly; one that cannot be started counts as status 127."""
    try:
        done = subprocess.run(
            command, input=stdin.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a build of llama.cpp depends on."""

    system: str
    """"Linux", "Darwin" or "Windows"."""
    arch: str
    """"x86_64", "arm64" or whatever else the system calls it, with the common spellings made one."""
    cpu: str
    """The processor's model and instruction sets, in one line."""
    compiler: str
    """Path and version of the C++ compiler; empty where the build has to find one by itself (Windows)."""
    knows_amx: bool
    """Whether that compiler knows AMX, so that it could emit it and must be told not to."""
    nvcc: str
    """Path of the CUDA compiler, empty without."""
    gpus: tuple[str, ...]
    """One line per NVIDIA GPU that the driver shows: name and compute capability."""


def normal_arch(name: str) -> str:
    """One spelling per architecture."""
    low = name.lower()
    return {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64"}.get(low, low)


def cpuinfo_line(text: str) -> str:
    """Model and instruction sets of the first processor in a /proc/cpuinfo text (x86 or Arm)."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    model = [fields[key] for key in MODEL if key in fields]
    flags = sorted(flag for flag in fields.get("flags", "").split() if INSTRUCTIONS.match(flag))
    return " ".join([*model, *(flags or sorted(fields.get("Features", "").split()))])


def cpu_line(system: str, run: Capture = capture) -> str:
    """The processor in one line: equal on two machines only if code built for one runs on the other."""
    if system == "Linux":
        try:
            return cpuinfo_line(CPUINFO.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return platform.machine()
    if system == "Darwin":
        status, text = run(["sysctl", "-n", "machdep.cpu.brand_string"], "")
        return text.strip() if status == 0 else platform.machine()
    return platform.processor() or platform.machine()


def find_nvcc(environment: Mapping[str, str]) -> str:
    """The CUDA compiler: on PATH, in CUDA_PATH or CUDA_HOME, or where its installer puts it; empty if nowhere."""
    homes = [environment.get("CUDA_PATH", ""), environment.get("CUDA_HOME", ""), *CUDA_HOMES]
    places = [environment.get("PATH", os.defpath), *(str(Path(home, "bin")) for home in homes if home)]
    return next((found for place in places if (found := shutil.which("nvcc", path=place))), "")


def find_gpus(run: Capture = capture) -> tuple[str, ...]:
    """Name and compute capability of every NVIDIA GPU that the driver can use."""
    status, text = run(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"], "")
    return tuple(line.strip() for line in text.splitlines() if line.strip()) if status == 0 else ()


def compiles(compiler: Sequence[str], flags: Sequence[str], run: Capture = capture) -> bool:
    """Whether the compiler takes the flags and finds the C++ standard library."""
    status, _ = run(
        [*compiler, *flags, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], "#include <vector>\nint main() {}\n"
    )
    return status == 0


def find_compiler(environment: Mapping[str, str], run: Capture = capture) -> list[str]:
    """The command of the first C++ compiler that works; empty without one.

    CMake asks CXX first and then tries these names, so this is the one it will use.
    """
    chosen = environment.get("CXX", "").split()
    candidates = [chosen] if chosen else [["c++"], ["g++"], ["clang++"]]
    return next((command for command in candidates if compiles(command, (), run)), [])


def compiler_line(command: Sequence[str], run: Capture = capture) -> str:
    """Where a compiler really lies, and which version it is."""
    where = shutil.which(command[0]) or command[0]
    _, text = run([*command, "--version"], "")
    return f"{os.path.realpath(where)} {(text.splitlines() or [''])[0].strip()}"


def cheap_signs(environment: Mapping[str, str], run: Capture = capture) -> dict[str, str]:
    """What can be told about the machine in a few milliseconds, asked at every start.

    If none of it has changed since the last set-up, neither has what would be built.
    """
    system = platform.system()
    return {
        "system": system,
        "arch": normal_arch(platform.machine()),
        "cpu": cpu_line(system, run),
        "nvcc": find_nvcc(environment),
        "driver": str(NVIDIA_DRIVER.exists() or bool(shutil.which("nvidia-smi"))),
        **{name: environment.get(name, "") for name in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "CC", "CXX")},
    }


def look(environment: Mapping[str, str], amx_flags: Sequence[str], run: Capture = capture) -> Machine:
    """Look at the machine closely; takes a second or so.

    Args:
        environment: The process environment.
        amx_flags: The flags that keep AMX out, to ask the compiler whether it knows them.
        run: Runs the probes.
    """
    system, arch = platform.system(), normal_arch(platform.machine())
    compiler = [] if system == "Windows" else find_compiler(environment, run)
    nvcc = find_nvcc(environment) if system != "Darwin" else ""
    return Machine(
        system=system,
        arch=arch,
        cpu=cpu_line(system, run),
        compiler=compiler_line(compiler, run) if compiler else "",
        knows_amx=arch == "x86_64" and bool(compiler) and compiles(compiler, amx_flags, run),
        nvcc=nvcc,
        gpus=find_gpus(run) if system != "Darwin" else (),
    )
