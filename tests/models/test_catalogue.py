"""The catalogue: its files, its rules, and the user's own entries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_local.errors import ModelError, UsageError
from spec_local.models_manifest import catalogue as module
from spec_local.models_manifest.catalogue import (
    Catalogue,
    ModelEntry,
    Pair,
    PartsSource,
    add_entry,
    builtin_catalogue,
    load_catalogue,
    remove_entry,
    schema_text,
    user_catalogue_path,
)
from spec_local.models_manifest.manage import add_model, remove_model
from spec_local.models_manifest.resolve import resolve_model, resolve_pair
from spec_local.paths import models_folder

FOLDER = Path(module.__file__).parent


def test_the_schema_file_is_the_generated_one() -> None:
    assert (FOLDER / "catalogue.schema.json").read_text("utf-8") == schema_text()


def test_the_built_in_catalogue_is_consistent() -> None:
    catalogue = builtin_catalogue().merged(Catalogue())
    assert catalogue.default_pair == "qwen2.5-coder-1.5b"
    default = catalogue.pair("qwen2.5-coder-1.5b")
    assert (default.target, default.draft) == ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct")
    names = {entry.name for entry in catalogue.models}
    assert not names & {pair.name for pair in catalogue.pairs}, "a name means a pair or a model"
    for pair in catalogue.pairs:
        target, draft = catalogue.model(pair.target), catalogue.model(pair.draft)
        assert target.family == draft.family, pair.name
        assert target.parameters is None or draft.parameters is None or draft.parameters < target.parameters
    for entry in catalogue.models:
        assert entry.licence
        assert entry.title


def test_the_default_pair_has_two_sources_with_checksums() -> None:
    catalogue = builtin_catalogue()
    for name in ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"):
        _, variant = catalogue.find(f"{name}:Q4_K_M")
        assert [source.kind for source in variant.sources] == ["hub", "parts"]
        assert variant.files[0].sha256
        assert variant.bytes == variant.files[0].bytes
        parts = variant.sources[1]
        assert isinstance(parts, PartsSource)
        assert all(part.sha256 for part in parts.parts)


def test_no_address_of_a_package_index_is_fixed() -> None:
    """Package parts come from wherever the user's own pip is pointed at."""
    text = (FOLDER / "catalogue.json").read_text("utf-8")
    assert "http" not in text
    assert "pypi" not in text.lower()


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(ModelError, match="No model is called") as caught:
        load_catalogue().model("qwen2.5-coder-1.5-instruct")
    assert "qwen2.5-coder-1.5b-instruct" in caught.value.hint
    with pytest.raises(ModelError, match="not listed in q9") as caught:
        load_catalogue().find("qwen2.5-coder-1.5b-instruct:q9")
    assert "q4_k_m" in caught.value.hint


def entry(name: str, **changes: Any) -> ModelEntry:
    source = {"kind": "hub", "repository": "me/mine"}
    variant = {"quantisation": "q8_0", "files": [{"name": f"{name}.gguf"}], "sources": [source]}
    facts = {"name": name, "title": name, "family": "mine", "licence": "MIT", "variants": [variant]}
    return ModelEntry.model_validate(facts | changes)


def test_the_users_entries_are_kept_and_win(home: Path) -> None:
    add_entry(entry("mine"))
    add_entry(entry("qwen2.5-coder-1.5b-instruct", title="My own build"))
    add_entry(entry("big"), Pair(name="big", target="big", draft="mine"))
    catalogue = load_catalogue()
    assert catalogue.model("mine").title == "mine"
    assert catalogue.model("qwen2.5-coder-1.5b-instruct").title == "My own build"
    assert catalogue.pair("big").draft == "mine"
    assert "$schema" not in json.loads(user_catalogue_path().read_text("utf-8"))

    remove_entry("mine")
    catalogue = load_catalogue()
    assert "mine" not in {model.name for model in catalogue.models}
    assert "big" not in {pair.name for pair in catalogue.pairs}, "a pair goes with its draft"
    with pytest.raises(ModelError, match="not in your catalogue"):
        remove_entry("mine")


def test_a_pair_of_unknown_models_is_refused_and_nothing_is_written(home: Path) -> None:
    with pytest.raises(ModelError, match="names a model 'nobody'"):
        add_entry(entry("mine"), Pair(name="p", target="mine", draft="nobody"))
    assert not user_catalogue_path().exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "damaged"),
        ('{"models": [{"name": "UPPER"}]}', r"damaged at models\.0\.name"),
        ('{"surprise": 1}', "damaged at surprise"),
        ('{"schema_version": 2}', "damaged at schema_version"),
    ],
)
def test_a_damaged_user_catalogue_is_named(home: Path, content: str, says: str) -> None:
    path = user_catalogue_path()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ModelError, match=says) as caught:
        load_catalogue()
    assert str(path) in caught.value.message


@pytest.mark.parametrize("name", ["../evil.gguf", "a/b.gguf", "a\\b.gguf", "c:evil.gguf", "", "x\x00.gguf"])
def test_file_names_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        module.ModelFile(name=name)


def test_add_a_file_of_ones_own_and_draft_for_it(home: Path, tmp_path: Path, write_model: Callable[..., Path]) -> None:
    big = write_model(tmp_path / "somewhere" / "big model.gguf")
    small = write_model(tmp_path / "somewhere" / "small.gguf", general__file_type=7)
    add_model("my-small", path=small)
    added = add_model("my-big", path=big, draft="my-small", licence="MIT")
    assert added.variants[0].quantisation == "f32"
    assert added.context_length == 512
    target, draft, notes = resolve_pair("my-big")
    assert (target.path, target.origin) == (big, "path")
    assert draft is not None
    assert draft.path == small
    assert notes == []

    removed = remove_model("my-big")
    assert removed.entry
    assert removed.files == ()
    assert big.exists(), "files of the user's own stay"
    big.unlink()
    with pytest.raises(ModelError):
        resolve_model("my-big")


def test_add_from_the_hub_or_an_address(home: Path) -> None:
    hub = add_model("h", repository="me/mine-GGUF", file="sub/mine-Q5_K_M.gguf").variants[0]
    assert (hub.quantisation, hub.files[0].name, hub.sources[0].kind) == ("q5_k_m", "mine-Q5_K_M.gguf", "hub")
    url = add_model("u", url="https://example.org/x/mine.gguf?download=1", sha256="A" * 64).variants[0]
    assert (url.quantisation, url.files[0].name, url.files[0].sha256) == ("unknown", "mine.gguf", "a" * 64)
    with pytest.raises(UsageError, match="where the model is"):
        add_model("x")
    with pytest.raises(UsageError, match="cannot be a model name"):
        add_model("Not A Name", url="https://example.org/x.gguf")
    with pytest.raises(UsageError, match="cannot be added"):
        add_model("x", repository="no-owner", file="x.gguf")
    with pytest.raises(ModelError, match="No model is called"):
        add_model("x", url="https://example.org/x.gguf", draft="nobody")


def test_remove_deletes_what_is_stored(home: Path) -> None:
    folder = models_folder() / "qwen2.5-coder-0.5b-instruct"
    folder.mkdir(parents=True)
    stored = folder / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    stored.write_bytes(bytes(1000))
    (folder / f"{stored.name}.part").write_bytes(bytes(24))
    (folder / "other.gguf").write_bytes(bytes(10))
    removed = remove_model("qwen2.5-coder-0.5b-instruct:q4_k_m")
    assert (removed.entry, removed.files, removed.bytes) == (False, (stored,), 1024)
    assert [file.name for file in folder.iterdir()] == ["other.gguf"]
    assert remove_model("qwen2.5-coder-0.5b-instruct").bytes == 10
    assert not folder.exists()
