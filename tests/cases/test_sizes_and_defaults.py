"""The size of the context from the command line, and where values come from, as a person sees it."""

from __future__ import annotations

import json
from typing import get_args

from tiny_gguf import write_transformer

from spec_local.cli.options import _CACHE_TYPES
from spec_local.llama.model_context import CACHE_TYPES
from spec_local.session.options import CacheType


def test_the_cache_types_of_flags_options_and_contexts_are_the_same():
    assert set(_CACHE_TYPES) == set(get_args(CacheType)) == set(CACHE_TYPES)


def test_an_automatic_context_is_the_trained_one_where_memory_allows(target, answer):
    said = json.loads(answer("-m", target, "-d", "text", "--n-ctx", "auto", "--json").out)
    assert said["model"]["n_ctx"] == said["model"]["memory_estimate"]["n_ctx"] == 2048


def test_an_automatic_context_in_a_batch(target, tmp_path, answer):
    (tmp_path / "in.jsonl").write_text('{"prompt": "hello"}\n' * 3)
    files = ("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    assert answer("-m", target, "-d", "text", "--n-ctx", "auto", *files).code == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["model"]["n_ctx"] for record in records] == [2048] * 3


def test_a_context_that_is_no_number(target, answer):
    done = answer("-m", target, "--n-ctx", "much")
    assert done.code == 2
    assert "--n-ctx cannot be 'much': it takes auto or a whole number." in done.err
    assert answer("-m", target, "--n-ctx", 0).code == 2


def test_a_context_beyond_the_trained_one_is_noted(target, answer):
    done = answer("-m", target, "-d", "none", "--n-ctx", 4096)
    assert done.code == 0
    assert "note: The context of 4096 tokens is longer than the 2048 the model was trained for." in done.err


def test_stats_show_memory_and_where_sampling_comes_from(tmp_path, answer):
    path = write_transformer(tmp_path / "m.gguf", recommended={"top_p": 0.8, "min_p": 0.1})
    lines = answer("-m", path, "-d", "text", "--top-k", 5, "--stats").err.splitlines()
    memory = next(line for line in lines if line.startswith("note: Memory estimated before loading: "))
    assert "weights" in memory
    assert "of RAM free" in memory
    sampling = next(line for line in lines if line.startswith("note: Sampling: "))
    for wanted in ("temperature 0 (request)", "top-k 5 (request)", "top-p 0.8 (model file)", "min-p 0.1 (model file)"):
        assert wanted in sampling
    assert "repeat-penalty 1 (default)" in sampling
    assert lines[-1].startswith("6 tokens in "), "statistics are the last line"
