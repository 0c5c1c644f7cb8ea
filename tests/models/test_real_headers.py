"""Headers and pairs of real model files, where they are on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_local.errors import ModelError
from spec_local.models_manifest.gguf_header import Header, read_header
from spec_local.models_manifest.pair_check import check_pair
from spec_local.models_manifest.tokenizer import UNUSED

pytestmark = pytest.mark.models
T, D, S, G = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct", "gemma-3-270m"


def test_facts(real_header: Callable[[str], Header]) -> None:
    header = real_header(T)
    assert (header.architecture, header.quantisation, header.layers.count) == ("qwen2", "Q4_K_M", 28)
    assert header.tokenizer.n_vocab == 151_936
    assert header.tokenizer.end_ids() >= {151_645, 151_643}
    assert not header.tokenizer.add_bos
    assert header.chat_template


def test_a_sliding_window(real_header: Callable[[str], Header]) -> None:
    layers = real_header(G).layers
    assert layers.sliding_window == 512
    assert [n for n, slides in enumerate(layers.sliding) if not slides] == [5, 11, 17]
    assert real_header(G).tokenizer.add_bos


@pytest.mark.parametrize(
    ("target", "draft", "of_target", "of_draft"),
    [(T, D, 1.0, 1.0), (T, S, 0.259, 0.798), (G, D, 0.375, 0.633), (S, D, 0.798, 0.259), (T, G, 0.633, 0.375)],
)
def test_pairs_are_judged_in_about_a_second(
    target: str, draft: str, of_target: float, of_draft: float, real_header: Callable[[str], Header]
) -> None:
    paths = real_header(target).path, real_header(draft).path
    begin = time.process_time()
    report = check_pair(read_header(paths[0]), read_header(paths[1]))
    assert time.process_time() - begin < 3  # about 0.3 s of processor time, 1 s for another vocabulary
    assert report.ok
    assert report.shared is not None
    assert report.shared.same_ids is (of_target == 1.0)
    assert report.shared.of_target == pytest.approx(of_target, abs=0.001)
    assert report.shared.of_draft == pytest.approx(of_draft, abs=0.001)


@pytest.mark.parametrize("name", [T, S, G])
def test_tokens_are_spelt_as_llama_cpp_spells_them(name: str, real_header: Callable[[str], Header]) -> None:
    from spec_local.llama.model import Model, Offload

    header = real_header(name)
    model = Model(header.path, Offload(devices=("none",)), vocabulary_only=True)
    spelled, kinds = header.tokenizer.spelled(), header.tokenizer.kinds()
    for token, (text, kind) in enumerate(zip(spelled, kinds, strict=True)):
        if kind != UNUSED:
            assert model.vocabulary.piece(token, special=True) == text
    model.close()


@pytest.mark.slow
def test_the_package_gguf_agrees(real_header: Callable[[str], Header]) -> None:
    gguf = pytest.importorskip("gguf")
    header = real_header(S)
    theirs = gguf.GGUFReader(header.path)
    field = theirs.fields["tokenizer.ggml.tokens"]
    assert header.tokenizer.tokens() == [bytes(field.parts[at]) for at in field.data]
    assert header.tokenizer.kinds() == theirs.fields["tokenizer.ggml.token_type"].contents()
    assert [(t.name, t.bytes) for t in header.tensors] == [(t.name, int(t.n_bytes)) for t in theirs.tensors]


@pytest.mark.parametrize("size", [0, 3, 1 << 10, 1 << 20, -50, -1])
def test_a_truncated_file_is_refused(size: int, tmp_path: Path, real_header: Callable[[str], Header]) -> None:
    """Case 38 on a real file: -50 means half, -1 means one byte short. Sparse, so that nothing is copied."""
    source = real_header(S).path
    whole = source.stat().st_size
    length = {-50: whole // 2, -1: whole - 1}.get(size, size)
    path = tmp_path / "cut.gguf"
    with source.open("rb") as file:
        path.write_bytes(file.read(min(length, 8 << 20)))
    with path.open("r+b") as file:
        file.truncate(length)
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert str(path) in caught.value.message
    assert f"{length} bytes" in caught.value.message
