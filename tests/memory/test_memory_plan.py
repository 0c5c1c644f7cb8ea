"""The plan made before loading: sizes, what `auto` chooses, what is refused and what is suggested instead."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from tiny_gguf import write_recurrent, write_transformer

from spec_local.models_manifest import compute_bytes
from spec_local.models_manifest.gguf_header import Header, read_header
from spec_local.session import memory
from spec_local.session.memory import plan, suggestions, with_sizes
from spec_local.session.options import READ_ALONG, EngineOptions
from spec_local.session.room import Room, _container_room

GB = 10**9


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Header:
    return read_header(write_transformer(tmp_path_factory.mktemp("t") / "t.gguf", width=32, layers=4, n_ctx_train=8192))


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Header:
    return read_header(write_transformer(tmp_path_factory.mktemp("d") / "d.gguf", seed=1, width=32, layers=2))


def test_parts_add_up_over_both_models(target, draft):
    found = plan(EngineOptions(n_ctx=4096), target, draft, Room(GB))
    assert found.n_ctx == 4096
    assert [model.role for model in found.models] == ["target", "draft"]
    assert found.total == sum(model.total for model in found.models)
    assert found.models[0].weights == target.tensor_bytes
    assert found.models[0].cache == 2 * found.models[1].cache == 4096 * 4 * (32 + 32) * 2
    assert found.on_devices == 0
    assert found.fits()
    assert "for a context of 4096 tokens" in found.sentence()


def test_sequences_share_one_cache_of_all_their_tokens(target):
    one = plan(EngineOptions(), target, None, Room(GB)).models[0]
    four = plan(EngineOptions(parallel=4), target, None, Room(GB)).models[0]
    assert four.cache == 4 * one.cache


def test_the_rows_a_draft_reads_along_are_counted(target, draft):
    found = plan(EngineOptions(n_ctx=4096), target, draft, Room(GB)).models[1]
    assert EngineOptions().draft_rows == READ_ALONG
    assert found.compute == compute_bytes(draft, 4096, rows=READ_ALONG, most_rows=READ_ALONG)
    many = plan(EngineOptions(n_ctx=4096, parallel=16), target, draft, Room(GB)).models[1]
    assert many.compute == compute_bytes(draft, 16 * 4096, rows=16, most_rows=16)


def test_auto_takes_the_trained_context_where_it_fits(target):
    found = plan(EngineOptions(n_ctx="auto"), target, None, Room(GB))
    assert found.n_ctx == 8192
    assert with_sizes(EngineOptions(n_ctx="auto"), found).tokens == 8192


def test_auto_stops_at_a_sane_size(target):
    assert plan(EngineOptions(n_ctx="auto"), replace(target, context_length=1 << 20), None, Room(GB)).n_ctx == 32768


def test_auto_takes_the_largest_context_that_fits(target, draft):
    room = Room(plan(EngineOptions(n_ctx=2048), target, draft, Room(GB)).needed_host)
    found = plan(EngineOptions(n_ctx="auto"), target, draft, room)
    assert 0 < found.n_ctx < 2048
    assert found.fits(memory._SHARE)
    assert not plan(EngineOptions(n_ctx=found.n_ctx + 256), target, draft, room).fits(memory._SHARE)


def test_the_default_context_is_not_beyond_the_trained_one(target):
    short = replace(target, context_length=2048)
    assert plan(EngineOptions(), short, None, Room(GB)).n_ctx == 2048
    assert plan(EngineOptions(n_ctx=4096), short, None, Room(GB)).n_ctx == 4096


def test_auto_knows_a_context_shorter_than_a_step(target):
    assert plan(EngineOptions(n_ctx="auto"), replace(target, context_length=100), None, Room(GB)).n_ctx == 100


def test_layers_go_where_there_is_room(target, draft):
    everything = plan(EngineOptions(gpu_layers="all", draft_gpu_layers="all"), target, draft, Room(GB, devices=GB))
    assert everything.gpu_layers == -1
    assert everything.on_devices > everything.needed_host
    auto = EngineOptions(gpu_layers="auto", draft_gpu_layers="auto")
    assert plan(auto, target, draft, Room(GB, devices=GB)).gpu_layers == 5, "four blocks and the output layer"
    three = plan(EngineOptions(gpu_layers=3, draft_gpu_layers=0), target, draft, Room(GB, devices=GB)).on_devices
    some = plan(auto, target, draft, Room(GB, devices=int(three / memory._SHARE) + 1))
    assert (some.gpu_layers, some.draft_gpu_layers) == (3, 0)
    assert some.fits()
    assert plan(auto, target, draft, Room(GB, devices=1000)).gpu_layers == 0
    assert plan(auto, target, draft, Room(GB)).gpu_layers == 0, "there is no device"
    assert plan(auto.model_copy(update={"device": ("none",)}), target, None, Room(GB, devices=GB)).on_devices == 0


def test_shared_memory_counts_once(target):
    found = plan(EngineOptions(), target, None, Room(GB, devices=GB, shared=True))
    need = found.needed_host + found.on_devices
    assert plan(EngineOptions(), target, None, Room(need, devices=GB, shared=True)).fits()
    assert not plan(EngineOptions(), target, None, Room(need - 1, devices=GB, shared=True)).fits()


def test_suggestions_are_true(target, draft):
    options = EngineOptions(n_ctx=8192)
    room = Room(plan(options, target, draft, Room(GB)).needed_host - 1)
    assert not plan(options, target, draft, room).fits()
    said = suggestions(options, target, draft, room)
    assert "--n-ctx 7936" in said
    assert "-d text" in said
    assert "--cache-type-k q8_0 --cache-type-v q8_0" in said
    assert suggestions(options, target, draft, Room(0)) == ""


def test_weights_may_be_read_again_but_the_cache_may_not_be_lost(target):
    found = plan(EngineOptions(), target, None, Room(0))
    weights = found.models[0].weights
    tight = plan(EngineOptions(), target, None, Room(found.needed_host - weights))
    assert not tight.fits()
    assert not tight.hopeless()
    assert plan(EngineOptions(), target, None, Room(found.needed_host - weights - 1)).hopeless()
    assert not plan(EngineOptions(), target, None, Room(0, swap=GB)).hopeless()
    assert plan(EngineOptions(), target, None, Room(GB, address_space=found.total - 1)).hopeless()


def test_recurrent_models_have_a_state_and_no_cache(tmp_path):
    found = plan(EngineOptions(), read_header(write_recurrent(tmp_path / "r.gguf")), None, Room(GB)).models[0]
    assert 0 < found.cache < 200_000  # the state, and four saved ones


def test_a_container_limit_counts(tmp_path):
    assert _container_room(tmp_path) == []
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 600\nfile 400\nactive_file 300\ninactive_file 50\n")
    assert _container_room(tmp_path) == []
    (tmp_path / "memory.max").write_text("5000\n")
    assert _container_room(tmp_path) == [4350], "what is cached of files can be had back"


_MEASURE = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
import psutil
import spec_local.session.engine
from spec_local.language_model import Chunk
from spec_local.llama.library import llama
from spec_local.session.loading import load_models
from spec_local.session.options import EngineOptions
llama()
here = psutil.Process()
before = here.memory_info().rss
target, draft, n_ctx = sys.argv[1:]
loaded = load_models(EngineOptions(target=target, draft=draft, n_ctx=int(n_ctx), threads=1))
for context in loaded.contexts:
    context.decode([Chunk(0, [5] * 256, 1)])
print(here.memory_info().rss - before, loaded.memory.total)
"""


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "draft", "n_ctx"),
    [
        ("smollm2-135m-instruct", "none", 4096),
        ("smollm2-135m-instruct", "none", 8192),
        ("qwen2.5-coder-0.5b-instruct", "none", 4096),
        ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct", 4096),
    ],
)
def test_the_estimate_is_within_a_tenth_of_what_a_process_takes(target, draft, n_ctx):
    from spec_local.errors import ModelError
    from spec_local.models_manifest import resolve_model

    for name in {target, draft} - {"none"}:
        try:
            resolve_model(name)
        except ModelError as error:
            pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, target, draft, str(n_ctx)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    measured, estimated = map(int, done.stdout.split())
    assert estimated == pytest.approx(measured, rel=0.1)
