"""Cases 36, 38 and 41: drafts that cannot be used, damaged files, and folders with unusual names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_gguf import write_recurrent, write_transformer

import spec_local
from spec_local.errors import BackendError, ModelError
from spec_local.llama.context import Context
from spec_local.llama.model import Model
from spec_local.models_manifest import read_header
from spec_local.session import loading
from spec_local.session.options import EngineOptions
from spec_local.session.room import Room

# -- 36: the draft -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["missing", "text", "folder", "other vocabulary", "empty"])
def useless(request, tmp_path):
    path = tmp_path / "useless.gguf"
    if request.param == "text":
        path.write_text("I am no model.\n" * 100)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "empty":
        path.touch()
    elif request.param == "other vocabulary":
        write_transformer(path, extra=[("and more", 1)] * 200, padding=3)
        data = path.read_bytes()
        path.write_bytes(data.replace("Ġthe".encode(), "Ġthx".encode()))
    return path


def test_a_draft_that_cannot_be_used_is_named(target, useless, answer):
    done = answer("-m", target, "-d", useless)
    assert done.code == 3
    assert str(useless if useless.name not in done.err else useless.name) in done.err
    assert "Traceback" not in done.err
    assert done.out.strip() == ""


def test_or_the_answer_comes_without_it_where_that_was_allowed(target, useless, answer):
    alone = json.loads(answer("-m", target, "-d", "none", "--json").out)
    done = answer("-m", target, "-d", useless, "--allow-plain", "--json")
    said = json.loads(done.out)
    assert done.code == 0
    assert done.err.count("note: Continuing without a draft model.") == 1
    assert said["token_ids"] == alone["token_ids"]
    assert said["model"]["draft"] is None
    assert "model" not in said["speculation"]["sources"]


def test_the_targets_own_file_is_no_help_and_says_so(target, answer):
    done = answer("-m", target, "-d", target, "--json")
    said = json.loads(done.out)
    assert done.code == 0
    assert "Target and draft are the same file" in done.err
    assert said["model"]["draft_path"] == str(target)


def test_status_names_the_draft_that_was_loaded(target, draft, answer):
    said = json.loads(answer("-m", target, "-d", draft, "--json").out)
    assert (said["model"]["draft"], said["model"]["draft_path"]) == (draft.name, str(draft))
    assert set(said["model"]["memory_estimate"]) >= {"target", "draft", "total"}


def test_a_draft_that_fails_to_load_frees_the_target(target, draft, monkeypatch, answer):
    closed: list[str] = []
    real_open, close_model, close_context = loading._open, Model.close, Context.close

    def opens(path, *rest):
        if path == draft:
            raise BackendError("llama.cpp has no memory for it.")
        return real_open(path, *rest)

    monkeypatch.setattr(loading, "_open", opens)

    def note_model(self):
        closed.append("model")
        close_model(self)

    def note_context(self):
        closed.append("context")
        close_context(self)

    monkeypatch.setattr(Model, "close", note_model)
    monkeypatch.setattr(Context, "close", note_context)
    done = answer("-m", target, "-d", draft)
    assert done.code == 3
    assert f"The draft model {draft} could not be used: llama.cpp has no memory for it." in done.err
    assert closed == ["context", "model"], "contexts before the weights they read"
    allowed = answer("-m", target, "-d", draft, "--allow-plain")
    assert allowed.code == 0
    assert "Continuing without a draft model" in allowed.err


def test_a_draft_without_room_is_refused_before_it_is_loaded(target, draft, monkeypatch, answer):
    from spec_local.session import memory

    alone = memory.plan(EngineOptions(), read_header(target), None, Room(1 << 30))
    monkeypatch.setattr(memory, "free_room", lambda _devices=(): Room(alone.needed_host))
    done = answer("-m", target, "-d", draft, "--threads", 1)
    assert done.code == 3
    assert f"The draft model {draft} cannot be loaded beside the target: memory does not suffice" in done.err
    assert "-d text" in done.err
    assert answer("-m", target, "-d", draft, "--allow-plain").code == 0
    monkeypatch.setattr(memory, "free_room", lambda _devices=(): Room(1000))
    refused = answer("-m", target, "-d", "none")
    assert refused.code == 4
    assert f"{target} cannot be loaded: memory does not suffice" in refused.err


_LIMITED = """
import resource, sys
import psutil
import spec_local.session.engine
from spec_local.cli.main import main
from spec_local.llama.library import llama
llama()
room = psutil.Process().memory_info().vms + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (room, room))
raise SystemExit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is not enforced elsewhere")
def test_an_address_space_that_holds_the_target_only(target, tmp_path, answer):
    """`ulimit -v`, as shells set it: the limit is real, and so is the file that does not fit below it."""
    large = write_transformer(tmp_path / "large.gguf", width=768, layers=6)  # 140 MB
    answer("-m", target, "-d", "none")  # finds out here, without the limit, whether llama.cpp works

    def limited(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = ["generate", "-m", target, "-p", "hello", "--max-tokens", "4", "--threads", "1", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-c", _LIMITED, str(120 << 20), *map(str, command)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip

    assert limited("-d", "none").returncode == 0
    refused = limited("-d", large)
    assert refused.returncode == 3, refused.stderr
    assert f"The draft model {large} cannot be loaded" in refused.stderr
    assert "Traceback" not in refused.stderr
    plain = limited("-d", large, "--allow-plain")
    assert plain.returncode == 0, plain.stderr
    assert "Continuing without a draft model" in plain.stderr
    target_itself = limited("-m", large, "-d", "none")
    assert target_itself.returncode == 4
    assert "memory does not suffice" in target_itself.stderr


# -- 38: damaged files ---------------------------------------------------------------------------------------------


def _damaged(kind: str, source: Path, path: Path) -> Path:
    data = source.read_bytes()
    if kind == "html":
        data = b"<!DOCTYPE html>\n<html><body>404: Not found</body></html>\n" * 40
    elif kind == "magic":
        data = b"GGML" + data[4:]
    else:
        data = data[: {"0 B": 0, "3 B": 3, "1 kB": 1024, "half": len(data) // 2, "one short": len(data) - 1}[kind]]
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", ["0 B", "3 B", "1 kB", "half", "one short", "magic", "html"])
def test_damaged_files_are_refused_before_anything_is_generated(kind, target, draft, tmp_path, answer, run):
    broken = _damaged(kind, target, tmp_path / "broken.gguf")
    for arguments in (("-m", broken, "-d", "none"), ("-m", target, "-d", broken)):
        done = answer(*arguments)
        assert done.code == 3
        assert done.out.strip() == ""
        assert str(broken) in done.err
        assert "Traceback" not in done.err
        if kind in ("half", "one short"):
            assert str(broken.stat().st_size) in done.err, "the actual size"
            assert str(target.stat().st_size) in done.err, "and the one expected"
    assert run("models", "show", broken).code == 3
    assert run("models", "check", target, broken).code == 3
    assert run("models", "check", broken, draft).code == 3


# -- 41: names of folders ------------------------------------------------------------------------------------------


@pytest.fixture
def unusual(tmp_path: Path) -> Path:
    folder = tmp_path / "моделі 模型 ünï"
    folder.mkdir()
    return folder


def test_models_and_batches_in_unusual_folders(unusual, monkeypatch, answer):
    model = write_transformer(unusual / "my model (1).gguf")
    draft = write_transformer(unusual / "der Entwurf.gguf", near=0.2)
    (unusual / "ein gabe.jsonl").write_text('{"prompt": "hello", "id": "ü"}\n', encoding="utf-8")
    done = answer(
        "-m", model, "-d", draft, "--input", unusual / "ein gabe.jsonl", "--output", unusual / "aus gabe.jsonl"
    )
    assert done.code == 0
    record = json.loads((unusual / "aus gabe.jsonl").read_text(encoding="utf-8"))
    assert record["id"] == "ü"
    assert record["model"]["target_path"] == str(model)
    assert record["model"]["draft_path"] == str(draft)


def test_home_temporary_folder_and_settings_in_an_unusual_folder(unusual, tmp_path):
    model = write_transformer(unusual / "my model (1).gguf")
    home = unusual / "home"
    (home / "config").mkdir(parents=True)
    (home / "tmp").mkdir()
    (home / "config" / "config.toml").write_text(f'target = "{model.as_posix()}"\ndraft = "none"\nmax_tokens = 4\n')
    environment = {
        **os.environ, "HOME": str(home), "TMPDIR": str(home / "tmp"), "SPEC_LOCAL_HOME": str(home), "LC_ALL": "C",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    del environment["SPEC_LOCAL_MODELS"]
    command = [sys.executable, "-m", "spec_local.cli.main", "generate", "-p", "hello", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment, cwd=unusual)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert json.loads(done.stdout)["model"]["target_path"] == str(model)
    # A Python that was told to believe in ASCII cannot open the file; it says so.
    done = subprocess.run(
        command, capture_output=True, check=False, env={**environment, "PYTHONUTF8": "0"}, cwd=unusual
    )
    assert done.returncode == 2
    assert b"PYTHONUTF8=1" in done.stderr
    assert b"Traceback" not in done.stderr


def test_home_relative_and_linked_paths(unusual, monkeypatch, run):
    model = write_transformer(unusual / "my model (1).gguf")
    (unusual / "link.gguf").symlink_to(model)
    monkeypatch.setenv("HOME", str(unusual))
    monkeypatch.chdir(unusual)
    for written in ("~/my model (1).gguf", "./my model (1).gguf", "my model (1).gguf", unusual / "link.gguf"):
        done = run("generate", "-m", written, "-d", "none", "-p", "hello", "--max-tokens", 2, "--json")
        assert done.code == 0, done.err
        assert Path(json.loads(done.out)["model"]["target_path"]).samefile(model)


def test_errors_show_the_path_unmangled(unusual, answer):
    done = answer("-m", unusual / "не там.gguf", "-d", "none")
    assert done.code == 3
    assert str(unusual / "не там.gguf") in done.err


# -- besides -------------------------------------------------------------------------------------------------------


def test_a_recurrent_target_says_how_it_is_cut_back_and_answers_the_same(tmp_path, draft, answer):
    path = write_recurrent(tmp_path / "r.gguf")
    plain = json.loads(answer("-m", path, "-d", "none", "--json", "--seed", 3).out)
    said = json.loads(answer("-m", path, "-d", "text", "--draft-length", 4, "--json", "--seed", 3).out)
    assert said["speculation"]["state"] == "on"
    assert said["model"]["caches"] == {"target": "checkpoints", "draft": None}
    assert said["token_ids"] == plain["token_ids"]


def test_an_engine_of_automatic_size_knows_its_size(target):
    with spec_local.load(target, draft="text", options=EngineOptions(n_ctx="auto", threads=1)) as engine:
        assert engine.n_ctx == engine.options.n_ctx == engine.memory.n_ctx == 2048


def test_a_model_that_is_missing_is_a_model_error():
    with pytest.raises(ModelError):
        spec_local.load("no-such-model")
