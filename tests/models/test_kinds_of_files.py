"""Files that are no models are named for what they are, and not offered in lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_local.errors import ModelError
from spec_local.models_manifest import find_files, list_models, read_header, resolve_model
from spec_local.models_manifest.kinds import no_model
from spec_local.paths import models_folder

NOT_MODELS: list[tuple[dict[str, Any], str]] = [
    ({"general.type": "mmproj", "general.architecture": "clip"}, "a projector"),
    ({"general.architecture": "clip", "clip.has_vision_encoder": True}, "a projector"),
    ({"general.type": "adapter", "general.architecture": "qwen2", "adapter.type": "lora"}, "an adapter"),
    ({"general.type": "imatrix", "imatrix.chunk_count": 3}, "an importance matrix"),
    ({"general.architecture": "bert", "bert.pooling_type": 2}, "embeddings"),
    ({"general.architecture": "nomic-bert"}, "embeddings"),
    ({"general.architecture": "qwen3", "qwen3.pooling_type": 3}, "embeddings"),
    ({"general.architecture": "qwen3", "qwen3.pooling_type": 4}, "ranks documents"),
    ({"general.architecture": "gemma-embedding"}, "embeddings"),
    ({"general.architecture": "t5"}, "encoder and decoder"),
    ({"general.architecture": "t5encoder"}, "embeddings"),
    ({"general.architecture": "llada", "llada.attention.causal": False}, "left to right"),
    ({"general.architecture": "flux"}, "pictures"),
    ({"general.architecture": "eagle3"}, "a head for drafting"),
    ({"general.type": "vocab", "general.architecture": "llama"}, "a vocabulary"),
    ({"general.architecture": "llama", "split.no": 1, "split.count": 3}, "part 2 of 3"),
]


@pytest.mark.parametrize(("facts", "said"), NOT_MODELS)
def test_what_is_no_model_is_named_and_not_listed(
    facts: dict[str, Any], said: str, home: Path, make_gguf: Callable[..., bytes]
) -> None:
    folder = models_folder() / "mine"
    folder.mkdir(parents=True)
    path = folder / "X-F16.gguf"
    path.write_bytes(make_gguf({**facts, "tokenizer.ggml.tokens": ["a", "b"]}, []))
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert said in caught.value.message
    assert "Traceback" not in str(caught.value)
    assert all(file.path != path for file in find_files())
    assert all(model.path != path for model in list_models())
    with pytest.raises(ModelError):
        read_header(resolve_model(str(path)).path)


def test_models_are_models(home: Path, write_model: Callable[..., Path]) -> None:
    folder = models_folder() / "mine"
    folder.mkdir(parents=True)
    path = write_model(folder / "mmproj-is-only-a-name.gguf")
    assert path in [file.path for file in find_files()]
    assert read_header(path).architecture
    (folder / "damaged.gguf").write_bytes(b"GGUF" + b"\xff" * 40)  # said when it is used
    assert len(find_files()) == 2
    for facts in ({}, {"general.type": "model", "general.architecture": "llama", "llama.pooling_type": 0}):
        assert no_model(facts) == ""


def test_a_part_of_a_split_without_its_first(tmp_path: Path, make_gguf: Callable[..., bytes]) -> None:
    path = tmp_path / "m-00002-of-00003.gguf"
    path.write_bytes(make_gguf({"general.architecture": "llama", "split.no": 1, "split.count": 3}, []))
    with pytest.raises(ModelError, match=r"m-00001-of-00003\.gguf, m-00003-of-00003\.gguf are not beside it"):
        resolve_model(str(path))
