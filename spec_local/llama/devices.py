"""The devices llama.cpp can put work on, under the names its own tools use."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from spec_local.errors import BackendError, UsageError
from spec_local.llama.library import REBUILD, llama

_KINDS = {0: "cpu", 1: "gpu", 2: "integrated gpu", 3: "accelerator"}


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a llama.cpp backend."""

    name: str
    """What `--device` takes, for example CUDA0, Metal or RPC0."""
    description: str
    """Of a worker's device the worker's HOST:PORT, which `--device` takes too."""
    kind: str
    """cpu, gpu, integrated gpu, accelerator, or worker."""
    free_bytes: int
    total_bytes: int
    handle: int
    """Address of llama.cpp's record; 0 for a worker's, to which only a process that loads a model connects."""

    @property
    def offloads(self) -> bool:
        """Whether layers go to it where none is named: a GPU here, or a device of a worker."""
        return self.kind in ("gpu", "integrated gpu", "worker")


@cache
def ggml() -> Any:
    """The ggml library, the signatures used here and in `metered` declared."""
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
    libggml.ggml_backend_register.argtypes, libggml.ggml_backend_register.restype = [pointer], None
    libggml.ggml_backend_reg_by_name.argtypes, libggml.ggml_backend_reg_by_name.restype = [ctypes.c_char_p], pointer
    for call, arguments, result in (
        ("dev_buffer_type", [pointer], pointer),
        ("buft_alloc_buffer", [pointer, size], pointer),
        ("buffer_get_size", [pointer], size),
        ("buffer_free", [pointer], None),
    ):
        function = getattr(libggml, f"ggml_backend_{call}")
        function.argtypes, function.restype = arguments, result
    address = libggml.ggml_backend_reg_get_proc_address
    address.argtypes, address.restype = [pointer, ctypes.c_char_p], pointer
    libggml.ggml_backend_dev_memory.argtypes, libggml.ggml_backend_dev_memory.restype = [pointer, sizes, sizes], None
    return libggml


def list_devices() -> list[Device]:
    """Every device of every loaded backend, the CPU included."""
    lib = ggml()
    devices = []
    for index in range(lib.ggml_backend_dev_count()):
        handle = lib.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        lib.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        devices.append(
            Device(
                name=lib.ggml_backend_dev_name(handle).decode("utf-8", "replace"),
                description=lib.ggml_backend_dev_description(handle).decode("utf-8", "replace"),
                kind=_KINDS.get(lib.ggml_backend_dev_type(handle), "other"),
                free_bytes=free.value,
                total_bytes=total.value,
                handle=handle,
            )
        )
    return devices


def pick_devices(names: Sequence[str], remote: Sequence[Device] = ()) -> list[Device]:
    """The offload devices called `names`, in that order; an empty list stands for the CPU alone (`none`, `cpu`).

    Args:
        names: Device names; a worker's HOST:PORT stands for all of its devices.
        remote: Devices of workers.

    Raises:
        UsageError: There is no such device.
    """
    if is_cpu_alone(names):
        return []
    known: dict[str, list[Device]] = {}
    for device in (*remote, *(device for device in list_devices() if device.kind != "cpu")):
        known.setdefault(device.name.lower(), [device])
        if device.kind == "worker":
            known.setdefault(device.description.lower(), []).append(device)
    for name in names:
        if name.lower() not in known:
            there = ", ".join(dict.fromkeys(d.name for found in known.values() for d in found))
            raise UsageError(f"There is no device called {name!r}.", f"Devices: {there or 'none besides the CPU'}.")
    return [device for name in names for device in known[name.lower()]]


def offload_devices(names: Sequence[str] = (), remote: Sequence[Device] = ()) -> list[Device]:
    """The devices layers go to: those called `names`; where none is named every worker's, then every GPU.

    Workers come first, as in llama.cpp: the output layer stays here, so that its rows of logits need not travel.

    Raises:
        UsageError: There is no such device.
    """
    if names:
        return pick_devices(names, remote)
    return [*remote, *(device for device in list_devices() if device.offloads)]


def is_cpu_alone(names: Sequence[str]) -> bool:
    """Whether these device names force the CPU."""
    return [name.lower() for name in names] in (["none"], ["cpu"])


def add_workers(endpoints: Sequence[str]) -> None:
    """Connect THIS process to workers: from now on `list_devices` has their devices, RPC0 and so on.

    llama.cpp ends the process where a worker is missing or gets lost. Ask first (`rpc.ask_workers`), in a process that
    may die (`hosted`).

    Raises:
        BackendError: This build has no RPC, or a worker has no devices.
    """
    lib = ggml()
    for endpoint in endpoints:
        registry = _rpc().ggml_backend_rpc_add_server(endpoint.encode())
        if not registry:
            raise BackendError(f"The worker {endpoint} has no devices.")
        lib.ggml_backend_register(registry)


@cache
def _rpc() -> Any:
    """llama.cpp's RPC functions.

    Raises:
        BackendError: This build has none.
    """
    lib = ggml()
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    registry = lib.ggml_backend_reg_by_name(b"RPC")
    found = {}
    types: dict[str, tuple[Any, ...]] = {
        "ggml_backend_rpc_add_server": (pointer, ctypes.c_char_p),
        "ggml_backend_rpc_start_server": (None, ctypes.c_char_p, ctypes.c_char_p, size, size, ctypes.POINTER(pointer)),
    }
    for name, signature in types.items():
        address = lib.ggml_backend_reg_get_proc_address(registry, name.encode()) if registry else None
        if not address:
            raise BackendError("This build of llama.cpp has no RPC.", REBUILD)
        found[name] = ctypes.CFUNCTYPE(*signature)(address)
    return SimpleNamespace(**found)


def serve(endpoint: str, devices: Sequence[Device], threads: int, cache_folder: str | None) -> None:
    """Be a worker: serve `devices` at HOST:PORT, one client after the other. Returns only where it cannot listen.

    llama.cpp ends the process at a malformed request.

    Args:
        endpoint: HOST:PORT; the host is an IPv4 address in numbers.
        devices: At least one.
        threads: CPU threads.
        cache_folder: Where large tensors are kept, so that they need not be sent again; None: nowhere.

    Raises:
        BackendError: This build has no RPC.
    """
    handles = (ctypes.c_void_p * len(devices))(*(device.handle for device in devices))
    cache_name = None if cache_folder is None else cache_folder.encode()
    _rpc().ggml_backend_rpc_start_server(endpoint.encode(), cache_name, threads, len(devices), handles)
