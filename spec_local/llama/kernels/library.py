"""Loads the kernels into this process and registers them with ggml, after a look at whether they fit it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spec_local.errors import BackendError
from spec_local.llama.kernels.build import library_path
from spec_local.llama.library import ggml_version, llama

FORMATS = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "MXFP4": 39,
}
"""Weight formats that there are kernels for, and ggml's numbers of them."""
NO_INSTRUCTIONS = "this processor has no AVX2"
"""Why they are off where nothing is wrong."""
WIDTHS = 32
"""Widths that are chosen one by one; the last one stands for all wider passes."""
Taken = tuple[tuple[int, int], ...]
"""What is computed here and not by ggml: (ggml's number of a format, a bit for each width from 1) …"""
_making = threading.Lock()  # what a context shows llama.cpp while it is made is no other context's business


_path: Path | None = None


def use(path: Path) -> None:
    """Take the library from `path` and not from where it is built to; before anything else is asked for."""
    global _path
    _path = path


@cache
def open_library() -> Any:
    """The library, its functions declared, found to fit the installed ggml.

    Raises:
        BackendError: It does not load, or does not fit; the message is a clause, for a sentence about the kernels.
    """
    llama()
    try:
        library = ctypes.CDLL(str(_path or library_path()))
        text, pointer, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
        for name, arguments, result in (
            ("built_for", [], text),
            ("tensor_bytes", [], size),
            ("misfit", [], text),
            ("best", [], text),
            ("register", [text], pointer),
            ("show", [ctypes.c_bool], None),
            ("take", [ctypes.c_int, ctypes.c_int, ctypes.c_bool], None),
            ("computed", [], ctypes.c_long),
            (
                "multiply",
                [text, ctypes.c_int, pointer, size, ctypes.c_int, ctypes.c_int, pointer, ctypes.c_int, pointer],
                ctypes.c_bool,
            ),
        ):
            function = getattr(library, f"kernels_{name}")
            function.argtypes, function.restype = arguments, result
    except (OSError, AttributeError) as error:
        raise BackendError(f"their library does not load: {error}") from error
    built_for = library.kernels_built_for().decode("utf-8", "replace")
    if built_for != ggml_version():
        raise BackendError(f"they were built for ggml {built_for}, and {ggml_version()} is installed")
    if library.kernels_tensor_bytes() != _tensor_bytes():
        raise BackendError("ggml's record of a tensor has another size than when they were built")
    if misfit := library.kernels_misfit():
        raise BackendError(f"they do not fit the installed ggml: {misfit.decode()}")
    return library


@dataclass(frozen=True, slots=True)
class Registered:
    """The kernels as ggml has them."""

    instructions: str
    """The instruction set in use."""
    device: int
    """Address of ggml's record of their device, which llama.cpp adds to the contexts that are to have it."""


def register(instructions: str | None = None) -> Registered:
    """Register the back end, which takes nothing yet; harmless when done twice.

    Args:
        instructions: An instruction set, for measurements; None: the processor's best.

    Raises:
        BackendError: As `open_library`, or this processor lacks the instructions.
    """
    library = open_library()
    best = library.kernels_best()
    if not best:
        raise BackendError(NO_INSTRUCTIONS)
    chosen = instructions or best.decode()
    device = library.kernels_register(chosen.encode())
    if not device:
        raise BackendError(f"this processor has no {chosen}, or other instructions are in use")
    return Registered(chosen, device)


def take(taken: Taken) -> None:
    """From now on compute these formats at exactly these widths, in every context that has the back end."""
    library = open_library()
    for kind, widths in taken:
        for width in range(1, WIDTHS + 1):
            library.kernels_take(kind, width, bool(widths >> (width - 1) & 1))


@contextmanager
def offered(taken: Taken) -> Iterator[None]:
    """Contexts made within have the back end, if anything is taken, and without it otherwise.

    Raises:
        BackendError: As `register`.
    """
    with _making:
        if not taken:
            yield
            return
        register()
        take(taken)
        library = open_library()
        library.kernels_show(True)
        try:
            yield
        finally:
            library.kernels_show(False)


def computed() -> int:
    """Products the kernels have computed in this process."""
    return int(open_library().kernels_computed())


def names(taken: Taken) -> Mapping[str, int]:
    """The widths taken, a bit each, by the format's name."""
    by_number = {number: name for name, number in FORMATS.items()}
    return {by_number[number]: widths for number, widths in taken}


def _tensor_bytes() -> int:
    """Bytes of a tensor's record in the installed ggml: what a tensor takes less what a bare object does."""
    from llama_cpp._ggml import libggml

    sizes = {}
    for name in ("ggml_tensor_overhead", "ggml_graph_overhead"):
        function = getattr(libggml, name)
        function.restype = ctypes.c_size_t
        sizes[name] = int(function())
    return sizes["ggml_tensor_overhead"] - _OBJECT_BYTES


_OBJECT_BYTES = 32
"""Of ggml_object: two sizes, a pointer, a type and its padding."""
