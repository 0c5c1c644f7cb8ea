"""Whatever is odd about the kernels: they are off, with a sentence, and the text is llama.cpp's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from spec_local.errors import BackendError
from spec_local.llama.kernels import build, library, rehearsal
from spec_local.llama.library import ggml_version
from spec_local.llama.tiny_model import write_tiny_model
from spec_local.sampling import Sampling
from spec_local.session import kernels as module
from spec_local.session.engine import load
from spec_local.session.options import EngineOptions


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_model(path, "Q8_0")
    return path


def text(model: Path, kernels: str = "auto") -> tuple[str, dict[str, Any], list[str]]:
    """What is written, what is said of the kernels, and the notices."""
    options = EngineOptions(threads=1, n_ctx=128, draft_length=2, kernels=kernels)
    with load(model, draft="text", options=options) as engine:
        answer = engine.generate("hello", raw=True, sampling=Sampling(max_tokens=24, temperature=0))
        return answer.text, engine.describe()["kernels"], list(engine.notices)


def test_they_compute_where_nothing_is_odd(model: Path, kernel_library: Path) -> None:
    before = library.computed()
    written, kernels, notices = text(model)
    assert kernels["on"] is True
    assert "Q8_0" in kernels["formats"]
    assert library.computed() > before
    assert not notices
    assert written == text(model, "off")[0]


def test_off_is_off_beside_an_engine_that_has_them(model: Path, kernel_library: Path) -> None:
    with load(model, draft="none", options=EngineOptions(threads=1, n_ctx=128)) as engine:
        assert engine.loaded.kernels.on
        before = library.computed()
        _, kernels, notices = text(model, "off")
        assert kernels == {"on": False, "reason": "switched off (--kernels off)"}
        assert library.computed() == before
        assert not notices
        engine.generate("hello", raw=True, sampling=Sampling(max_tokens=2, temperature=0))
        assert library.computed() > before, "and the other engine still has them"


@pytest.fixture
def other_library(tmp_path: Path, kernel_library: Path, monkeypatch: pytest.MonkeyPatch, own_folders: None):
    """Puts another file in the library's place."""

    def put(content: bytes) -> Path:
        path = tmp_path / kernel_library.name
        path.write_bytes(content)
        monkeypatch.setattr(build, "library_path", lambda: path)
        return path

    return put


def refused(model: Path) -> str:
    """The reason, after the text was found to be what it is without kernels."""
    written, kernels, notices = text(model)
    assert kernels["on"] is False
    assert written == text(model, "off")[0]
    assert notices == [f"spec-local's own kernels are off, and llama.cpp's compute: {kernels['reason']}."]
    return str(kernels["reason"])


@pytest.mark.parametrize("content", [b"", b"no library", b"half"])
def test_a_damaged_library(model: Path, kernel_library: Path, other_library, content: bytes) -> None:
    whole = kernel_library.read_bytes()
    other_library(whole[: len(whole) // 2] if content == b"half" else content)
    assert "does not load" in refused(model) or "dies with" in refused(model)


def test_a_library_whose_code_was_overwritten(model: Path, kernel_library: Path, other_library) -> None:
    damaged = bytearray(kernel_library.read_bytes())
    middle = len(damaged) // 4
    damaged[middle : middle * 3] = b"\xcc" * (2 * middle)  # traps
    other_library(bytes(damaged))
    assert refused(model)


def test_a_library_for_another_ggml(model: Path, kernel_library: Path, other_library) -> None:
    version = ggml_version().encode()
    content = kernel_library.read_bytes()
    assert content.count(version) == 1
    other_library(content.replace(version, b"9" + version[1:]))
    assert refused(model).startswith("they were built for ggml 9")


def test_a_processor_without_the_instructions(
    model: Path, kernel_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "rehearse", lambda _: library.NO_INSTRUCTIONS)
    written, kernels, notices = text(model)
    assert kernels == {"on": False, "reason": library.NO_INSTRUCTIONS}
    assert not notices, "nothing is wrong"
    assert written == text(model, "off")[0]


def test_no_compiler_and_no_library(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if build.architecture_problem():
        pytest.skip("there are no kernels for this machine")
    monkeypatch.setattr(build, "library_path", lambda: tmp_path / "nowhere.so")
    monkeypatch.setattr(build, "compiler", list)
    written, kernels, notices = text(model)
    assert kernels["reason"] == "they are not built, and there is no C++ compiler (c++, g++ or clang++)"
    assert not notices
    assert written == text(model, "off")[0]


def test_a_compiler_that_fails(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if build.architecture_problem():
        pytest.skip("there are no kernels for this machine")
    monkeypatch.setattr(build, "library_path", lambda: tmp_path / "nowhere.so")
    monkeypatch.setattr(build, "compiler", lambda: ["false"])
    assert refused(model).startswith("The kernels cannot be built: the compiler says")
    assert list(tmp_path.glob("*.so")) == []


def test_structures_of_another_size(kernel_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_tensor_bytes", lambda: 328)
    with pytest.raises(BackendError, match="another size"):
        library.open_library.__wrapped__()


def test_a_first_use_that_hangs_or_cannot_start(
    kernel_library: Path, monkeypatch: pytest.MonkeyPatch, own_folders: None
):
    monkeypatch.setattr(rehearsal, "TIMEOUT_S", 0.01)
    assert "did not end" in rehearsal.rehearse(kernel_library, fresh=True)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "no child process" in rehearsal.rehearse(kernel_library, fresh=True)


def test_what_was_found_is_remembered_for_this_very_library(
    kernel_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_folders: None
) -> None:
    asked: list[Path] = []

    def run_child(path: Path) -> str:
        asked.append(path)
        return "odd"

    monkeypatch.setattr(rehearsal, "_run_child", run_child)
    copy = tmp_path / "copy.so"
    copy.write_bytes(kernel_library.read_bytes() + b"1")
    assert [rehearsal.rehearse(copy), rehearsal.rehearse(copy)] == ["odd", "odd"]
    assert len(asked) == 1
    copy.write_bytes(copy.read_bytes() + b"\0")
    rehearsal.rehearse(copy)
    assert len(asked) == 2


def test_passes_of_every_width_give_the_same_bits(model: Path, kernel_library: Path) -> None:
    options = EngineOptions(threads=1, n_ctx=512, draft_length=7)
    with load(model, draft="text", options=options) as engine:
        assert engine.loaded.kernels.on
        assert (engine.numerics.tier, engine.numerics.epsilon, engine.numerics.bitwise_within) == ("bitwise", 0.0, 0)
        assert engine.numerics.positions == 2 * 3 * 8, "near the beginning and behind many tokens"


def test_two_engines_in_two_threads(model: Path, kernel_library: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    expected = text(model)[0]
    with ThreadPoolExecutor(2) as pool:
        for written, kernels, _ in pool.map(lambda _: text(model), range(4)):
            assert kernels["on"] is True
            assert written == expected
