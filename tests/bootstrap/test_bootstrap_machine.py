"""What the bootstrap sees of a machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from bootstrapping import machine

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Some Processor
stepping\t: 8
microcode\t: 0x2b
flags\t\t: fpu vme sse2 avx2 avx512f amx_tile amx_int8 fma md_clear ibrs

processor\t: 1
vendor_id\t: GenuineIntel
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


class Commands:
    """A machine with only these commands: {start of the command line: (status, output)}."""

    def __init__(self, known: dict[str, tuple[int, str]]) -> None:
        self.known = known
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str], stdin: str = "") -> tuple[int, str]:
        line = " ".join(command)
        self.asked.append(line)
        return next((answer for start, answer in self.known.items() if line.startswith(start)), (127, "not found"))


def test_cpu_line_names_model_and_instructions():
    assert machine.cpuinfo_line(X86) == "GenuineIntel 6 143 amx_int8 amx_tile avx2 avx512f fma sse2"
    assert machine.cpuinfo_line(ARM) == "0x41 0xd40 asimd bf16 fp i8mm"


def test_a_new_kernel_or_microcode_is_not_another_cpu():
    newer = X86.replace("ibrs", "ibrs its_no bhi").replace("0x2b", "0x2c")
    assert machine.cpuinfo_line(newer) == machine.cpuinfo_line(X86)


@pytest.mark.parametrize(("old", "new"), [("avx512f ", ""), ("143", "106"), ("GenuineIntel", "AuthenticAMD")])
def test_another_cpu_is_another_line(old, new):
    assert machine.cpuinfo_line(X86.replace(old, new)) != machine.cpuinfo_line(X86)


def test_mac_is_told_by_its_brand():
    assert machine.cpu_line("Darwin", Commands({"sysctl": (0, "Apple M2\n")})) == "Apple M2"


def test_first_compiler_that_compiles_is_taken():
    commands = Commands({"c++": (1, "xcode-select: note: no developer tools"), "g++": (0, "")})
    assert machine.find_compiler({}, commands) == ["g++"]


def test_a_chosen_compiler_is_the_only_one_tried():
    commands = Commands({"c++": (0, ""), "ccache clang++": (0, "")})
    assert machine.find_compiler({"CXX": "ccache clang++"}, commands) == ["ccache", "clang++"]
    assert machine.find_compiler({"CXX": "missing++"}, commands) == []


def test_no_compiler():
    assert machine.find_compiler({}, Commands({})) == []


@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
def test_the_compiler_here_is_asked_for_real():
    assert machine.compiles(["c++"], [])
    assert not machine.compiles(["c++"], ["-mno-such-instruction-set"])


def test_gpus_are_those_the_driver_shows():
    assert machine.find_gpus(Commands({"nvidia-smi": (0, "NVIDIA RTX 4090, 8.9\nNVIDIA RTX 3060, 8.6\n")})) == (
        "NVIDIA RTX 4090, 8.9",
        "NVIDIA RTX 3060, 8.6",
    )
    assert machine.find_gpus(Commands({"nvidia-smi": (9, "couldn't communicate with the NVIDIA driver")})) == ()
    assert machine.find_gpus(Commands({})) == ()


def test_nvcc_off_the_path_is_found_by_its_home(tmp_path: Path):
    name = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    binary = tmp_path / "bin" / name
    binary.parent.mkdir()
    binary.write_text("")
    binary.chmod(0o755)
    assert machine.find_nvcc({"PATH": "", "CUDA_HOME": str(tmp_path)}) == str(binary)


@pytest.mark.parametrize(
    ("name", "normal"), [("AMD64", "x86_64"), ("x86_64", "x86_64"), ("aarch64", "arm64"), ("arm64", "arm64")]
)
def test_one_spelling_per_architecture(name, normal):
    assert machine.normal_arch(name) == normal


def test_a_command_that_is_not_there_is_a_status():
    status, _ = machine.capture(["spec-local-no-such-command"])
    assert status == 127


def test_cheap_signs_start_nothing_slow():
    commands = Commands({"sysctl": (0, "Apple M2")})
    signs = machine.cheap_signs({"CMAKE_ARGS": "-DGGML_CUDA=OFF", "PATH": ""}, commands)
    assert signs["CMAKE_ARGS"] == "-DGGML_CUDA=OFF"
    assert all(line.startswith("sysctl") for line in commands.asked)


def test_a_compiler_without_amx_is_not_given_its_flags():
    flags = ("-mno-amx-tile",)
    knows = machine.look(
        {"CXX": "g++", "PATH": ""}, flags, Commands({"g++ -mno-amx-tile": (1, "?"), "g++": (0, "g++ 10")})
    )
    assert not knows.knows_amx
    assert knows.compiler.endswith("g++ 10")
