"""Loads llama_cpp once, keeps its log out of the terminal, and turns a missing build into a sentence."""

from __future__ import annotations

import ctypes
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from spec_local.errors import BackendError
from spec_local.words import harmless

REBUILD = "Run `python3 scripts/bootstrap.py --rebuild` in the checkout; it builds llama.cpp anew for this machine."
"""What helps where the installed build is not the right one."""
_LOG_LINES = 200
_WARN, _ERROR, _CONTINUE = 3, 4, 5
_callbacks: list[Any] = []  # ctypes callbacks must outlive every call into the library
_FUNCTION = re.compile(r"^\w+: (error loading model: )?(\w+: )?")
"""Names of C++ functions in front of a message."""
"""What could drive a terminal."""
_log: deque[tuple[int, str]] = deque(maxlen=_LOG_LINES)
_verbose = False


def set_verbose(verbose: bool) -> None:
    """Copy llama.cpp's log to stderr (True), or only remember its last lines (False, the default)."""
    global _verbose
    _verbose = verbose


def is_verbose() -> bool:
    """Whether the log is copied to stderr."""
    return _verbose


def first_error() -> str:
    """llama.cpp's own word about a failure, in brackets, or an empty string: the first error, which names the cause."""
    first = next((text.strip() for level, text in _log if level == _ERROR and text.strip()), "")
    cause = _FUNCTION.sub("", first)
    return f" (llama.cpp says: {cause})" if cause else ""


def forget_log() -> None:
    """Start a fresh log, so that `first_error` speaks of what comes next."""
    _log.clear()


def _on_log(level: int, text: bytes | None, _user_data: Any) -> None:
    line = (text or b"").decode("utf-8", "replace")
    if level == _CONTINUE and _log:
        level, before = _log.pop()
        _log.append((level, before + line))
    else:
        _log.append((level, line))
    if _verbose:  # among other things, what a model file says of itself
        sys.stderr.write(harmless(line))


@cache
def llama() -> ModuleType:
    """The `llama_cpp.llama_cpp` module, backend initialised.

    Raises:
        BackendError: llama-cpp-python is not installed or its library does not load here.
    """
    try:
        from llama_cpp import llama_cpp as module
    except ModuleNotFoundError as error:
        raise BackendError(
            "llama-cpp-python is not installed in this Python.",
            "Run `python3 scripts/bootstrap.py` in the checkout; it builds it for this machine.",
        ) from error
    except (OSError, RuntimeError) as error:
        raise BackendError(f"llama.cpp's library does not load here: {error}.", REBUILD) from error
    _callbacks.append(module.llama_log_callback(_on_log))
    module.llama_log_set(_callbacks[-1], ctypes.c_void_p(0))
    module.llama_backend_init()
    return module


class HiddenStates(NamedTuple):
    """llama.cpp's functions for the last hidden states of a pass; it exports them, but not as part of its stable C API.

    They are C++ functions, so their names in the library depend on the compiler.
    """

    switch: Callable[[Any, bool, bool], None]
    """(context, on, masked): have passes leave the states, of all tokens or (masked) of those with logits."""
    read: Callable[[Any], Any]
    """(context) → pointer to float32 [tokens of the last pass, width], or a false one; waits for the pass to end."""


_HIDDEN_STATES = {
    "switch": (
        "llama_set_embeddings_nextn",
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    ),
    "read": (
        "llama_get_embeddings_nextn",
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ),
}
"""Their names in C, and as the Itanium ABI (Linux, macOS, MinGW) and Microsoft's compiler write them."""


@cache
def hidden_states() -> HiddenStates | None:
    """The functions of `HiddenStates`; None where this build exports one of them under no name that is known."""
    module = llama()
    switch, read = (_exported(module._lib, names) for names in _HIDDEN_STATES.values())
    if switch is None or read is None:
        return None
    context = module.llama_context_p_ctypes
    switch.argtypes, switch.restype = [context, ctypes.c_bool, ctypes.c_bool], None
    read.argtypes, read.restype = [context], ctypes.POINTER(ctypes.c_float)
    return HiddenStates(switch, read)


def _exported(library: Any, names: Iterable[str]) -> Any:
    """The function of the first of these names that the library exports; None where it exports none."""
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)


@cache
def build_info() -> dict[str, str]:
    """Which llama.cpp this is: versions and the CPU features it was built with."""
    import llama_cpp

    system = llama().llama_print_system_info()
    return {
        "llama_cpp_python": llama_cpp.__version__,
        "llama_cpp": _version(),
        "features": system.decode("utf-8", "replace").strip() if system else "",
    }


def library_folder() -> Path:
    """Where llama.cpp's shared libraries lie.

    Raises:
        BackendError: llama-cpp-python is not installed or its library does not load here.
    """
    llama()
    import llama_cpp

    return Path(llama_cpp.__file__).parent / "lib"


@cache
def ggml_version() -> str:
    """Version and commit of ggml, as 0.25.3-abc1234."""
    from llama_cpp._ggml import libggml

    llama()
    parts = []
    for name in ("ggml_version", "ggml_commit"):
        function = getattr(libggml, name)
        function.restype = ctypes.c_char_p
        parts.append(function().decode("utf-8", "replace"))
    return "-".join(parts)


def _version() -> str:
    version = getattr(llama(), "llama_version", None)
    if version is None:
        return ""
    text = version()
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
