"""The devices llama.cpp can put work on, under the names its own tools use."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

from spec_local.errors import UsageError
from spec_local.llama.library import llama

_KINDS = {0: "cpu", 1: "gpu", 2: "integrated gpu", 3: "accelerator"}


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a llama.cpp backend."""

    name: str
    """What `--device` takes, for example CUDA0, Metal or RPC[127.0.0.1:50052]."""
    description: str
    kind: str
    """cpu, gpu, integrated gpu or accelerator."""
    free_bytes: int
    total_bytes: int
    handle: int
    """Address of llama.cpp's own record of it."""


@cache
def _ggml() -> Any:
    llama()
    from llama_cpp._ggml import libggml

    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libggml.ggml_backend_dev_count.restype = size
    libggml.ggml_backend_dev_get.argtypes, libggml.ggml_backend_dev_get.restype = [size], pointer
    for text in ("name", "description"):
        function = getattr(libggml, f"ggml_backend_dev_{text}")
        function.argtypes, function.restype = [pointer], ctypes.c_char_p
    libggml.ggml_backend_dev_type.argtypes, libggml.ggml_backend_dev_type.restype = [pointer], ctypes.c_int
    sizes = ctypes.POINTER(size)
    libggml.ggml_backend_dev_memory.argtypes, libggml.ggml_backend_dev_memory.restype = [pointer, sizes, sizes], None
    return libggml


def list_devices() -> list[Device]:
    """Every device of every loaded backend, the CPU included."""
    ggml = _ggml()
    devices = []
    for index in range(ggml.ggml_backend_dev_count()):
        handle = ggml.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        devices.append(
            Device(
                name=ggml.ggml_backend_dev_name(handle).decode("utf-8", "replace"),
                description=ggml.ggml_backend_dev_description(handle).decode("utf-8", "replace"),
                kind=_KINDS.get(ggml.ggml_backend_dev_type(handle), "other"),
                free_bytes=free.value,
                total_bytes=total.value,
                handle=handle,
            )
        )
    return devices


def pick_devices(names: tuple[str, ...]) -> list[Device]:
    """The offload devices called `names`, in that order; an empty list stands for the CPU alone (`none`, `cpu`).

    Raises:
        UsageError: There is no such device.
    """
    if [name.lower() for name in names] in (["none"], ["cpu"]):
        return []
    known = {device.name.lower(): device for device in list_devices() if device.kind != "cpu"}
    for name in names:
        if name.lower() not in known:
            there = ", ".join(device.name for device in known.values()) or "none besides the CPU"
            raise UsageError(f"There is no device called {name!r}.", f"Devices here: {there}.")
    return [known[name.lower()] for name in names]


def offload_devices(names: tuple[str, ...] = ()) -> list[Device]:
    """The devices layers go to: those called `names`, or every GPU where none is named.

    Raises:
        UsageError: There is no such device.
    """
    return pick_devices(names) if names else [d for d in list_devices() if d.kind in ("gpu", "integrated gpu")]
