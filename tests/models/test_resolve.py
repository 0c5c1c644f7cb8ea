"""From names and paths to files, in this program's folder and in those of others."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_local.errors import ModelError, UsageError
from spec_local.models_manifest.catalogue import ModelEntry, Pair, add_entry
from spec_local.models_manifest.download import pull
from spec_local.models_manifest.found import find_files
from spec_local.models_manifest.gguf_header import read_header
from spec_local.models_manifest.resolve import NotPulledError, list_models, resolve_model, resolve_pair
from spec_local.models_manifest.store import requantised_path
from spec_local.models_manifest.suggest import possible_drafts
from spec_local.paths import models_folder

Write = Callable[..., Path]


@pytest.fixture
def source(tmp_path: Path, write_model: Write) -> Path:
    """A model file that stands for `tiny`."""
    return write_model(tmp_path / "source.gguf")


@pytest.fixture
def tiny(home: Path, source: Path) -> Path:
    """Catalogue `tiny` (q4_0, q8_0) and `tinier` as a pair; returns where `tiny` is stored, not yet there."""
    content = source.read_bytes()
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    for name, kinds in (("tiny", ("q4_0", "q8_0")), ("tinier", ("q4_0",))):
        variants = [
            {
                "quantisation": kind,
                "files": [{"name": f"{name}-{kind}.gguf", **facts}],
                "sources": [{"kind": "hub", "repository": f"Me/{name}-GGUF"}],
            }
            for kind in kinds
        ]
        entry = {"name": name, "title": name, "family": "tiny", "licence": "MIT", "variants": variants}
        pair = Pair(name="tiny-pair", target="tiny", draft="tinier") if name == "tinier" else None
        add_entry(ModelEntry.model_validate(entry), pair)
    return models_folder() / "tiny" / "tiny-q4_0.gguf"


def put(source: Path, place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)
    return place


def test_a_stored_model_by_name(tiny: Path, source: Path) -> None:
    put(source, tiny)
    for spec in ("tiny", "TINY", "tiny:q4_0", "tiny:Q4_0", " tiny "):
        found = resolve_model(spec)
        assert (found.path, found.name, found.origin) == (tiny, "tiny", "spec-local")
        assert found.entry is not None


def test_without_a_quantisation_whichever_is_here_serves(tiny: Path, source: Path) -> None:
    put(source, tiny.with_name("tiny-q8_0.gguf"))
    assert resolve_model("tiny").name == "tiny:q8_0"
    with pytest.raises(NotPulledError, match="tiny is not on this machine yet"):
        resolve_model("tiny:q4_0")


def test_a_requantised_file_counts(tiny: Path, source: Path) -> None:
    made = put(source, requantised_path("tiny", "Q6_K"))
    found = resolve_model("tiny:q6_k")
    assert (found.path, found.name) == (made, "tiny:q6_k")
    assert found.entry is not None
    with pytest.raises(ModelError, match="not listed in q5_0"):
        resolve_model("tiny:q5_0")


def test_a_damaged_size_is_not_presence(tiny: Path, source: Path) -> None:
    put(source, tiny)
    tiny.write_bytes(tiny.read_bytes()[:-1])
    with pytest.raises(NotPulledError):
        resolve_model("tiny")


def test_paths_in_every_form(tiny: Path, source: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 41: foreign scripts, spaces, `~`, relative paths, links."""
    folder = home / "моделі 模型 ünï"
    model = put(source, folder / "my model (1).gguf")
    link = folder / "link.gguf"
    link.symlink_to(model)
    monkeypatch.chdir(folder)
    for spec in (str(model), "~/моделі 模型 ünï/my model (1).gguf", "./my model (1).gguf", "my model (1).gguf"):
        assert resolve_model(spec).path == model
    assert resolve_model("link.gguf").path == link
    plain = put(source, folder / "no-suffix")
    assert resolve_model("no-suffix").path == plain
    assert resolve_model(str(model)).entry is None


def test_the_entry_of_a_path_is_known_by_its_name(tiny: Path, source: Path, tmp_path: Path) -> None:
    elsewhere = put(source, tmp_path / "downloads" / "Tiny-Q4_0.gguf")
    entry = resolve_model(str(elsewhere)).entry
    assert entry is not None
    assert entry.name == "tiny"


def test_what_is_not_there_is_said_with_a_way_out(tiny: Path, source: Path, tmp_path: Path) -> None:
    put(source, tmp_path / "dir" / "model.gguf")
    for spec, says, hint in [
        (str(tmp_path / "dir" / "modle.gguf"), "There is no file", "Did you mean model.gguf?"),
        (str(tmp_path / "nowhere" / "m.gguf"), "There is no file", "no folder"),
        (str(tmp_path / "dir"), "is a folder", "model.gguf"),
        ("tinny", "No model is called 'tinny'", "tiny"),
        ("tiny-pair", "is a pair of models", "both at once are --pair tiny-pair"),
        ("tiny", "not on this machine yet (", "spec-local models pull tiny"),
    ]:
        with pytest.raises(ModelError) as caught:
            resolve_model(spec)
        assert says in caught.value.message
        assert hint in caught.value.hint
    with pytest.raises(UsageError):
        resolve_model(" ")


def test_any_file_of_a_split_means_the_first(home: Path, source: Path, tmp_path: Path) -> None:
    first = put(source, tmp_path / "big-00001-of-00002.gguf")
    second = tmp_path / "big-00002-of-00002.gguf"
    with pytest.raises(ModelError, match="big-00002-of-00002"):
        resolve_model(str(first))
    put(source, second)
    assert resolve_model(str(second)).path == first


def test_models_of_other_programs_are_used_where_they_lie(
    tiny: Path, source: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    blob = home / ".ollama/models/blobs" / f"sha256-{digest}"
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/tiny-llm/1b"
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}]
    places = [
        home / ".cache/huggingface/hub/models--Me--tiny-GGUF/snapshots/abc/tiny-q4_0.gguf",
        home / ".cache/llama.cpp/Me_tiny-GGUF_tiny-q4_0.gguf",
        home / ".lmstudio/models/Me/tiny-GGUF/tiny-q4_0.gguf",
        blob,
    ]
    origins = ["hub cache", "llama.cpp", "LM Studio", "Ollama"]
    monkeypatch.setattr("sys.platform", "linux")
    for place, origin in zip(places, origins, strict=True):
        put(source, place)
        if origin == "Ollama":
            manifest.parent.mkdir(parents=True)
            manifest.write_text(json.dumps({"layers": layers}))
            (manifest.parent / "broken").write_text("{")
        found = resolve_model("tiny")
        assert (found.path, found.origin) == (place, origin)
        assert pull("tiny") == place, "what is here is not fetched again"
        assert next(model for model in list_models() if model.name == "tiny").path == place
        place.unlink()
    with pytest.raises(NotPulledError):
        resolve_model("tiny")


def test_found_files_have_names(home: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    put(source, home / ".lmstudio/models/me/repo/model.gguf")
    put(source, home / ".lmstudio/models/me/repo/big-00001-of-00002.gguf")
    put(source, home / ".lmstudio/models/me/repo/big-00002-of-00002.gguf")
    put(source, home / ".cache/huggingface/hub/models--A--b/snapshots/s/c.gguf")
    found = {(file.name, file.origin) for file in find_files()}
    assert found == {
        ("me/repo/model.gguf", "LM Studio"),
        ("me/repo/big-00001-of-00002.gguf", "LM Studio"),
        ("A/b/c.gguf", "hub cache"),
    }
    assert resolve_model("me/repo/model.gguf").path == home / ".lmstudio/models/me/repo/model.gguf"
    listed = {model.name: model for model in list_models() if model.path}
    assert set(listed) == {name for name, _ in found}


def test_the_default_pair_is_asked_for_as_a_pair(home: Path) -> None:
    with pytest.raises(NotPulledError) as caught:
        resolve_pair()
    assert caught.value.name == "qwen2.5-coder-1.5b"
    assert caught.value.bytes == 1_117_320_768 + 491_400_064
    with pytest.raises(NotPulledError) as caught:
        resolve_pair(draft="none")
    assert caught.value.name == "qwen2.5-coder-1.5b-instruct"


def test_auto_takes_the_paired_draft_if_it_is_here(tiny: Path, source: Path) -> None:
    put(source, tiny)
    target, draft, notes = resolve_pair("tiny")
    assert target.path == tiny
    assert draft is None
    assert "models pull tinier" in notes[0]
    here = put(source, models_folder() / "tinier" / "tinier-q4_0.gguf")
    for asked in ("auto", None, ""):
        _, draft, notes = resolve_pair("tiny", asked)
        assert draft is not None
        assert draft.path == here
        assert notes == []
    for asked in ("none", "text"):
        assert resolve_pair("tiny", asked)[1:] == (None, [])
    draft = resolve_pair(str(tiny), str(here))[1]
    assert draft is not None
    assert draft.path == here


def test_a_target_without_a_pair_drafts_from_text(home: Path, source: Path) -> None:
    _, draft, notes = resolve_pair(str(source))
    assert draft is None
    assert "pairs no draft model with source.gguf" in notes[0]


def test_a_pair_by_name(tiny: Path, source: Path) -> None:
    with pytest.raises(UsageError, match="cannot both be given"):
        resolve_pair("tiny", pair="tiny-pair")
    put(source, tiny)
    with pytest.raises(NotPulledError) as caught:
        resolve_pair(pair="tiny-pair")
    assert caught.value.name == "tinier"
    put(source, models_folder() / "tinier" / "tinier-q4_0.gguf")
    target, draft, _ = resolve_pair(pair="tiny-pair")
    assert draft is not None
    assert (target.name, draft.name) == ("tiny", "tinier")
    with pytest.raises(ModelError, match="No pair is called"):
        resolve_pair(pair="tiny-pear")


def test_drafts_that_happen_to_be_here(home: Path, write_model: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    target = read_header(write_model(home / "target.gguf", general__filler="x" * 100_000))
    folder = home / ".lmstudio/models/me/repo"
    write_model(folder / "small.gguf", general__filler="x" * 1000)
    write_model(folder / "smaller.gguf")
    write_model(folder / "as-large.gguf", general__filler="x" * 100_000)
    write_model(folder / "other-vocabulary.gguf", [f"t{n}" for n in (7, 6, 5, 4)])
    write_model(folder / "foreign.gguf", [f"u{n}" for n in range(8)])
    (folder / "damaged.gguf").write_bytes(b"GGUF")
    assert [draft.file.name for draft in possible_drafts(target)] == [
        "me/repo/smaller.gguf",
        "me/repo/small.gguf",
        "me/repo/other-vocabulary.gguf",
    ], "those of the target's own vocabulary first"
