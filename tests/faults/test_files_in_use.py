"""Model files that vanish, are replaced or are cut while they are in use, and disks that are full."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_transformer

from spec_local.cli.main import main
from spec_local.errors import ModelError
from spec_local.sampling import Sampling
from spec_local.session.engine import load
from spec_local.session.options import EngineOptions

posix = pytest.mark.skipif(sys.platform == "win32", reason="files in use cannot be changed there")
SAMPLING = Sampling(temperature=0.8, seed=5, max_tokens=16)


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    return own_folders


@posix
@pytest.mark.parametrize("change", ["unlinked", "replaced", "renamed"])
def test_a_file_that_goes_away_while_it_is_mapped(tmp_path: Path, change: str) -> None:
    """What is mapped stays there until it is let go: the text is the same."""
    path = write_transformer(tmp_path / "model.gguf", seed=2)
    with load(path, draft="text", options=EngineOptions(n_ctx=128, threads=1, draft_length=3, mmap="on")) as engine:
        expected = engine.generate("the abcd", sampling=SAMPLING, raw=True)
        if change == "unlinked":
            path.unlink()
        elif change == "renamed":
            path.rename(tmp_path / "other.gguf")
        else:
            write_transformer(tmp_path / "other.gguf", seed=3).replace(path)
        engine.speculator.release(0)
        again = engine.generate("the abcd", sampling=SAMPLING, raw=True)
        assert (again.token_ids, again.text) == (expected.token_ids, expected.text)


@posix
def test_a_file_that_is_cut_while_it_is_mapped_costs_what_was_not_yet_written(tmp_path: Path) -> None:
    """The system ends a program that reads beyond a mapped file's end: finished answers are on disk then, and --resume
    goes on. A file that was read instead of mapped may be cut as anybody likes."""
    path = write_transformer(tmp_path / "model.gguf", seed=2, width=512, layers=4)
    whole = path.read_bytes()
    for mmap, ends in (("on", {-signal.SIGBUS, -signal.SIGSEGV}), ("off", {0})):
        path.write_bytes(whole)
        source, out = tmp_path / "in.jsonl", tmp_path / f"{mmap}.jsonl"
        records = [{"id": i, "prompt": f"abcd {i}", "max_tokens": 60, "seed": i} for i in range(300)]
        source.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
        command = [sys.executable, "-m", "spec_local.cli.main", "generate", "-m", str(path), "-d", "none"]
        command += ["--mmap", mmap, "--threads", "1", "--n-ctx", "128", "--parallel", "1"]
        command += ["--input", str(source), "--output", str(out)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") >= 3):
                try:
                    process.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
            assert process.poll() is None, process.communicate()[1]
            os.truncate(path, 4096)
            if mmap == "off":  # it goes on: three more answers are enough to see
                count = out.read_bytes().count(b"\n")
                while out.read_bytes().count(b"\n") < count + 3:
                    assert process.poll() is None, process.communicate()[1]
                    try:
                        process.wait(0.1)
                    except subprocess.TimeoutExpired:
                        continue
                process.send_signal(signal.SIGINT)
                assert process.wait(120) == 130
            else:
                assert process.wait(300) in ends
        finally:
            process.kill()
            process.communicate()
        lines = out.read_bytes().split(b"\n")
        assert len(lines) > 3
        for line in lines[:-1]:
            assert json.loads(line)["text"] is not None


def test_a_file_that_shrank_since_it_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut between the check and the load: llama.cpp's own check, in a sentence."""
    from spec_local import models_manifest as manifest

    path = write_transformer(tmp_path / "model.gguf", seed=2)
    read = manifest.read_header

    def then_cut(file: Path) -> Any:
        header = read(file)
        os.truncate(path, path.stat().st_size // 2)
        return header

    monkeypatch.setattr(manifest, "read_header", then_cut)
    with pytest.raises(ModelError, match="cannot load"):
        load(path, draft="none", options=EngineOptions(n_ctx=64, threads=1))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_on_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_transformer(tmp_path / "model.gguf", seed=2)
    common = ["-m", str(path), "-d", "none", "--threads", "1", "--n-ctx", "64", "--max-tokens", "4"]
    for more in ([], ["--json"]):
        assert main(["generate", "-p", "x", *common, "-o", "/dev/full", *more]) in (2, 3, 4)
        err = capsys.readouterr().err
        assert "/dev/full" in err
        assert "No space left" in err


def test_what_is_measured_is_not_needed_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs and numerics are kept for the next start; where they cannot be, they are measured again."""
    path = write_transformer(tmp_path / "model.gguf", seed=2)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with load(path, draft="text", options=EngineOptions(n_ctx=128, threads=1)) as engine:  # the probe is remembered now
        expected = engine.generate("the abcd", sampling=SAMPLING, raw=True)
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(Path, "write_text", full)
    with load(path, draft="text", options=EngineOptions(n_ctx=128, threads=1)) as engine:
        assert engine.generate("the abcd", sampling=SAMPLING, raw=True).token_ids == expected.token_ids


_STARVED = """
import resource, sys
from pathlib import Path
import psutil
from spec_local.errors import SpecLocalError
from spec_local.sampling import Sampling
from spec_local.session.engine import load
from spec_local.session.options import EngineOptions
engine = load(Path(sys.argv[1]), draft=sys.argv[1], options=EngineOptions(n_ctx=256, threads=1, draft_length=4))
sampling = Sampling(seed=1, max_tokens=20)
expected = engine.generate("abcd", sampling=sampling, raw=True).token_ids
room = psutil.Process().memory_info().vms + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
try:
    ids = engine.generate("the abcd on an inn " * 8, sampling=sampling, raw=True).token_ids
    print("answered", len(ids))
except (SpecLocalError, MemoryError) as error:
    print("sentence", error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert engine.generate("abcd", sampling=sampling, raw=True).token_ids == expected
engine.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an address space is not limited elsewhere")
@pytest.mark.parametrize("room", [1 << 20, 8 << 20])
def test_memory_that_ends_in_a_pass(tmp_path: Path, room: int) -> None:
    """Everything a pass needs is reserved when the context is made, so that a pass asks for next to nothing (far less
    than a megabyte; llama.cpp ends the process where it does not get it): it is answered, or ends in a sentence, and
    the engine goes on as before."""
    path = write_transformer(tmp_path / "model.gguf", seed=2)
    quiet = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # a debugger that starves as well leaves a core file
    done = subprocess.run(
        [sys.executable, "-c", _STARVED, str(path), str(room)], capture_output=True, text=True, cwd=tmp_path, env=quiet
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("answered", "sentence"))
