"""Quantising in a child process, on a tiny model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_gguf import write_transformer

from spec_local.errors import BackendError, ModelError, UsageError
from spec_local.llama.model import Model
from spec_local.llama.quantise import TYPES, quantise


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("quantise") / "tiny 模型.gguf")


def test_a_file_in_another_quantisation(source: Path, tmp_path: Path):
    target = tmp_path / "new" / "tiny-q8_0.gguf"
    seen: list[float] = []
    quantise(source, target, "Q8_0", seen.append, pure=True)
    assert 0 < target.stat().st_size < source.stat().st_size
    assert seen == sorted(seen) and seen[-1] == 1.0
    with Model(target) as model:
        assert "Q8_0" in model.description
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_damaged_source_is_a_sentence_and_leaves_nothing(tmp_path: Path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(64))
    target = tmp_path / "out.gguf"
    with pytest.raises(ModelError, match=r"llama.cpp cannot quantise .*bad.gguf: .*failed"):
        quantise(bad, target, "q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]


def test_what_cannot_be_done_is_said_at_once(source: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"no quantisation 'q9_9'.*q8_0"):
        quantise(source, tmp_path / "out.gguf", "q9_9")
    with pytest.raises(UsageError, match="over itself"):
        quantise(source, source, "q8_0")
    with pytest.raises(ModelError, match="There is no file"):
        quantise(tmp_path / "none.gguf", tmp_path / "out.gguf", "q8_0")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be written"):
        quantise(source, tmp_path / "file" / "out.gguf", "q8_0")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_native_crash_becomes_a_sentence(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    crash = tmp_path / "crash"
    crash.write_text(f"#!{sys.executable}\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", encoding="utf-8")
    crash.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crash))
    with pytest.raises(BackendError, match="died with SIGSEGV while quantising"):
        quantise(source, tmp_path / "out.gguf", "q8_0")
    assert not (tmp_path / "out.gguf").exists()


def test_the_caller_may_stop_it(source: Path, tmp_path: Path):
    def stop(_done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantise(source, tmp_path / "out.gguf", "q8_0", stop)
    assert list(tmp_path.iterdir()) == []


def test_the_numbers_are_llama_cpps():
    import llama_cpp.llama_cpp as lib

    for name, number in TYPES.items():
        there = "LLAMA_FTYPE_ALL_F32" if name == "f32" else f"LLAMA_FTYPE_MOSTLY_{name.upper()}"
        assert getattr(lib, there) == number
