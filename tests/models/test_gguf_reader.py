"""The header reader: facts, agreement with the package gguf, and refusal of everything damaged (case 38)."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from spec_local.errors import ModelError
from spec_local.models_manifest.gguf_format import TENSOR_TYPES, Array, read_container
from spec_local.models_manifest.gguf_header import read_header

Write = Callable[..., Path]
Make = Callable[..., bytes]
Meta = Callable[..., dict[str, Any]]
TENSORS = [("token_embd.weight", (32, 8)), ("blk.0.attn_k.weight", (32, 16)), ("blk.1.attn_k.weight", (32, 16))]


def test_facts_of_a_small_model(tmp_path: Path, write_model: Write) -> None:
    tokens = ["Ġa", "<s>", "<|im_end|>", "Ċ", "</s>", "é"]
    header = read_header(
        write_model(tmp_path / "m.gguf", tokens, token_type=[1, 3, 3, 1, 1, 1], general__sampling__temp=0.5)
    )
    assert (header.architecture, header.name, header.quantisation) == ("llama", "Tiny", "F32")
    assert header.parameters == 32 * 8 + 2 * 32 * 16
    assert header.tensor_bytes == 4 * header.parameters
    assert header.context_length == 512
    layers = header.layers
    assert (layers.count, layers.n_embd, layers.n_head) == (2, 32, 4)
    assert layers.kv_widths == ((16, 16), (16, 16))
    assert not header.is_recurrent and layers.sliding_window is None
    tokenizer = header.tokenizer
    assert (tokenizer.model, tokenizer.pre, tokenizer.n_vocab, tokenizer.n_merges) == ("gpt2", "qwen2", 6, 1)
    assert [tokenizer.show(id) for id in (0, 3, 99)] == ["' a'", "'\\n'", "nothing"]
    assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos) == (1, 2, False)
    assert tokenizer.end_ids() == {2}, "an ordinary </s> is text, not an end"
    assert header.chat_template == "{{ messages }}"
    assert header.sampling == {"temp": 0.5}


@pytest.mark.parametrize(
    ("model", "pre", "stated", "adds"),
    [("llama", "default", None, True), ("gpt2", "qwen2", None, False), ("gpt2", "llama-bpe", None, True),
     ("llama", "default", False, False), ("gpt2", "qwen2", True, True)],
)  # fmt: skip
def test_bos_is_added_as_llama_cpp_does(
    tmp_path: Path, write_model: Write, model: str, pre: str, stated: bool | None, adds: bool
) -> None:
    path = write_model(tmp_path / "m.gguf", ggml__model=model, ggml__pre=pre, add_bos_token=stated)
    assert read_header(path).tokenizer.add_bos is adds


def test_sliding_windows_and_recurrent_layers(tmp_path: Path, make_gguf: Make, metadata: Meta) -> None:
    changes = {"general__architecture": "gemma3", "gemma3.block_count": 6, "gemma3.attention.head_count": 4}
    facts = metadata(None, **changes) | {
        "gemma3.embedding_length": 32,
        "gemma3.attention.sliding_window": 16,
        "gemma3.attention.key_length": 24,
    }
    tensors = [(f"blk.{n}.attn_k.weight", (32, 4)) for n in range(6)]
    path = tmp_path / "g.gguf"
    path.write_bytes(make_gguf(facts, tensors))
    layers = read_header(path).layers
    assert layers.sliding == (True, True, True, True, True, False)
    assert layers.sliding_window == 16
    assert layers.kv_widths[0] == (24 * 4, 8 * 4)

    facts = metadata(None, general__architecture="hybrid") | {
        "hybrid.block_count": 2,
        "hybrid.embedding_length": 8,
        "hybrid.attention.head_count": [0, 2],
        "hybrid.ssm.conv_kernel": 4,
        "hybrid.ssm.inner_size": 16,
        "hybrid.ssm.state_size": 3,
        "hybrid.ssm.group_count": 1,
    }
    path.write_bytes(make_gguf(facts, [("blk.0.ssm_in.weight", (8, 4)), ("blk.1.attn_k.weight", (8, 4))]))
    header = read_header(path)
    assert header.is_recurrent and header.is_hybrid
    assert header.layers.kv_widths == ((0, 0), (8, 8))
    assert header.layers.state_width == 3 * (16 + 2 * 3) + 16 * 3


def test_agrees_with_the_package_gguf(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    import numpy as np

    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_context_length(77)
    writer.add_head_count_kv([1, 2, 3])
    writer.add_array("x.floats", [1.5, -2.0])
    writer.add_array("x.flags", [True, False])
    writer.add_bool("x.flag", True)
    writer.add_int64("x.long", -(1 << 40))
    writer.add_float64("x.double", 0.1)
    writer.add_uint8("x.byte", 200)
    writer.add_token_list(["a", "Ġb", "ü"])
    writer.add_token_types([1, 3, 6])
    writer.add_tensor("blk.0.attn_k.weight", np.ones((4, 32), dtype=np.float16))
    writer.add_tensor(
        "blk.0.ffn_up.weight", np.zeros((2, 34), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    ours, theirs = read_container(path), gguf.GGUFReader(path)
    for key, entry in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        value = ours.metadata[key]
        if isinstance(value, Array):
            mine: Any = [text.decode() for text in value.strings()] if value.is_text else value.numbers()
            assert list(mine) == entry.contents(), key
        else:
            assert value == entry.contents(), key
    assert [(t.name, list(t.shape), t.type, t.bytes) for t in ours.tensors] == [
        (t.name, [int(n) for n in t.shape], t.tensor_type.name, int(t.n_bytes)) for t in theirs.tensors
    ]


def test_tensor_sizes_agree_with_the_package_gguf() -> None:
    gguf = pytest.importorskip("gguf")
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name in ("Q8_1", "Q8_K"):  # never stored in files; the package has other sizes for them
            continue
        assert TENSOR_TYPES[int(kind)] == (kind.name, block, size)


def test_every_truncation_is_refused_with_both_sizes(tmp_path: Path, write_model: Write) -> None:
    whole = write_model(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(0, len(whole) - 64, 41), 3, 4, 23, 24, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError) as caught:
            read_header(path)
        assert str(path) in caught.value.message and f"{size} bytes" in caught.value.message
    path.write_bytes(whole)
    read_header(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html><body>Not found</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab", "Git LFS pointer"),
        (b"PK\x03\x04 something else entirely", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "metadata keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 50) + bytes(64), "1125899906842624 bytes for a metadata key"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99) + bytes(64), "unknown value type 99"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 1 << 33) + bytes(64), "entries in k"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 1 << 62) + bytes(64), "entries in k"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1) + bytes(64), "unsupported type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64), "which architecture"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=says) as caught:
        read_header(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"llama__block_count": 1 << 31}, "block_count"),
        ({"llama__block_count": "two"}, "block_count"),
        ({"head_count_kv": "many"}, "head_count_kv"),
        ({"head_count_kv": [1]}, "head_count_kv"),
        ({"token_type": [1, 1]}, "kinds for 2"),
        ({"ggml__tokens": "none"}, "tokens"),
        ({"add_bos_token": 7}, "add_bos_token"),
        ({"bos_token_id": "x"}, "bos_token_id"),
        ({"chat_template": 5}, "chat_template"),
        ({"general__alignment": 33}, "alignment"),
        ({"split__count": 3}, "first of 3 files"),
    ],
)
def test_impossible_facts_are_named(tmp_path: Path, write_model: Write, change: dict[str, Any], says: str) -> None:
    path = write_model(tmp_path / "m.gguf", **change)
    with pytest.raises(ModelError, match=says):
        read_header(path)


def test_tensor_descriptions_are_checked(tmp_path: Path, write_model: Write) -> None:
    whole = write_model(tmp_path / "m.gguf").read_bytes()
    at = whole.index(b"blk.0.attn_k.weight") + len(b"blk.0.attn_k.weight")
    path = tmp_path / "bad.gguf"
    for offset, code, value, says in [
        (0, "I", 5, "5 dimensions"),
        (4, "Q", 1 << 61, "impossible shape"),
        (20, "I", 4096, "impossible type 4096"),
        (20, "I", 12, "which Q4_K cannot store"),
        (24, "Q", 17, "where 1024 is its place"),
        (24, "Q", 1 << 40, "is its place"),
    ]:
        damaged = bytearray(whole)
        struct.pack_into("<" + code, damaged, at + offset, value)
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=says):
            read_header(path)
    path.write_bytes(whole.replace(b"blk.1.attn_k.weight", b"blk.0.attn_k.weight"))
    with pytest.raises(ModelError, match="twice"):
        read_header(path)


@settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_give_sentences(tmp_path: Path, write_model: Write, data: st.DataObject) -> None:
    """Bytes changed, numbers blown up, pieces cut out: either the file still reads, or a ModelError names it."""
    whole = bytearray(write_model(tmp_path / "m.gguf").read_bytes()[:1400])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, len(whole) - 9))
        kind = data.draw(st.sampled_from(["byte", "u32", "u64", "cut"]))
        if kind == "byte":
            whole[at] = data.draw(st.integers(0, 255))
        elif kind == "u32":
            struct.pack_into(
                "<I", whole, at, data.draw(st.sampled_from([0, 1, 9, 1 << 16, (1 << 31) - 1, (1 << 32) - 1]))
            )
        elif kind == "u64":
            struct.pack_into("<Q", whole, at, data.draw(st.sampled_from([0, 1, 1 << 20, 1 << 40, (1 << 64) - 1])))
        else:
            del whole[at : at + data.draw(st.integers(1, 8))]
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(bytes(whole) + bytes(8192))
    try:
        read_header(path).tokenizer.end_ids()
        said = str(path)
    except ModelError as error:
        said = error.message
    assert str(path) in said


@settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=300))
def test_junk_behind_the_magic_gives_a_sentence(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "junk.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + junk)
    with pytest.raises(ModelError, match=r"junk\.gguf"):
        read_header(path)


def test_no_lie_makes_it_allocate_or_hang(tmp_path: Path) -> None:
    """A large sparse file with the most demanding lies: bounded memory, bounded time."""
    path = tmp_path / "big.gguf"
    liars = [
        struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 8) + struct.pack("<Q", 31 << 20),  # a 31 MB string
        struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2 << 20),  # two million empty strings
        struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 10, 1 << 25),  # 256 MB of numbers
        struct.pack("<IQQ", 3, 1 << 18, 0),  # 262144 tensors without a name
        struct.pack("<IQQ", 3, 0, 1 << 16),
    ]
    for liar in liars:
        with path.open("wb") as file:
            file.write(b"GGUF" + liar)
            file.truncate(1 << 30)
        begin = time.perf_counter()
        with pytest.raises(ModelError):
            read_header(path)
        assert time.perf_counter() - begin < 5
        if liar is not liars[1]:  # tracing two million steps takes longer than the rest together
            tracemalloc.start()
            with pytest.raises(ModelError):
                read_header(path)
            assert tracemalloc.get_traced_memory()[1] < 150 << 20
            tracemalloc.stop()


def test_places_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no file"):
        read_header(tmp_path / "missing.gguf")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(ModelError, match="folder"):
        read_header(tmp_path / "folder.gguf")


def test_split_models_are_one(tmp_path: Path, make_gguf: Make, metadata: Meta) -> None:
    tensors = [[TENSORS[0]], [TENSORS[1]], [TENSORS[2]]]
    paths = [tmp_path / f"big-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for n, path in enumerate(paths):
        facts = metadata() if n == 0 else {"general.architecture": "llama"}
        path.write_bytes(make_gguf(facts | {"split.no": n, "split.count": 3, "split.tensors.count": 3}, tensors[n]))
    header = read_header(paths[1])  # any of them stands for the model
    assert header.path == paths[0] and header.files == tuple(paths)
    assert len(header.tensors) == 3 and header.file_bytes == sum(path.stat().st_size for path in paths)

    joined = tmp_path / "big.gguf"
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    with pytest.raises(ModelError, match=r"big\.gguf is several files of a split model, joined") as caught:
        read_header(joined)
    assert "--merge" in caught.value.hint
    joined.write_bytes(paths[0].read_bytes())
    with pytest.raises(ModelError, match="its name does not say so"):
        read_header(joined)

    paths[2].rename(tmp_path / "aside")
    with pytest.raises(ModelError, match=r"big-00003-of-00003\.gguf is not beside it"):
        read_header(paths[0])
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(ModelError, match="says it is file 1 of the model"):
        read_header(paths[0])
    paths[2].write_bytes((tmp_path / "aside").read_bytes()[:-1])
    with pytest.raises(ModelError, match="incomplete"):
        read_header(paths[0])


def test_foreign_scripts_and_spaces_in_paths(tmp_path: Path, write_model: Write) -> None:
    """Case 41: the file opens, and an error shows the path unmangled."""
    path = tmp_path / "моделі 模型 ünï" / "my model (1).gguf"
    write_model(path)
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    assert read_header(path).name == read_header(link).name == "Tiny"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"моделі 模型 ünï"):
        read_header(path)
