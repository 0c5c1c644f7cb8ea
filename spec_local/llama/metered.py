"""Counts what is allocated on a device, and refuses what would exceed a limit.

llama.cpp's server reports its devices' memory and takes what it is asked for. A device is a table of C functions, so
the limit is put into the table: `get_memory` reports what is left of it, `alloc_buffer` answers "no room" beyond it,
which the program that asked turns into a sentence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from spec_local.errors import BackendError
from spec_local.llama.devices import Device, ggml

_WORD = ctypes.sizeof(ctypes.c_void_p)
_GET_MEMORY, _ALLOC_BUFFER, _FREE_BUFFER = 2, 1, 0
"""Indices of the functions in `ggml_backend_device_i`, `ggml_backend_buffer_type_i` and `ggml_backend_buffer_i`, each
at the beginning of its object (ggml-backend-impl.h)."""
_Alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Sizes = ctypes.POINTER(ctypes.c_size_t)
_Memory = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Sizes, _Sizes)
_PROBE_BYTES = 4096


class Meter:
    """Sits in a device's function tables for as long as the process lives.

    Args:
        device: Of this process.
        limit: Bytes that may be held; None: as many as the device has.
        on_change: Called with the bytes held after every allocation and release.

    Raises:
        BackendError: The tables of this llama.cpp do not look as they should.
    """

    def __init__(self, device: Device, limit: int | None, on_change: Callable[[int], None]) -> None:
        self.held = 0
        """Bytes of all buffers on the device."""
        self._lib = library = ggml()
        self._limit = limit
        self._on_change: Callable[[int], None] = lambda held: None
        self._buffer_type = library.ggml_backend_dev_buffer_type(device.handle)
        allocate, memory = _slot(self._buffer_type, _ALLOC_BUFFER), _slot(device.handle, _GET_MEMORY)
        self._allocate, self._memory = _Alloc(allocate.value or 0), _Memory(memory.value or 0)
        self._release: Any = None
        self._callbacks = _Alloc(self._on_allocate), _Free(self._on_release), _Memory(self._on_memory)
        allocate.value = _address(self._callbacks[0])
        if limit is not None:
            memory.value = _address(self._callbacks[2])
        self._check(device)
        self._on_change = on_change

    def _check(self, device: Device) -> None:
        before = self.held
        buffer = self._lib.ggml_backend_buft_alloc_buffer(self._buffer_type, _PROBE_BYTES)
        seen = self.held - before
        if buffer:
            self._lib.ggml_backend_buffer_free(buffer)
        if not buffer or seen < _PROBE_BYTES or self.held != before:
            raise BackendError(f"What {device.name} holds cannot be counted with this build of llama.cpp.")

    def _on_allocate(self, buffer_type: int, size: int) -> int | None:
        if self._limit is not None and self.held + size > self._limit:
            return None
        buffer: int | None = self._allocate(buffer_type, size)
        if buffer:
            release = _slot(buffer, _FREE_BUFFER)
            self._release = self._release or _Free(release.value or 0)  # of all buffers of one type the same function
            release.value = _address(self._callbacks[1])
            self._count(self._lib.ggml_backend_buffer_get_size(buffer))
        return buffer

    def _on_release(self, buffer: int) -> None:
        size = self._lib.ggml_backend_buffer_get_size(buffer)
        self._release(buffer)
        self._count(-size)

    def _on_memory(self, device: int, free: Any, total: Any) -> None:
        assert self._limit is not None
        self._memory(device, free, total)
        total[0] = min(total[0], self._limit) if total[0] else self._limit
        free[0] = min(free[0], max(0, self._limit - self.held))

    def _count(self, size: int) -> None:
        self.held += size
        self._on_change(self.held)


def _slot(table: int, index: int) -> ctypes.c_void_p:
    """The function pointer at an index of a table, to be read and written."""
    return ctypes.c_void_p.from_address(table + index * _WORD)


def _address(callback: Any) -> int | None:
    return ctypes.cast(callback, ctypes.c_void_p).value
