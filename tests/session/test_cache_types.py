"""Quantised caches: what cannot be, and what is known to go wrong, in a sentence that names the flags."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_engines import Load

from spec_local.errors import UsageError
from spec_local.session.loading import fragile_keys
from spec_local.session.options import EngineOptions


@pytest.mark.parametrize("name", ["cache_type_v", "draft_cache_type_v"])
def test_quantised_values_without_flash_attention_name_both_flags(open_engine: Load, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_engine(flash_attn="off", **{name: "q8_0"})
    assert f"--{name.replace('_', '-')} q8_0" in str(caught.value)
    assert "--flash-attn off" in str(caught.value)
    assert "n-ctx" not in str(caught.value)


@pytest.mark.parametrize("values", [{"cache_type_v": "f16"}, {"cache_type_k": "q8_0"}])
def test_other_types_do_without(open_engine: Load, values: dict[str, Any]) -> None:
    assert open_engine(flash_attn="off", pad_width=0, **values).n_ctx == 256


def test_four_bit_keys_of_a_model_known_to_break_are_one_line() -> None:
    def header(architecture: str) -> Any:
        return SimpleNamespace(architecture=architecture, path=Path(f"{architecture}.gguf"))

    four = EngineOptions(cache_type_k="q4_0")
    (line,) = fragile_keys(four, header("qwen2"), header("qwen2"))
    assert "qwen2.gguf" in line
    assert "--cache-type-k q4_0" in line
    assert fragile_keys(four, header("llama"), None) == []
    assert fragile_keys(EngineOptions(cache_type_k="q8_0"), header("qwen2"), None) == []
    (line,) = fragile_keys(EngineOptions(draft_cache_type_k="q4_1"), header("llama"), header("qwen2"))
    assert "--draft-cache-type-k q4_1" in line


def test_a_draft_with_a_shorter_context_says_where_it_ends(open_engine: Load) -> None:
    engine = open_engine(draft_n_ctx=64, pad_width=0)
    assert sum("context ends at 64 tokens (--draft-n-ctx)" in notice for notice in engine.notices) == 1
    assert not any("--draft-n-ctx" in notice for notice in open_engine().notices)
