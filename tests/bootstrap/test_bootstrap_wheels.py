"""The cache of llama-cpp-python wheels."""

from __future__ import annotations

import io
import os
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bootstrapping import wheels
from bootstrapping.console import Console
from bootstrapping.failures import SetupError
from bootstrapping.recipe import Recipe

from spec_local import paths

NAME = "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl"
RECIPE = Recipe(
    version="0.3.36",
    accelerator="cpu",
    cmake_args=("-DGGML_RPC=ON",),
    c_flags="-mno-amx-tile",
    cxx_flags="-mno-amx-tile",
    compiler="/usr/bin/g++ 12",
    cpu="GenuineIntel 6 143 avx2",
    nvcc="",
    gpus=(),
    platform="Linux-x86_64",
    python="cp311",
)
PYTHON = Path("/checkout/.venv/bin/python")


def write_wheel(path: Path, rpc: bool = True) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llama_cpp/lib/libllama.so", b"code")
        if rpc:
            archive.writestr("llama_cpp/lib/libggml-rpc.so", b"code")


class Builder(Console):
    """A console whose commands build a wheel by writing one down."""

    def __init__(self, folder: Path, rpc: bool = True, seconds: float = 0.0) -> None:
        super().__init__(folder / "log", io.StringIO())
        self.rpc = rpc
        self.seconds = seconds
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []

    def run(self, command: Sequence[str], title: str, environment: Mapping[str, str] | None = None) -> None:
        self.commands.append(list(command))
        self.environments.append(dict(environment or {}))
        time.sleep(self.seconds)
        write_wheel(Path(command[list(command).index("--wheel-dir") + 1]) / NAME, self.rpc)


def test_a_wheel_is_built_from_source_past_pips_cache_and_kept(tmp_path: Path):
    builder = Builder(tmp_path)
    wheel = wheels.obtain(RECIPE, PYTHON, tmp_path, builder, {"HOME": "/h"})
    assert wheel == tmp_path / "wheels" / RECIPE.key / NAME
    assert wheels.has_rpc(wheel)
    assert (wheel.parent / "recipe.json").read_text() == RECIPE.describe()
    command = builder.commands[0]
    assert command[0] == str(PYTHON)
    assert "--no-cache-dir" in command
    assert command[command.index("--no-binary") + 1] == "llama-cpp-python"
    assert command[-1] == "llama-cpp-python==0.3.36"
    assert builder.environments[0]["CMAKE_ARGS"] == "-DGGML_RPC=ON"
    assert builder.environments[0]["HOME"] == "/h"


def test_a_kept_wheel_is_used_without_building(tmp_path: Path):
    wheels.obtain(RECIPE, PYTHON, tmp_path, Builder(tmp_path), {})
    again = Builder(tmp_path)
    wheels.obtain(replace(RECIPE, compiler=RECIPE.compiler), PYTHON, tmp_path, again, {})
    assert again.commands == []


def test_a_wheel_that_is_wanted_anew_is_built_although_one_is_kept(tmp_path: Path):
    wheels.obtain(RECIPE, PYTHON, tmp_path, Builder(tmp_path), {})
    again = Builder(tmp_path)
    wheel = wheels.obtain(RECIPE, PYTHON, tmp_path, again, {}, anew=True)
    assert len(again.commands) == 1
    assert wheels.kept(tmp_path / "wheels" / RECIPE.key) == wheel


def test_a_wheel_for_another_processor_is_not_used(tmp_path: Path):
    wheels.obtain(RECIPE, PYTHON, tmp_path, Builder(tmp_path), {})
    other = Builder(tmp_path)
    wheel = wheels.obtain(replace(RECIPE, cpu="GenuineIntel 6 143 avx2 avx512f"), PYTHON, tmp_path, other, {})
    assert len(other.commands) == 1
    assert wheel.parent.name != RECIPE.key


def test_two_set_ups_build_the_same_wheel_once(tmp_path: Path):
    builders = [Builder(tmp_path, seconds=0.3), Builder(tmp_path, seconds=0.3)]
    threads = [
        threading.Thread(target=wheels.obtain, args=(RECIPE, PYTHON, tmp_path, builder, {})) for builder in builders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sum(len(builder.commands) for builder in builders) == 1
    assert any("waiting" in str(getattr(builder.stream, "getvalue")()) for builder in builders)  # noqa: B009


def test_a_half_copied_wheel_is_no_wheel(tmp_path: Path):
    folder = tmp_path / "wheels" / RECIPE.key
    folder.mkdir(parents=True)
    (folder / f"{NAME}.partial").write_bytes(b"half")
    assert wheels.kept(folder) is None


def test_without_a_compiler_nothing_is_built(tmp_path: Path):
    builder = Builder(tmp_path)
    with pytest.raises(SetupError, match=r"no working C\+\+ compiler"):
        wheels.obtain(replace(RECIPE, compiler=""), PYTHON, tmp_path, builder, {})
    assert builder.commands == []


def test_a_kept_wheel_needs_no_compiler(tmp_path: Path):
    bare = replace(RECIPE, compiler="")
    folder = tmp_path / "wheels" / bare.key
    folder.mkdir(parents=True)
    write_wheel(folder / NAME)
    assert wheels.obtain(bare, PYTHON, tmp_path, Builder(tmp_path), {}) == folder / NAME


def test_a_build_without_rpc_is_not_kept(tmp_path: Path):
    with pytest.raises(SetupError, match="RPC"):
        wheels.obtain(RECIPE, PYTHON, tmp_path, Builder(tmp_path, rpc=False), {})
    assert wheels.kept(tmp_path / "wheels" / RECIPE.key) is None


def test_a_full_disk_is_told_with_numbers(tmp_path: Path):
    with pytest.raises(SetupError, match=r"Building llama.cpp needs about 1000000000 GB at .* GB are free"):
        wheels.check_room(tmp_path, 10**18, "Building llama.cpp")
    wheels.check_room(tmp_path, 1, "Building llama.cpp")


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "/home/a/.cache/spec-local"),
        ("linux", {"XDG_CACHE_HOME": "/big/cache"}, "/big/cache/spec-local"),
        ("darwin", {}, "/home/a/Library/Caches/spec-local"),
        ("linux", {"SPEC_LOCAL_HOME": "/mine", "XDG_CACHE_HOME": "/big"}, "/mine/cache"),
        ("win32", {}, "/home/a/AppData/Local/spec-local/Cache"),
        ("win32", {"LOCALAPPDATA": "/d"}, "/d/spec-local/Cache"),
    ],
)
def test_cache_folder(platform: str, environment: dict[str, str], expected: str):
    assert wheels.cache_folder(environment, platform, Path("/home/a")).as_posix() == expected


@pytest.mark.parametrize("home", ["", "somewhere"])
def test_cache_folder_is_the_products_own(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path / home) if home else "")
    assert wheels.cache_folder(os.environ) == paths.cache_folder()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama_cpp/lib/libggml-rpc.so", True),
        ("llama_cpp/lib/libggml-rpc.dylib", True),
        ("llama_cpp/lib/ggml-rpc.dll", True),
        ("lib/libggml-rpc.so", False),
        ("llama_cpp/lib/libggml-cpu.so", False),
    ],
)
def test_the_rpc_back_end_must_lie_beside_the_others(name: str, found: bool, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr(name, b"code")
    assert wheels.has_rpc(tmp_path / NAME) is found
