"""Memory estimates: arithmetic that can be done by hand, and what llama.cpp itself reported for real files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spec_local.errors import UsageError
from spec_local.models_manifest.estimate import (
    compute_bytes,
    kv_bytes,
    recurrent_bytes,
    repacked_bytes,
    split_weights,
)
from spec_local.models_manifest.gguf_header import Header, read_header


@pytest.fixture
def header(tmp_path: Path, write_model: Callable[..., Path]) -> Header:
    """Two layers, two key/value heads of eight elements."""
    return read_header(write_model(tmp_path / "m.gguf"))


def test_keys_and_values(header: Header) -> None:
    per_token = 2 * (16 + 16)
    assert kv_bytes(header, 256) == 256 * per_token * 2
    assert kv_bytes(header, 257) == 512 * per_token * 2, "cells come in steps of 256"
    assert kv_bytes(header, 256, n_seq=3) == 3 * 256 * per_token * 2
    assert kv_bytes(header, 256, "f32", "f32") == 256 * per_token * 4
    assert kv_bytes(header, 256, "q8_0", "f16") == 256 * 2 * (34 + 32)
    with pytest.raises(UsageError, match="'q3_k' is no cache type"):
        kv_bytes(header, 256, "q3_k")


def test_sliding_windows_save_memory_only_when_they_may(header: Header) -> None:
    layers = replace(header.layers, sliding=(True, False), sliding_window=100)
    sliding = replace(header, layers=layers)
    assert kv_bytes(sliding, 4096) == kv_bytes(header, 4096)
    small = kv_bytes(sliding, 4096, swa_full=False, n_ubatch=128)
    assert small == (256 + 4096) * (16 + 16) * 2


def test_recurrent_states(header: Header) -> None:
    assert recurrent_bytes(header) == 0
    state = replace(header, layers=replace(header.layers, recurrent=(True, True), state_width=10))
    assert recurrent_bytes(state, n_seq=2, snapshots=3) == 2 * 10 * 4 * 2 * 4


def test_the_compute_buffer_grows_with_what_fills_it(header: Header) -> None:
    assert compute_bytes(header, 256, rows=9) - compute_bytes(header, 256, rows=1) == 8 * 8 * 4
    assert compute_bytes(header, 1 << 16, flash_attention=False) > compute_bytes(header, 1 << 16)
    assert compute_bytes(header, 256, n_ubatch=64) < compute_bytes(header, 256, n_ubatch=512)


def test_offloaded_layers_are_the_last_ones(header: Header) -> None:
    embedding, layer = 32 * 8 * 4, 32 * 16 * 4
    assert split_weights(header, 0).host == header.tensor_bytes
    output = embedding  # tied: the device gets a copy, and the output layer is the first to be offloaded
    assert (split_weights(header, 1).host, split_weights(header, 1).device) == (embedding + 2 * layer, output)
    assert (split_weights(header, 2).host, split_weights(header, 2).device) == (embedding + layer, output + layer)
    everything = split_weights(header, 99)
    assert everything.host == embedding
    assert everything.device == 2 * layer + embedding, "tied output: the device gets a copy"


# What llama.cpp printed for these files: (n_ctx, flash attention, n_ubatch, swa_full, cache type) → MiB of KV, compute.
REPORTED = {
    "smollm2-135m-instruct": {
        (8192, True, 512, True, "f16"): (180.0, 98.25),
        (8192, False, 512, True, "f16"): (180.0, 166.38),
        (8192, True, 512, True, "q8_0"): (95.625, 99.38),
        (2048, True, 128, True, "f16"): (45.0, 25.63),
    },
    "gemma-3-270m": {
        (8192, True, 512, True, "f16"): (144.0, 514.5),
        (8192, True, 512, False, "f16"): (39.0, 514.5),
        (2048, True, 128, True, "f16"): (36.0, 128.63),
    },
    "qwen2.5-coder-0.5b-instruct": {(8192, True, 512, True, "f16"): (96.0, 300.25)},
    "qwen2.5-coder-1.5b-instruct": {
        (8192, True, 512, True, "f16"): (224.0, 302.75),
        (8192, False, 512, True, "f16"): (224.0, 305.75),
        (8192, True, 512, True, "q8_0"): (119.0, 305.75),
    },
}


# With room for the logits of 17 tokens only, at n_ctx 4096: MiB of the compute buffer, and of repacked weights.
RESERVED = {
    "smollm2-135m-instruct": (17.51, 0.0),
    "qwen2.5-coder-0.5b-instruct": (39.51, 28.05),
    "qwen2.5-coder-1.5b-instruct": (68.51, 596.5),
}


@pytest.mark.models
@pytest.mark.parametrize("name", RESERVED)
def test_agrees_with_what_llama_cpp_reports_for_few_rows(name: str, real_header: Callable[[str], Header]) -> None:
    header = real_header(name)
    compute, repacked = RESERVED[name]
    assert compute_bytes(header, 4096, rows=0, most_rows=17) == pytest.approx(compute * 2**20, rel=0.02)
    assert repacked_bytes(header, machine="x86_64") == pytest.approx(repacked * 2**20, rel=0.01)


def test_repacked_copies_are_of_matrices_on_the_host(header: Header) -> None:
    four = replace(header, tensors=tuple(replace(tensor, type="Q4_0") for tensor in header.tensors))
    layer = header.tensors[1].bytes
    assert (repacked_bytes(four, gpu_layers=1), repacked_bytes(four, gpu_layers=2)) == (2 * layer, layer)
    assert repacked_bytes(four) == 2 * layer, "the embedding is looked up, not multiplied"
    assert repacked_bytes(four, gpu_layers=99) == 0
    eight = replace(header, tensors=tuple(replace(tensor, type="Q8_0") for tensor in header.tensors))
    assert repacked_bytes(eight, machine="x86_64") == 0
    assert repacked_bytes(eight, machine="arm64") == 2 * layer


@pytest.mark.models
@pytest.mark.parametrize("name", REPORTED)
def test_agrees_with_what_llama_cpp_reports(name: str, real_header: Callable[[str], Header]) -> None:
    header = real_header(name)
    for (n_ctx, flash, n_ubatch, swa_full, kind), (kv, compute) in REPORTED[name].items():
        assert kv_bytes(header, n_ctx, kind, kind, swa_full=swa_full, n_ubatch=n_ubatch) == kv * 2**20
        assert compute_bytes(header, n_ctx, n_ubatch, flash, rows=0) == pytest.approx(compute * 2**20, rel=0.05)
