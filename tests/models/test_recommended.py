"""Recommended sampling: the file before the catalogue, each with its origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_local.models_manifest.catalogue import builtin_catalogue
from spec_local.models_manifest.gguf_header import read_header
from spec_local.models_manifest.recommended import recommended_sampling


def test_the_file_goes_before_the_catalogue(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    entry = builtin_catalogue().model("qwen2.5-coder-1.5b-instruct")
    keys = {"general__sampling__temp": 0.8, "general__sampling__top_k": 64, "general__sampling__penalty_repeat": -1.0}
    header = read_header(write_model(tmp_path / "m.gguf", **keys, general__sampling__mirostat=2))
    found = recommended_sampling(header, entry)
    assert found["temperature"] == (0.8, "model file"), "not 0.800000011920929"
    assert found["top_k"] == (64, "model file")
    assert found["top_p"] == (0.8, "catalogue")
    assert "repeat_penalty" not in found, "a value that cannot be is ignored"
    assert set(found) <= {"temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty"}


def test_nothing_known_recommends_nothing(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    assert recommended_sampling(None, None) == {}
    assert recommended_sampling(read_header(write_model(tmp_path / "m.gguf")), None) == {}
