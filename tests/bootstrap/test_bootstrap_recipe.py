"""Which llama.cpp is built, and under which key it is kept."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from bootstrapping import recipe
from bootstrapping.machine import Machine

PLAIN = Machine(
    system="Linux",
    arch="x86_64",
    cpu="GenuineIntel 6 143 avx2",
    compiler="/usr/bin/g++ 12",
    knows_amx=True,
    nvcc="",
    gpus=(),
)
GPU = ("NVIDIA RTX 4090, 8.9",)


def choose(machine: Machine, environment: dict[str, str] | None = None) -> recipe.Recipe:
    return recipe.choose("0.3.36", "cp311", machine, environment or {})


def test_cpu_build_has_rpc_and_no_amx():
    plain = choose(PLAIN)
    assert plain.accelerator == "cpu"
    assert "-DGGML_RPC=ON" in plain.cmake_args
    assert plain.c_flags == plain.cxx_flags == "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def test_a_compiler_without_amx_gets_no_flags_for_it():
    old = choose(replace(PLAIN, knows_amx=False))
    assert old.c_flags == old.cxx_flags == ""


@pytest.mark.parametrize(
    ("changes", "accelerator"),
    [
        ({"nvcc": "/opt/cuda/bin/nvcc", "gpus": GPU}, "cuda"),
        ({"nvcc": "/opt/cuda/bin/nvcc"}, "cpu"),
        ({"gpus": GPU}, "cpu"),
        ({"system": "Darwin", "arch": "arm64"}, "metal"),
    ],
)
def test_accelerator(changes: dict[str, Any], accelerator: str):
    machine = replace(PLAIN, **changes)
    assert recipe.choose_accelerator(machine) == accelerator
    args = choose(machine).cmake_args
    assert ("-DGGML_CUDA=ON" in args) == (accelerator == "cuda")
    assert ("-DGGML_METAL=ON" in args) == (accelerator == "metal")


def test_a_gpu_without_its_toolkit_is_said():
    assert "RTX 4090" in recipe.missed(replace(PLAIN, gpus=GPU))
    assert recipe.missed(PLAIN) == ""
    assert recipe.missed(replace(PLAIN, gpus=GPU, nvcc="/opt/cuda/bin/nvcc")) == ""


def test_own_flags_come_last_and_win():
    own = {"CMAKE_ARGS": "-DGGML_CUDA=OFF -DFOO=1", "CFLAGS": "-O2", "CXXFLAGS": "-mamx-int8"}
    mine = choose(replace(PLAIN, nvcc="/opt/cuda/bin/nvcc", gpus=GPU), own)
    assert mine.cmake_args[-2:] == ("-DGGML_CUDA=OFF", "-DFOO=1")
    assert mine.cmake_args.index("-DGGML_CUDA=ON") < mine.cmake_args.index("-DGGML_CUDA=OFF")
    assert mine.c_flags.endswith(" -O2")
    assert mine.cxx_flags.endswith(" -mamx-int8")


def test_build_environment():
    made = choose(replace(PLAIN, nvcc="/opt/cuda/bin/nvcc", gpus=GPU)).environment({"HOME": "/h", "CFLAGS": "old"})
    assert made["HOME"] == "/h"
    assert made["CUDACXX"] == "/opt/cuda/bin/nvcc"
    assert "-DGGML_CUDA=ON" in made["CMAKE_ARGS"].split()
    assert made["CFLAGS"] == made["CXXFLAGS"] == "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    plain = choose(replace(PLAIN, knows_amx=False)).environment({})
    assert plain.keys() == {"CMAKE_ARGS"}


def test_equal_machines_share_a_key():
    assert choose(PLAIN).key == choose(replace(PLAIN)).key
    assert len(choose(PLAIN).key) == 16


@pytest.mark.parametrize("name", [field.name for field in fields(recipe.Recipe)])
def test_every_part_of_a_recipe_counts(name: str):
    plain = choose(PLAIN)
    other = ("another",) if isinstance(getattr(plain, name), tuple) else "another"
    change: dict[str, Any] = {name: other}
    assert replace(plain, **change).key != plain.key


def test_a_person_can_read_what_a_key_stands_for():
    assert json.loads(choose(PLAIN).describe())["cpu"] == PLAIN.cpu
