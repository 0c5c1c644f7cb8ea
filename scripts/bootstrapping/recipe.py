"""How llama.cpp is built for one machine, and the key under which a wheel so built is kept.

A wheel of llama-cpp-python says only "py3-none-linux_x86_64" of itself, yet it holds code for one processor, with one
set of back ends. pip's own cache would hand it to any build of that version. So the key names everything that
went in.

AMX stays off on x86. Virtual machines advertise it and then kill the process at the first tile instruction, and
the processor's flags do not tell which ones do; only a whole decode would prove that it works, and no model is here
yet. Whoever knows better sets CFLAGS and CXXFLAGS: they come last and win.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from bootstrapping.machine import Machine

NO_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
COMMON = (
    "-DGGML_RPC=ON",  # `spec-local worker`, and offload to it, need no other binary
    "-DLLAVA_BUILD=OFF",  # images and sound: a fifth of the build, never loaded here
    "-DLLAMA_OPENSSL=OFF",  # llama.cpp's own downloader is not used either
)
BACK_ENDS: dict[str, tuple[str, ...]] = {"cuda": ("-DGGML_CUDA=ON",), "metal": ("-DGGML_METAL=ON",), "cpu": ()}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything the bits of a llama-cpp-python wheel depend on."""

    version: str
    """Of llama-cpp-python, e.g. "0.3.36"."""
    accelerator: str
    """"cuda", "metal" or "cpu"."""
    cmake_args: tuple[str, ...]
    """The flags of CMake, the person's own ones last."""
    c_flags: str
    """CFLAGS, the person's own ones last."""
    cxx_flags: str
    """CXXFLAGS, the person's own ones last."""
    compiler: str
    """Path and version of the C++ compiler."""
    cpu: str
    """Model and instruction sets of the processor."""
    nvcc: str
    """Path of the CUDA compiler; empty without CUDA."""
    gpus: tuple[str, ...]
    """The GPUs that a CUDA build is made for."""
    platform: str
    """System and architecture."""
    python: str
    """The Python that will load it, e.g. "cp311"."""

    @property
    def key(self) -> str:
        """The name of the folder that keeps the wheel: 16 hexadecimal digits."""
        return hashlib.sha256(self.describe().encode()).hexdigest()[:16]

    def describe(self) -> str:
        """The recipe as JSON, kept beside the wheel so that a person can see what it is."""
        return json.dumps(asdict(self), indent=2, sort_keys=True)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of the build: `base` with this recipe's flags in place."""
        flags = {"CMAKE_ARGS": " ".join(self.cmake_args), "CFLAGS": self.c_flags, "CXXFLAGS": self.cxx_flags}
        if self.accelerator == "cuda":
            flags["CUDACXX"] = self.nvcc
        return {**base, **{name: value for name, value in flags.items() if value}}


def choose_accelerator(machine: Machine) -> str:
    """Metal on a Mac, CUDA where toolkit, driver and a GPU are all there, else the processor alone."""
    if machine.system == "Darwin":
        return "metal"
    return "cuda" if machine.nvcc and machine.gpus else "cpu"


def missed(machine: Machine) -> str:
    """What this machine could use if one more thing were installed, as a sentence; empty if nothing."""
    if machine.gpus and not machine.nvcc:
        return (
            f"{machine.gpus[0]} is here, but the CUDA toolkit (nvcc) is not: building for the processor alone. "
            "Install the toolkit and run this again to use the GPU."
        )
    return ""


def choose(version: str, python: str, machine: Machine, environment: Mapping[str, str]) -> Recipe:
    """The recipe for this machine.

    Args:
        version: Of llama-cpp-python.
        python: Tag of the Python in the virtual environment, e.g. "cp311".
        machine: What was found.
        environment: CMAKE_ARGS, CFLAGS and CXXFLAGS in it are kept and come last, so that they win.
    """
    accelerator = choose_accelerator(machine)
    no_amx = NO_AMX if machine.knows_amx else ()
    own = tuple(environment.get("CMAKE_ARGS", "").split())
    return Recipe(
        version=version,
        accelerator=accelerator,
        cmake_args=(*COMMON, *BACK_ENDS[accelerator], *own),
        c_flags=" ".join([*no_amx, *environment.get("CFLAGS", "").split()]),
        cxx_flags=" ".join([*no_amx, *environment.get("CXXFLAGS", "").split()]),
        compiler=machine.compiler,
        cpu=machine.cpu,
        nvcc=machine.nvcc if accelerator == "cuda" else "",
        gpus=machine.gpus if accelerator == "cuda" else (),
        platform=f"{machine.system}-{machine.arch}",
        python=python,
    )
