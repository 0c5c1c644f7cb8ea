"""Wheels of llama-cpp-python, built once per recipe and kept in a folder of their own.

<cache>/wheels/<key>/llama_cpp_python-<version>-….whl
                     recipe.json                      what the key stands for
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from bootstrapping import failures, lock
from bootstrapping.console import Console, Runner
from bootstrapping.environment import pip
from bootstrapping.failures import SetupError
from bootstrapping.recipe import Recipe

BUILD_BYTES = 2_000_000_000
"""Sources unpacked, objects and libraries, in the folder for temporary files."""
CUDA_BUILD_BYTES = 5_000_000_000
"""The same with CUDA's kernels."""


def cache_folder(environment: Mapping[str, str], platform: str = sys.platform, home: Path | None = None) -> Path:
    """Where spec-local keeps its cache on this system; the folder that `spec_local.paths` names."""
    if environment.get("SPEC_LOCAL_HOME"):
        return Path(environment["SPEC_LOCAL_HOME"]).expanduser().absolute() / "cache"
    home = home or Path.home()
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local") / "spec-local" / "Cache"
    if platform == "darwin":
        return home / "Library" / "Caches" / "spec-local"
    return Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "spec-local"


def kept(folder: Path) -> Path | None:
    """The wheel in a key's folder, if one is there."""
    return next(iter(sorted(folder.glob("llama_cpp_python-*.whl"))), None)


def has_rpc(wheel: Path) -> bool:
    """Whether the RPC back end lies in the wheel beside the others (libggml-rpc.so, .dylib or ggml-rpc.dll)."""
    with zipfile.ZipFile(wheel) as archive:
        return any(re.match(r"llama_cpp/lib/(lib)?ggml-rpc\.", name) for name in archive.namelist())


def keep(wheel: Path, recipe: Recipe, folder: Path) -> Path:
    """Put a finished wheel into its key's folder; whoever looks there sees all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(recipe.describe(), encoding="utf-8")
    partial = folder / f"{wheel.name}.partial"
    shutil.copyfile(wheel, partial)
    return partial.replace(folder / wheel.name)


def check_room(place: Path, needed: int, what: str) -> None:
    """Fail early, and with numbers, where a disk is too full.

    Raises:
        SetupError: Fewer than `needed` bytes are free at `place`.
    """
    free = shutil.disk_usage(place).free
    if free < needed:
        raise SetupError(
            f"{what} needs about {needed / 1e9:.0f} GB at {place}; {free / 1e9:.1f} GB are free.", failures.NO_DISK[1]
        )


def title(recipe: Recipe) -> str:
    """What the building step is called on the screen."""
    what = {"cuda": "CUDA", "metal": "Metal"}.get(recipe.accelerator, "this processor")
    return f"Building llama.cpp for {what}, once (5 to 15 minutes)"


def build(recipe: Recipe, python: Path, scratch: Path, run: Runner, environment: Mapping[str, str]) -> Path:
    """Build the wheel from source with pip, past pip's own cache.

    Args:
        recipe: What to build.
        python: The Python of the virtual environment.
        scratch: An empty folder for the result.
        run: Runs the command.
        environment: The process environment, to which the recipe's flags are added.

    Raises:
        SetupError: It did not build, or the result lacks the RPC back end.
    """
    source = [
        "--verbose",
        "--no-deps",
        "--no-cache-dir",
        "--no-binary",
        "llama-cpp-python",
        "--wheel-dir",
        str(scratch),
    ]
    command = [*pip(python, "wheel"), *source, f"llama-cpp-python=={recipe.version}"]
    run(command, title(recipe), recipe.environment(environment))
    wheel = kept(scratch)
    if wheel is None or not has_rpc(wheel):
        raise SetupError(
            "The build of llama.cpp ended well, but its RPC back end is missing.",
            "Look for -DGGML_RPC=OFF in CMAKE_ARGS; spec-local worker needs it.",
        )
    return wheel


def _waiting(folder: Path) -> str:
    return f"Another set-up is building the same llama.cpp; waiting for it ({folder})."


def obtain(
    recipe: Recipe, python: Path, cache: Path, console: Console, environment: Mapping[str, str], anew: bool = False
) -> Path:
    """The wheel for this recipe: the one kept, else a new one. Two runs that want the same wheel build it once.

    With `anew` one is built in any case, and takes the place of the one kept when it is done.

    Raises:
        SetupError: There is no compiler, no room or no network, or the build failed.
    """
    folder = cache / "wheels" / recipe.key
    if (wheel := kept(folder)) is not None and not anew:
        return wheel
    with lock.held(folder.with_suffix(".lock"), lambda: console.say(_waiting(folder))):
        if (wheel := kept(folder)) is not None and not anew:
            return wheel
        if not recipe.compiler and not recipe.platform.startswith("Windows"):
            raise SetupError(*failures.NO_COMPILER)
        check_room(Path(tempfile.gettempdir()), CUDA_BUILD_BYTES if recipe.nvcc else BUILD_BYTES, "Building llama.cpp")
        with tempfile.TemporaryDirectory(prefix="spec-local-wheel-") as scratch:
            return keep(build(recipe, python, Path(scratch), console.run, environment), recipe, folder)
