"""A tiny language model as a real GGUF file, made on the spot, and a draft that nearly agrees with it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

VOCAB, WIDTH, HEADS, LAYERS, HIDDEN = 288, 64, 4, 2, 128
END = 257


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = {}, 256
    for byte in range(256):
        letters[byte] = chr(byte) if byte in plain else chr(spare)
        spare += byte not in plain
    return [letters[byte] for byte in range(256)]


def write_model(path: Path, disturbance: float = 0.0) -> Path:
    """Write a two-layer llama of random weights; `disturbance` blends other random weights in."""
    own, other = np.random.default_rng(1), np.random.default_rng(2)

    def weights(*shape: int, scale: float) -> np.ndarray:
        values = own.standard_normal(shape) + disturbance * other.standard_normal(shape)
        return (scale * values).astype(np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCAB)
    letters = _byte_letters()
    pairs = ["t h", "i n", "e r", "a n", "o n", "r e", "e n", "a t", "o u", "i s"]
    merged = [pair.replace(" ", "") for pair in pairs]
    tokens = [*letters, "<|start|>", "<|end|>", *merged]
    tokens += [f"<unused{i}>" for i in range(VOCAB - len(tokens))]
    control = {256, 257, *range(268, VOCAB)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in control else 1 for i in range(VOCAB)])
    writer.add_token_merges(pairs)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)

    embedding = weights(VOCAB, WIDTH, scale=1.0)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output.weight", weights(VOCAB, WIDTH, scale=0.35))
    for i in range(LAYERS):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{i}.{name}.weight", weights(WIDTH, WIDTH, scale=WIDTH**-0.5))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.{i}.{name}.weight", weights(HIDDEN, WIDTH, scale=WIDTH**-0.5))
        writer.add_tensor(f"blk.{i}.ffn_down.weight", weights(WIDTH, HIDDEN, scale=HIDDEN**-0.5))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "target.gguf")


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "draft.gguf", disturbance=0.15)


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of tiny models do not belong into the user's cache; model files stay where they are."""
    from spec_local.paths import models_folder

    monkeypatch.setenv("SPEC_LOCAL_MODELS", str(models_folder()))
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path_factory.getbasetemp() / "home"))
