"""Compiles the kernels for the installed llama.cpp, in seconds, into the program's cache.

    python -m spec_local.llama.kernels.build

One library serves every processor of an architecture: each instruction set is a file of its own, and the processor is
asked when the library is used.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from spec_local.errors import BackendError
from spec_local.llama.library import ggml_version, library_folder
from spec_local.paths import cache_folder

SOURCE = Path(__file__).parent / "source"
TIMEOUT_S = 300
COMMON = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden"),
    "-ffp-contract=off",  # the reference says where a product and a sum are rounded once
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
FLAGS: dict[str, tuple[str, ...]] = {
    "avx2": _AVX2,
    "avxvnni": (*_AVX2, "-mavxvnni"),
    "avx512": (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
}
"""What each file is compiled for; the others are for any processor of the architecture."""
_ALL = "-Wno-maybe-uninitialized"  # some compilers' own AVX-512 headers are full of it
NO_COMPILER = "there is no C++ compiler (c++, g++ or clang++)"


def architecture_problem() -> str:
    """Why there are no kernels for this kind of machine; empty where there are."""
    if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64"):
        return f"there are kernels for Linux on x86-64 so far, not for {sys.platform} on {platform.machine()}"
    return ""


def library_path() -> Path:
    """Where the library for this source and the installed llama.cpp is kept."""
    digest = sha256(ggml_version().encode())
    for file in (Path(__file__), *sorted(SOURCE.iterdir())):
        digest.update(file.name.encode() + file.read_bytes())
    return cache_folder() / "kernels" / digest.hexdigest()[:24] / "libspec_local_kernels.so"


@cache
def compiler() -> list[str]:
    """The command of a C++ compiler; empty without one."""
    chosen = os.environ.get("CXX", "").split()
    found = [
        command for command in ([chosen] if chosen else [["c++"], ["g++"], ["clang++"]]) if shutil.which(command[0])
    ]
    return found[0] if found else []


def build(extra: Sequence[str] = (), path: Path | None = None) -> Path:
    """Compile the library; whoever looks for it sees all of it or nothing.

    Args:
        extra: Flags for every file, such as those of a sanitiser.
        path: Where to; `library_path` unless given.

    Raises:
        BackendError: There is no compiler, or it failed.
    """
    if problem := architecture_problem():
        raise BackendError(f"The kernels cannot be built: {problem}.")
    if not compiler():
        raise BackendError(f"The kernels cannot be built: {NO_COMPILER}.", "Install one, for example g++.")
    path = path or library_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    headers, libraries = library_folder().parent.parent / "include", library_folder()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        running = []
        for source in sorted(SOURCE.glob("*.cpp")):
            special = [flag for flag in FLAGS.get(source.stem, ()) if flag != "-mavxvnni" or _takes(flag)]
            define = f'-DBUILT_FOR="{ggml_version()}"'
            command = [*compiler(), *COMMON, _ALL, *special, *extra, define, f"-I{headers}"]
            running.append(_start([*command, "-c", str(source), "-o", f"{folder}/{source.stem}.o"]))
        for result in [wait() for wait in running]:
            _require(result)
        objects = [str(file) for file in sorted(Path(folder).glob("*.o"))]
        links = [f"-L{libraries}", "-lggml", "-lggml-cpu", "-lggml-base", "-Wl,-z,defs"]
        whole = Path(folder) / path.name
        _require(_start([*compiler(), "-shared", "-fopenmp", *extra, *objects, *links, "-o", str(whole)])())
        os.replace(whole, path)
    return path


def _takes(flag: str) -> bool:
    command = [*compiler(), flag, "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input=b"", capture_output=True, timeout=TIMEOUT_S, check=False).returncode == 0


def _start(command: list[str]) -> Callable[[], tuple[int, str]]:
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise BackendError(f"The kernels cannot be built: {command[0]} does not start: {error.strerror}.") from error

    def wait() -> tuple[int, str]:
        try:
            said, _ = child.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return 1, f"it did not end within {TIMEOUT_S} s"
        return child.returncode, said.decode("utf-8", "replace")

    return wait


def _require(result: tuple[int, str]) -> None:
    status, said = result
    if status != 0:
        lines = said.strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[-1] if lines else f"status {status}")
        raise BackendError(f"The kernels cannot be built: the compiler says {first}")


if __name__ == "__main__":
    try:
        if not architecture_problem() and not library_path().exists():
            build()
    except BackendError as failure:
        print(failure.message, file=sys.stderr)
        raise SystemExit(1) from None
