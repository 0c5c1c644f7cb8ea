"""One product of a quantised matrix with some columns, by ggml and by the kernels: are they the same, which is faster?

Both are asked as llama.cpp asks them: a graph of ggml's with one product in it, computed by one back end or the other.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from spec_local.errors import BackendError
from spec_local.llama.kernels.library import FORMATS, register
from spec_local.llama.library import llama

_F32 = 0
_TOLERANCE = 2e-5
"""Of the largest output: both sum the same integers, and floats in another order."""
_CHECKED = ((768, 67), (256, 5))
"""(values in a row, rows) of the matrices both are compared on."""
_CHECKED_COLUMNS = (1, 2, 5, 8, 13)


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


@cache
def _ggml() -> Any:
    """ggml with the functions declared that are used here, those of the processor's back end included."""
    llama()
    from llama_cpp._ggml import libggml as lib

    pointer, size, number, big = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
    for name, arguments, result in (
        ("init", [_InitParams], pointer),
        ("free", [pointer], None),
        ("tensor_overhead", [], size),
        ("graph_overhead", [], size),
        ("row_size", [number, big], size),
        ("new_tensor_2d", [pointer, number, big, big], pointer),
        ("mul_mat", [pointer, pointer, pointer], pointer),
        ("new_graph", [pointer], pointer),
        ("build_forward_expand", [pointer, pointer], None),
        ("quantize_chunk", [number, pointer, pointer, big, big, big, pointer], size),
        ("backend_cpu_buffer_type", [], pointer),
        ("backend_alloc_ctx_tensors_from_buft", [pointer, pointer], pointer),
        ("backend_buffer_free", [pointer], None),
        ("backend_tensor_set", [pointer, pointer, size, size], None),
        ("backend_tensor_get", [pointer, pointer, size, size], None),
        ("backend_graph_compute", [pointer, pointer], number),
        ("backend_dev_by_name", [ctypes.c_char_p], pointer),
        ("backend_dev_init", [pointer, ctypes.c_char_p], pointer),
        ("backend_dev_supports_op", [pointer, pointer], ctypes.c_bool),
        ("backend_dev_backend_reg", [pointer], pointer),
        ("backend_reg_get_proc_address", [pointer, ctypes.c_char_p], pointer),
        ("backend_free", [pointer], None),
    ):
        function = getattr(lib, f"ggml_{name}")
        function.argtypes, function.restype = arguments, result
    return lib


@contextmanager
def computer(device: int, threads: int) -> Iterator[Any]:
    """A back end of `device` (ggml's `processor` or the kernels'), with so many threads."""
    lib = _ggml()
    backend = lib.ggml_backend_dev_init(device, None)
    registry = lib.ggml_backend_dev_backend_reg(device)
    address = lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(address)(backend, threads)
    try:
        yield backend
    finally:
        lib.ggml_backend_free(backend)


def processor() -> int:
    """Address of ggml's record of the processor."""
    return int(_ggml().ggml_backend_dev_by_name(b"CPU"))


class Trial:
    """A random matrix and columns for it; a context manager, since ggml's memory must be given back.

    Args:
        kind: Name of the weights' format.
        k: Values in a row.
        rows: Of the matrix.
        columns: How many columns there are in each product that will be asked for.
        repacked: Let ggml repack the matrix for its own fastest kernels.

    Raises:
        BackendError: There is no memory, or ggml does not repack this format.
    """

    def __init__(self, kind: str, k: int, rows: int, columns: Sequence[int], repacked: bool = False) -> None:
        self._lib = lib = _ggml()
        self.shape = (k, rows)
        """Values in a row, rows."""
        number, count = FORMATS[kind], len(columns)
        room = (2 * count + 1) * lib.ggml_tensor_overhead() + count * lib.ggml_graph_overhead() + 4096
        self._contexts = [lib.ggml_init(_InitParams(room, None, True)) for _ in range(2)]
        matrix = lib.ggml_new_tensor_2d(self._contexts[0], number, k, rows)
        vectors = self._contexts[1]
        x = {n: lib.ggml_new_tensor_2d(vectors, _F32, k, n) for n in columns}
        self._products = {n: lib.ggml_mul_mat(vectors, matrix, x[n]) for n in columns}
        plain = lib.ggml_backend_cpu_buffer_type()
        memory = (_repacking() if repacked else None) or plain
        self._buffers = [
            lib.ggml_backend_alloc_ctx_tensors_from_buft(self._contexts[0], memory),
            lib.ggml_backend_alloc_ctx_tensors_from_buft(vectors, plain),
        ]
        self.repacked = memory != plain
        """Whether the matrix is repacked."""
        if not all(self._buffers) or (self.repacked and not self.supported(processor(), columns[0])):
            self.close()
            raise BackendError(f"{kind} is not repacked" if self.repacked else f"no memory for a trial of {kind}")
        self._graphs = {}
        for n, product in self._products.items():
            graph = lib.ggml_new_graph(vectors)
            lib.ggml_build_forward_expand(graph, product)
            self._graphs[n] = graph
        random = np.random.default_rng(k * rows)
        some = min(rows, 64)  # repeated, since quantising takes long
        values = random.normal(0, 1, (some, k)).astype(np.float32)  # [some, k]
        row_bytes = lib.ggml_row_size(number, k)
        block = np.empty((some, row_bytes), np.uint8)
        lib.ggml_quantize_chunk(number, values.ctypes.data, block.ctypes.data, 0, some, k, None)
        self.weights = np.resize(block, (rows, row_bytes))
        lib.ggml_backend_tensor_set(matrix, self.weights.ctypes.data, 0, self.weights.nbytes)
        self.columns = {n: random.normal(0, 1, (n, k)).astype(np.float32) for n in columns}
        for n, given in self.columns.items():
            lib.ggml_backend_tensor_set(x[n], given.ctypes.data, 0, given.nbytes)

    def supported(self, device: int, n: int) -> bool:
        """Whether `device` takes the product with `n` columns."""
        return bool(self._lib.ggml_backend_dev_supports_op(device, self._products[n]))

    def seconds(self, backend: Any, n: int, clock: Callable[[], float] = time.perf_counter) -> float:
        """Compute the product with `n` columns once.

        Args:
            backend: See `computer`.
            n: Columns.
            clock: Seconds; `time.thread_time` leaves out what other programs take, where there is only one thread.

        Raises:
            BackendError: The back end fails.
        """
        started = clock()
        status = self._lib.ggml_backend_graph_compute(backend, self._graphs[n])
        taken = clock() - started
        if status != 0:
            raise BackendError(f"a product ends with status {status}")
        return taken

    def result(self, backend: Any, n: int) -> npt.NDArray[np.float32]:
        """The product with `n` columns, computed anew: float32 [n, rows]."""
        out = np.full((n, self.shape[1]), np.nan, np.float32)
        self._lib.ggml_backend_tensor_set(self._products[n], out.ctypes.data, 0, out.nbytes)
        self.seconds(backend, n)
        self._lib.ggml_backend_tensor_get(self._products[n], out.ctypes.data, 0, out.nbytes)
        return out

    def close(self) -> None:
        """Give all memory back."""
        for buffer in filter(None, self._buffers):
            self._lib.ggml_backend_buffer_free(buffer)
        for context in self._contexts:
            self._lib.ggml_free(context)
        self._buffers, self._contexts = [], []

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check(kinds: Sequence[str] = tuple(FORMATS), threads: int = 1) -> None:
    """Compare products of random matrices with ggml's own results.

    Raises:
        BackendError: They differ; the message is a clause, for a sentence about the kernels.
    """
    device = register().device
    with computer(processor(), threads) as ggml, computer(device, threads) as ours:
        for kind in kinds:
            for k, rows in _CHECKED:
                with Trial(kind, k, rows, _CHECKED_COLUMNS) as trial:
                    for n in _CHECKED_COLUMNS:
                        _compare(trial, kind, n, ggml, ours)


def _compare(trial: Trial, kind: str, n: int, ggml: Any, ours: Any) -> None:
    expected, found = trial.result(ggml, n), trial.result(ours, n)
    worst, largest = float(np.abs(found - expected).max()), float(np.abs(expected).max())
    if not worst <= _TOLERANCE * largest:  # neither where it is no number
        raise BackendError(f"a product of {kind} with {n} columns differs from ggml's by {worst / largest:.1g}")


@cache
def _repacking() -> Any:
    """ggml's kind of memory in which the processor's weights are repacked; None where there is none."""
    lib = _ggml()
    device = processor()
    registry = lib.ggml_backend_dev_backend_reg(device)
    address = lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return None
    several = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
    return several[0] if several else None  # llama.cpp too asks them in this order
