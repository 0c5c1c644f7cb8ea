"""`spec-local models`: what a person sees and types, on small files and an isolated home."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_gguf import N_VOCAB, write_recurrent, write_transformer

from spec_local.cli.main import main
from spec_local.errors import ModelError
from spec_local.models_manifest import read_header, requantised_path, resolve_model

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SPEC_LOCAL_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path / "spec-local"))
    return tmp_path


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    def command(*arguments: object) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = main(["models", *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return int(code), out.decode(), err.decode()

    return command


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_transformer(tmp_path / "target.gguf", layers=8, width=64, recommended={"temp": 0.6, "top_p": 0.9})


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_transformer(tmp_path / "draft.gguf", seed=1, width=32, layers=2)


# -- list and where ------------------------------------------------------------------------------------------------


def test_an_empty_machine_is_told_what_to_do(run):
    code, out, _ = run("list")
    assert code == 0
    assert re.fullmatch(r"No model is on this machine yet. \d+ more can be pulled; .*--all.* shows them.\n", out)


def test_the_whole_catalogue_has_sizes_and_pairs(run):
    code, out, _ = run("list", "--all")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["NAME", "QUANT", "SIZE", "WHERE", "PAIRS"]
    found = next(line for line in lines if line.startswith("qwen2.5-coder-1.5b-instruct "))
    assert re.search(r"q4_k_m +1\.12 GB +not here +qwen2\.5-coder-1\.5b \(target\)", found)
    entries = json.loads(run("list", "--all", "--json")[1])
    assert len(entries) > 20
    assert all(entry["present"] is False and entry["path"] is None for entry in entries)


def test_own_models_and_made_ones_are_listed_by_what_one_types(run, target, draft):
    assert run("add", "mine", target)[0] == 0
    made = requantised_path("mine", "q8_0")
    made.parent.mkdir(parents=True)
    made.write_bytes(draft.read_bytes())
    entries = {entry["name"]: entry for entry in json.loads(run("list", "--json")[1])}
    assert set(entries) == {"mine", "mine:q8_0"}
    assert entries["mine"]["path"] == str(target)
    assert entries["mine"]["bytes"] == target.stat().st_size
    assert entries["mine:q8_0"]["quantisation"] == "q8_0"
    assert resolve_model("mine:q8_0").path == made
    assert "2 models on this machine" in run("list")[1]


def test_where_prints_a_path_and_nothing_else(run, target):
    assert run("where", target)[1] == f"{target}\n"
    assert run("where")[1].strip().endswith("models")
    code, out, err = run("where", "qwen2.5-coder-1.5b-instruct")
    assert (code, out) == (3, "")
    assert "models pull" in err


# -- show ----------------------------------------------------------------------------------------------------------


def test_show_tells_what_a_model_is(run, target):
    code, out, _ = run("show", target)
    assert code == 0
    for wanted in (
        f"{target}", "parameters, F32", "llama, 8 layers, all of them with full attention", "trained for 2048 tokens",
        f"{N_VOCAB} tokens, gpt2 (gpt-2), adds neither BOS nor EOS", "<|im_end|>", "characters (--template prints it)",
        "temperature 0.6 (model file)", "top-p 0.9 (model file)", "for a context of 2048 tokens", "of RAM free",
        "no file on this machine fits as a draft",
    ):  # fmt: skip
        assert wanted in out


def test_show_as_json(run, target):
    said = json.loads(run("show", target, "--json")[1])
    assert said["parameters"] == read_header(target).parameters
    assert (said["recurrent"], said["sliding_window"], said["quantisation"]) == (False, None, "F32")
    assert said["sampling"]["temperature"] == {"value": 0.6, "origin": "model file"}
    assert said["memory"]["fits"] is True
    assert said["metadata"]["general.architecture"] == "llama"
    assert said["metadata"]["tokenizer.ggml.tokens"] == f"array of {N_VOCAB}"


def test_show_prints_the_template_alone(run, target):
    assert run("show", target, "--template")[1].strip() == read_header(target).chat_template


def test_show_finds_drafts_on_this_machine(run, target, draft):
    place = requantised_path("some-draft", "f32")
    place.parent.mkdir(parents=True)
    draft.rename(place)
    other = place.with_name("other.gguf")
    other.write_bytes(place.read_bytes().replace("Ġthe".encode(), "Ġthx".encode()))
    assert "some-draft-f32.gguf" in run("show", target)[1]
    names = [found["name"] for found in json.loads(run("show", target, "--json")[1])["possible_drafts"]]
    assert names == ["some-draft/some-draft-f32.gguf"]


def test_show_says_what_cannot_be_drafted_for(run, tmp_path):
    path = write_recurrent(tmp_path / "r.gguf")
    assert "2 of them recurrent: its state is saved before each draft" in run("show", path)[1]
    assert json.loads(run("show", path, "--json")[1])["recurrent"] is True


def test_show_names_a_broken_template(run, tmp_path):
    assert "broken: The chat template" in run("show", write_transformer(tmp_path / "m.gguf", template="{% if %}"))[1]
    assert "none; ChatML is used" in run("show", write_transformer(tmp_path / "n.gguf", template=None))[1]


def test_show_of_what_is_not_here(run):
    code, out, _ = run("show", "qwen2.5-coder-1.5b-instruct")
    assert code == 0
    assert "q4_k_m (1.12 GB)" in out
    assert "models pull qwen2.5-coder-1.5b-instruct" in out
    assert json.loads(run("show", "qwen2.5-coder-1.5b-instruct", "--json")[1])["present"] is False
    assert run("show", "qwen2.5-codr-1.5b-instruct")[0] == 3


# -- check ---------------------------------------------------------------------------------------------------------


def test_a_pair_that_fits(run, target, draft):
    code, out, err = run("check", target, draft)
    assert (code, err) == (0, "")
    assert f"{N_VOCAB} entries each" in out
    said = json.loads(run("check", target, draft, "--json")[1])
    assert (said["ok"], said["common"], said["first_difference"]) == (True, N_VOCAB, None)


def test_padding_is_accepted_with_a_note(run, target, tmp_path):
    padded = write_transformer(tmp_path / "p.gguf", padding=60)
    assert "The draft has 60 unused entries more at the end (padding)." in run("check", target, padded)[1]
    assert "The target has 60 unused entries more" in run("check", padded, target)[1]


def test_a_pair_that_does_not_fit_is_exit_3_with_sizes_id_and_texts(run, target, tmp_path):
    other = write_transformer(tmp_path / "o.gguf", seed=3)
    other.write_bytes(other.read_bytes().replace("Ġthe".encode(), "Ġthx".encode()))
    wrong = read_header(other).tokenizer.tokens().index("Ġthx".encode())
    code, out, err = run("check", target, other)
    assert (code, out) == (3, "")
    for wanted in ("target.gguf", "o.gguf", f"({N_VOCAB} tokens)", f"First differing id: {wrong}", "' the'", "' thx'"):
        assert wanted in err
    code, out, _ = run("check", target, other, "--json")
    assert code == 3
    assert json.loads(out)["first_difference"] == {"id": wrong, "target_text": "' the'", "draft_text": "' thx'"}


def test_check_needs_two_models_or_a_pair(run, target):
    assert run("check", target)[0] == 2
    assert run("check")[0] == 2
    assert run("check", target, target, "--pair", "qwen2.5-coder-1.5b")[0] == 2
    assert run("check", "--pair", "qwen2.5-coder-1.5b")[0] == 3, "not pulled"
    assert run("check", "--pair", "no-such-pair")[0] == 3


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "draft", "shares"),
    [
        ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct", "100 % of the target's 151665 and 100 %"),
        ("qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct", "26 % of the target's 151665 and 80 % of the draft's"),
        ("gemma-3-270m", "qwen2.5-coder-0.5b-instruct", "37 % of the target's 255901 and 63 % of the draft's 151665"),
    ],
)
def test_real_pairs_in_about_a_second(run, monkeypatch, target, draft, shares):
    monkeypatch.undo()
    try:
        paths = [resolve_model(name).path for name in (target, draft)]
    except ModelError as error:
        pytest.skip(str(error))
    started = time.process_time()
    got, out, _ = run("check", *paths)
    assert time.process_time() - started < 3
    assert got == 0
    assert shares in out


# -- add and remove ------------------------------------------------------------------------------------------------


def test_add_by_path_address_and_repository(run, target):
    code, out, _ = run("add", "mine", target, "--draft", "qwen2.5-coder-0.5b-instruct")
    assert code == 0
    assert "mine (f32) is in your catalogue; qwen2.5-coder-0.5b-instruct drafts for it." in out
    assert run("where", "mine")[1] == f"{target}\n"
    code, _, err = run("add", "far", "https://example.org/x-Q4_K_M.gguf")
    assert code == 0
    assert "models pull far" in err
    added = json.loads(run("add", "hub", "owner/repo", "--file", "x-q8_0.gguf", "--json")[1])
    assert added == {"name": "hub", "quantisation": "q8_0", "draft": None}


def test_add_refuses_what_is_no_model(run, tmp_path):
    (tmp_path / "page.gguf").write_text("<html>")
    assert run("add", "page", tmp_path / "page.gguf")[0] == 3
    assert run("add", "Not A Name", tmp_path / "page.gguf")[0] == 2
    assert run("add", "owner", "owner/repo")[0] == 3


def test_remove_takes_stored_files_and_the_entry_and_leaves_the_users_file(run, target):
    run("add", "mine", target)
    made = requantised_path("mine", "q8_0")
    made.parent.mkdir(parents=True)
    made.write_bytes(b"x" * 1000)
    code, out, err = run("remove", "mine")
    assert code == 0
    assert out == f"{made}\n"
    assert "Deleted 1 file and your catalogue's entry; 1 kB freed." in err
    assert target.exists()
    assert not made.exists()
    assert run("remove", "mine")[0] == 3


def test_remove_of_one_made_quantisation_leaves_the_rest(run, target):
    run("add", "mine", target)
    made = requantised_path("mine", "q8_0")
    made.parent.mkdir(parents=True)
    made.write_bytes(b"x" * 1000)
    assert run("remove", "mine:q8_0")[0] == 0
    assert not made.exists()
    assert run("where", "mine")[0] == 0


# -- requantise ----------------------------------------------------------------------------------------------------


def test_requantise_makes_a_file_that_loads_under_its_name(run, target):
    run("add", "mine", target)
    code, out, err = run("requantise", "mine", "--type", "Q8_0", "--pure")
    assert code == 0, err
    made = requantised_path("mine", "q8_0")
    assert out == f"{made}\n"
    assert "Making q8_0 of target.gguf" in err
    assert "Use it with -m mine:q8_0 or -d mine:q8_0" in err
    assert read_header(made).quantisation == "Q8_0"
    assert made.stat().st_size < target.stat().st_size
    before = made.stat().st_mtime_ns
    assert json.loads(run("requantise", "mine", "--type", "q8_0", "--json")[1])["made"] is False
    assert made.stat().st_mtime_ns == before
    assert json.loads(run("requantise", "mine", "--type", "q8_0", "--force", "--json")[1])["made"] is True
    code, _, err = run("requantise", made, "--type", "q4_0")
    assert code == 0
    assert "It was made of Q8_0, not of the full weights" in err


def test_requantise_refuses_with_a_sentence(run, target, tmp_path):
    code, _, err = run("requantise", target, "--type", "q9_9")
    assert code == 2
    assert "q4_0" in err
    assert run("requantise", "no-such-model", "--type", "q4_0")[0] == 3
    (tmp_path / "cut.gguf").write_bytes(target.read_bytes()[:-100])
    assert run("requantise", tmp_path / "cut.gguf", "--type", "q4_0")[0] == 3
    assert not list(tmp_path.rglob("*.part"))
