"""Products with a mixture's experts, each token going to some of them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from spec_local.llama.kernels import library, trial


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "MXFP4"])
@pytest.mark.parametrize(("tokens", "shared"), [(1, True), (5, True), (21, False)])
def test_experts_compute_what_ggmls_do(kernel_library: Path, kind: str, tokens: int, shared: bool) -> None:
    """`shared`: the experts of a token read one vector, as gate and up do; else each its own, as down does."""
    device = library.register().device
    library.take(((library.FORMATS[kind], -1),))
    lib = trial._ggml()
    pointer, number, big = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    lib.ggml_new_tensor_3d.argtypes, lib.ggml_new_tensor_3d.restype = [pointer, number, big, big, big], pointer
    lib.ggml_mul_mat_id.argtypes, lib.ggml_mul_mat_id.restype = [pointer, pointer, pointer, pointer], pointer
    k, rows, experts, used = 512, 37, 6, 3
    random = np.random.default_rng(tokens)
    context = lib.ggml_init(
        trial._InitParams(8 * lib.ggml_tensor_overhead() + lib.ggml_graph_overhead() + 4096, None, True)
    )
    try:
        weights = lib.ggml_new_tensor_3d(context, library.FORMATS[kind], k, rows, experts)
        x = lib.ggml_new_tensor_3d(context, 0, k, 1 if shared else used, tokens)
        ids = lib.ggml_new_tensor_2d(context, 26, used, tokens)  # int32
        product = lib.ggml_mul_mat_id(context, weights, x, ids)
        buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(context, lib.ggml_backend_cpu_buffer_type())
        values = random.normal(0, 1, (experts * rows, k)).astype(np.float32)
        blocks = np.empty(lib.ggml_row_size(library.FORMATS[kind], k) * experts * rows, np.uint8)
        lib.ggml_quantize_chunk(
            library.FORMATS[kind], values.ctypes.data, blocks.ctypes.data, 0, experts * rows, k, None
        )
        vectors = random.normal(0, 1, (tokens, 1 if shared else used, k)).astype(np.float32)
        chosen = np.stack([random.permutation(experts)[:used] for _ in range(tokens)]).astype(np.int32)
        for tensor, content in ((weights, blocks), (x, vectors), (ids, chosen)):
            lib.ggml_backend_tensor_set(tensor, content.ctypes.data, 0, content.nbytes)
        assert lib.ggml_backend_dev_supports_op(device, product)
        graph = lib.ggml_new_graph(context)
        lib.ggml_build_forward_expand(graph, product)
        results = []
        for where in (trial.processor(), device):
            out = np.full((tokens, used, rows), np.nan, np.float32)
            lib.ggml_backend_tensor_set(product, out.ctypes.data, 0, out.nbytes)
            with trial.computer(where, 2) as backend:
                assert lib.ggml_backend_graph_compute(backend, graph) == 0
            lib.ggml_backend_tensor_get(product, out.ctypes.data, 0, out.nbytes)
            results.append(out)
        lib.ggml_backend_buffer_free(buffer)
    finally:
        lib.ggml_free(context)
    expected, found = results
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()
