"""The virtual environment `.venv` of a checkout: made, filled, and stamped with what it was filled for.

The stamp is what makes the second start quick: if it still fits, nothing else is looked at.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bootstrapping.console import Runner
from bootstrapping.failures import NO_VENV, SetupError
from bootstrapping.machine import Capture, capture

SOURCES = ("pyproject.toml", "setup.py", "scripts/bootstrap.py", "scripts/bootstrapping/*.py")
"""The files that decide what is installed."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a virtual environment was set up for."""

    digest: str
    """Of the sources, the folder and the machine's cheap signs."""
    extras: tuple[str, ...]
    """The extras installed, in alphabetical order."""
    wheel: str
    """Key of the llama-cpp-python wheel that is installed."""

    def serves(self, digest: str, extras: Iterable[str]) -> bool:
        """Whether nothing has changed and all of `extras` are there."""
        return self.digest == digest and set(extras) <= set(self.extras)


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment at `root`, which need not exist yet."""

    root: Path

    @property
    def binaries(self) -> Path:
        """The folder of its programs."""
        return self.root / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.binaries / ("python.exe" if os.name == "nt" else "python")

    @property
    def program(self) -> Path:
        """The installed `spec-local`."""
        return self.binaries / ("spec-local.exe" if os.name == "nt" else "spec-local")

    @property
    def log(self) -> Path:
        """Where the output of the set-up's tools goes: beside it, since making it anew empties it."""
        return self.root.with_name(f"{self.root.name}.log")

    @property
    def lock(self) -> Path:
        """Held by the one set-up that may change it."""
        return self.root.with_name(f"{self.root.name}.lock")

    @property
    def _stamp(self) -> Path:
        return self.root / "bootstrap.json"

    def stamp(self) -> Stamp | None:
        """What it is set up for; None if it was never finished, is damaged, or its Python is gone."""
        if not self.python.exists():
            return None
        try:
            found = json.loads(self._stamp.read_text(encoding="utf-8"))
            return Stamp(str(found["digest"]), tuple(found["extras"]), str(found["wheel"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, stamp: Stamp) -> None:
        """Record a finished set-up, all at once."""
        partial = self._stamp.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(stamp), indent=2), encoding="utf-8")
        partial.replace(self._stamp)

    def unstamp(self) -> None:
        """Withdraw the stamp: from here on, what is inside is in between."""
        self._stamp.unlink(missing_ok=True)

    def tag(self) -> str:
        """Which Python is in it, as "cp311", from its own pyvenv.cfg."""
        for line in (self.root / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() in ("version", "version_info"):
                return "cp" + "".join(value.strip().split(".")[:2])
        return f"cp{sys.version_info.major}{sys.version_info.minor}"

    def make(self, run: Runner, ask: Capture = capture) -> None:
        """Make it, or make it anew if its Python is gone or was interrupted before it had a pip.

        Raises:
            SetupError: This Python cannot, or the folder cannot be written.
        """
        if (self.root / "pyvenv.cfg").exists() and ask(pip(self.python, "--version"), "")[0] == 0:
            return
        if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
            raise SetupError(*NO_VENV)
        run([sys.executable, "-I", "-m", "venv", "--clear", str(self.root)], "Making .venv")


def digest(checkout: Path, signs: Mapping[str, str]) -> str:
    """One number for everything that a set-up depends on.

    Args:
        checkout: The folder of the checkout; its place counts too, since a virtual environment cannot be moved.
        signs: The cheap signs of the machine.
    """
    sha = hashlib.sha256(f"{checkout}\n{sorted(signs.items())}\n".encode())
    for pattern in SOURCES:
        for path in sorted(checkout.glob(pattern)):
            sha.update(path.name.encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()


def pip(python: Path, command: str) -> list[str]:
    """The start of a pip command that the person's folder, PYTHONPATH and terminal have no part in."""
    return [str(python), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", command]


def install_wheel(environment: Environment, wheel: Path, run: Runner) -> None:
    """Install llama-cpp-python from our own wheel, whatever was there, past pip's cache, which ignores build flags.

    Raises:
        SetupError: pip failed.
    """
    command = [*pip(environment.python, "install"), "--no-cache-dir", "--no-deps", "--force-reinstall", str(wheel)]
    run(command, "Installing llama.cpp")


def install_project(environment: Environment, checkout: Path, extras: Iterable[str], run: Runner) -> None:
    """Install spec-local in place, with everything it needs.

    Raises:
        SetupError: pip failed.
    """
    target = f"{checkout}[{','.join(extras)}]"
    run([*pip(environment.python, "install"), "--editable", target], "Installing spec-local and what it needs")


def check_loads(environment: Environment, wheel: Path, run: Runner) -> None:
    """Load llama.cpp in a process of its own, where even a signal does no harm.

    Raises:
        SetupError: It does not load.
    """
    code = "import llama_cpp; llama_cpp.llama_backend_init(); print(llama_cpp.llama_print_system_info().decode())"
    try:
        run([str(environment.python), "-I", "-c", code], "Trying llama.cpp")
    except SetupError as error:
        raise SetupError(
            "llama.cpp was built and installed, but does not load on this machine.",
            f"The log says why. To build it anew, delete {wheel.parent}; with CMAKE_ARGS=-DGGML_NATIVE=OFF in the "
            "environment it is built for any processor.",
            error.excerpt,
        ) from error


def build_kernels(environment: Environment, run: Runner) -> str:
    """Build spec-local's own kernels with the compiler that has built llama.cpp, once for all checkouts of a version.

    Returns:
        A note where that fails: the program works without them.
    """
    try:
        command = [str(environment.python), "-I", "-m", "spec_local.llama.kernels.build"]
        run(command, "Building the kernels for passes over several tokens (under a minute)")
    except SetupError as error:
        return f"Going on without spec-local's own kernels: {error.message} `spec-local doctor` says what is missing."
    return ""
