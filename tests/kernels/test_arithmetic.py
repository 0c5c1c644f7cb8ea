"""Every format by every instruction set that this processor has: the very bits of the plain reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from spec_local.llama.kernels import trial
from spec_local.llama.kernels.library import FORMATS, open_library

SETS = ("AVX-512 VNNI", "AVX-VNNI", "AVX2")
BLOCKS = {"Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)} | {
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "IQ4_NL": (32, 18),
    "MXFP4": (32, 17),
}
"""Values and bytes of a block."""
SCALES = {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "MXFP4": ()}
"""Where a block's half-precision scales lie; at its beginning unless it says otherwise."""
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def random_weights(kind: str, rows: int, k: int, seed: int, scale: float | None = 1.0) -> Bytes:
    """Random blocks, bytes [rows, row_bytes], with every possible integer; `scale` None leaves scales random too."""
    values, size = BLOCKS[kind]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, k // values, size), dtype=np.uint8)
    if kind == "MXFP4" and scale is not None:
        blocks[:, :, 0] = random.integers(100, 140, blocks.shape[:2])
    for at in SCALES.get(kind, (0,)):
        if scale is not None:
            halves = (scale * random.normal(0, 1, (*blocks.shape[:2], 1))).astype(np.float16)
            blocks[:, :, at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(rows, -1)


def multiply(instructions: str, kind: str, weights: Bytes, x: Floats) -> Floats:
    """float32 [n, rows]; skips where the processor lacks the instructions."""
    library = open_library()
    rows, k, n = len(weights), x.shape[1], len(x)
    out = np.full((n, rows), 7.0, np.float32)
    done = library.kernels_multiply(
        instructions.encode(),
        FORMATS[kind],
        weights.ctypes.data,
        weights.strides[0],
        k,
        rows,
        x.ctypes.data,
        n,
        out.ctypes.data,
    )
    if not done:
        pytest.skip(f"this processor has no {instructions}")
    return out


def same_bits(a: Floats, b: Floats) -> bool:
    nowhere = np.isnan(a) & np.isnan(b)
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | nowhere).all())


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("instructions", SETS)
def test_random_blocks_of_odd_shapes(kernel_library: Path, instructions: str, kind: str) -> None:
    for k, rows, n in ((256, 1, 1), (512, 3, 2), (768, 33, 5), (1536, 9, 8), (256, 66, 17), (768, 5, 40)):
        weights = random_weights(kind, rows, k, seed=k + rows)
        x = np.random.default_rng(n).normal(0, 1, (n, k)).astype(np.float32)
        expected = multiply("reference", kind, weights, x)
        assert np.isfinite(expected).all()
        assert same_bits(multiply(instructions, kind, weights, x), expected), (k, rows, n)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("instructions", SETS)
def test_extreme_blocks(kernel_library: Path, instructions: str, kind: str) -> None:
    """All bits set, none set, the largest activations, scales that are zero, infinite or no number."""
    _, size = BLOCKS[kind]
    k, rows = 512, 6
    x = np.stack([np.full(k, v, np.float32) for v in (0.0, 1.0, -1.0, 3e38, 1e-38)])
    x[1, ::2] = -1.0
    for byte in (0x00, 0xFF, 0x80, 0x7F, 0x11, 0xF0):
        weights = np.full((rows, k // BLOCKS[kind][0] * size), byte, np.uint8)
        assert same_bits(multiply(instructions, kind, weights, x), multiply("reference", kind, weights, x)), byte
    for bits in (0x0000, 0x8000, 0x0001, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01):
        weights = random_weights(kind, rows, k, seed=bits)
        blocks = weights.reshape(rows, -1, size)
        for at in SCALES.get(kind, (0,)):
            blocks[:, :, at], blocks[:, :, at + 1] = bits & 255, bits >> 8
        assert same_bits(multiply(instructions, kind, weights, x), multiply("reference", kind, weights, x)), hex(bits)
    weights = random_weights(kind, rows, k, seed=3, scale=None)
    assert same_bits(multiply(instructions, kind, weights, x), multiply("reference", kind, weights, x))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("instructions", SETS)
def test_a_column_does_not_depend_on_its_neighbours(kernel_library: Path, instructions: str, kind: str) -> None:
    weights = random_weights(kind, 37, 768, seed=1)
    x = np.random.default_rng(2).normal(0, 1, (33, 768)).astype(np.float32)
    together = multiply(instructions, kind, weights, x)
    for n in range(1, 33):
        assert same_bits(multiply(instructions, kind, weights, x[:n].copy()), together[:n])


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_that_lie_apart_and_at_any_address(kernel_library: Path, kind: str) -> None:
    weights = random_weights(kind, 11, 768, seed=5)
    room = np.zeros(weights.size + 13 * len(weights) + 64, np.uint8)
    x = np.random.default_rng(6).normal(0, 1, (5, 768)).astype(np.float32)
    expected = multiply("reference", kind, weights, x)
    row_bytes = weights.shape[1] + 13
    apart = np.lib.stride_tricks.as_strided(room[3:], weights.shape, (row_bytes, 1))
    apart[:] = weights
    for instructions in ("AVX2", open_library().kernels_best().decode()):
        assert same_bits(multiply(instructions, kind, apart, x), expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_reference_is_ggmls_arithmetic(kernel_library: Path, kind: str) -> None:
    """Against ggml's own product of the same quantised matrix, and against plain floating point."""
    with trial.Trial(kind, 768, 40, (3,)) as product, trial.computer(trial.processor(), 1) as ggml:
        expected = product.result(ggml, 3)
        found = multiply("reference", kind, product.weights, product.columns[3])
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_the_check_finds_a_planted_error(kernel_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spec_local.errors import BackendError

    trial.check()
    right = trial.Trial.result
    ours: list[Any] = []

    def result(self: trial.Trial, backend: Any, n: int) -> Floats:
        out = right(self, backend, n)
        ours.append(backend)
        if backend != ours[0]:
            out[n - 1, -1] *= 1.001
        return out

    monkeypatch.setattr(trial.Trial, "result", result)
    with pytest.raises(BackendError, match="differs from ggml's"):
        trial.check()
