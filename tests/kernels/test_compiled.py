"""The kernels compiled for a purpose: with sanitisers, for an emulated processor, with a planted error."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from spec_local.llama.kernels import build, rehearsal
from spec_local.llama.library import library_folder

HERE = Path(__file__).parent
LIBRARIES = ("-lggml-cpu", "-lggml-base")


def program(folder: Path, main: Path, flags: Sequence[str], sources: Sequence[str], links: Sequence[str]) -> Path:
    """A program of `main` and some of the kernels' sources."""
    compiler = build.compiler()
    if not compiler or build.architecture_problem():
        pytest.skip("the kernels cannot be compiled here")
    headers = library_folder().parent.parent / "include"
    common = [*compiler, *build.COMMON, *flags, f"-I{headers}", f"-I{build.SOURCE}"]
    objects = []
    for source in (main, *(build.SOURCE / f"{name}.cpp" for name in sources)):
        objects.append(str(folder / f"{source.stem}.o"))
        command = [*common, *build.FLAGS.get(source.stem, ()), "-c", str(source), "-o", objects[-1]]
        subprocess.run(command, check=True, timeout=600)
    path = folder / main.stem
    folders = [f"-L{library_folder()}", f"-Wl,-rpath,{library_folder()}"] if set(links) & set(LIBRARIES) else []
    subprocess.run(
        [*compiler, *flags, "-fopenmp", *objects, *folders, *links, "-o", str(path)], check=True, timeout=600
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("sanitiser", ["address,undefined", "thread"])
def test_sanitisers_find_nothing(tmp_path: Path, sanitiser: str) -> None:
    flags = ["-g", "-O1", f"-fsanitize={sanitiser}", "-fno-sanitize-recover=all"]
    sources = ("reference", "select", "product", "avx2", "avxvnni", "avx512")
    path = program(tmp_path, HERE / "exercise.cpp", flags, sources, LIBRARIES)
    done = subprocess.run([str(path)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "products alike" in done.stdout
    assert int(done.stdout.split()[0]) > 0


@pytest.mark.slow
def test_an_emulated_processor_gets_what_it_can_run(tmp_path: Path) -> None:
    if (emulator := shutil.which("qemu-x86_64")) is None:
        pytest.skip("qemu-user is not installed")
    sources = ("reference", "select", "avx2", "avxvnni", "avx512")
    path = program(tmp_path, HERE / "processor.cpp", ["-O1", "-fno-openmp"], sources, ("-static",))
    for processor, expected in {"Nehalem": "none", "Haswell": "AVX2"}.items():
        command = [emulator, "-cpu", processor, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.strip() == expected


@pytest.mark.slow
def test_a_planted_error_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_folders: None) -> None:
    """Of one format the scale of a block is taken from another place."""
    if not build.compiler() or build.architecture_problem():
        pytest.skip("the kernels cannot be compiled here")
    source = shutil.copytree(build.SOURCE, tmp_path / "source")
    vectors = source / "vectors.h"
    text = vectors.read_text(encoding="utf-8")
    planted = text.replace("const auto d = V::halves(p.at, 208);", "const auto d = V::halves(p.at, 206);")
    assert planted != text
    vectors.write_text(planted, encoding="utf-8")
    monkeypatch.setattr(build, "SOURCE", source)
    path = build.build(path=tmp_path / "planted.so")
    assert "a product of Q6_K" in rehearsal.rehearse(path)
