"""Set-up failures in one sentence and one hint each. What a tool printed is kept in the log, not thrown at people."""

from __future__ import annotations

import errno
import re


class SetupError(Exception):
    """The set-up cannot go on.

    Args:
        message: What went wrong, as one sentence.
        hint: What to do about it.
        excerpt: The last lines of the tool's own output, where they help.
    """

    def __init__(self, message: str, hint: str = "", excerpt: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.excerpt = excerpt


NO_COMPILER = (
    "There is no working C++ compiler on this machine.",
    "Install one: Debian and Ubuntu: sudo apt install build-essential; Fedora: sudo dnf install gcc-c++; "
    "macOS: xcode-select --install; Windows: the C++ workload of the Visual Studio Build Tools.",
)
NO_VENV = (
    "This Python cannot make virtual environments: its venv or ensurepip module is missing.",
    "Debian and Ubuntu: sudo apt install python3-venv; elsewhere install Python from python.org.",
)
NO_DISK = (
    "There is not enough free disk space.",
    "Free some, or point TMPDIR and XDG_CACHE_HOME to a disk that has it: building needs about 2 GB for a while.",
)
NO_NETWORK = (
    "The package index cannot be reached.",
    "Check the network, or HTTPS_PROXY and PIP_INDEX_URL if you use a proxy or a mirror; then run the same again.",
)

# Looked for in this order: the first cause that the log shows is the one told. A full disk or a killed compiler also
# makes compiler errors, and a missing network also makes "no matching distribution", so those come first.
CAUSES: list[tuple[str, tuple[str, str]]] = [
    (r"No space left on device|Disk quota exceeded|not enough space on the disk", NO_DISK),
    (
        r"Killed signal terminated program|signal 9|out of memory allocating|Cannot allocate memory",
        (
            "The compiler was ended because memory ran out.",
            "Run it again with CMAKE_BUILD_PARALLEL_LEVEL=1 in the environment: slower, with less memory.",
        ),
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        (
            "The package index's certificate is not trusted here.",
            "If a proxy signs your connections, set PIP_CERT to its certificate file.",
        ),
    ),
    (
        r"NewConnectionError|Temporary failure in name resolution|getaddrinfo failed|nodename nor servname"
        r"|Network is unreachable|No route to host|ConnectTimeout|ReadTimeout|Read timed out|ConnectionResetError"
        r"|ProxyError|Connection refused|Max retries exceeded|from versions: none",
        NO_NETWORK,
    ),
    (
        r"No matching distribution found|Could not find a version",
        (
            "A package that spec-local needs is not on the package index in use.",
            "See the log for its name; a private mirror (PIP_INDEX_URL) may lack it.",
        ),
    ),
    (
        r"unsupported GNU version|Unsupported gpu architecture|nvcc (fatal|error)|\.cu[:(]\d+.*error|CMAKE_CUDA_",
        (
            "The CUDA build of llama.cpp failed.",
            "Toolkit and compiler may not fit each other; CMAKE_ARGS=-DGGML_CUDA=OFF in the environment builds for "
            "the processor alone.",
        ),
    ),
    (
        r"No CMAKE_C(XX)?_COMPILER|CMAKE_C(XX)?_COMPILER not set|not find any instance of Visual Studio",
        NO_COMPILER,
    ),
    (
        r"no RECORD file was found|uninstall-no-record-file",
        (
            "The virtual environment is damaged: something was interrupted while it was being installed.",
            "Delete the folder .venv and run the same command again; what was built is kept.",
        ),
    ),
    (r"ensurepip is not available|No module named '?(ensurepip|venv)", NO_VENV),
    (
        r"PermissionError|Permission denied|Read-only file system",
        ("A file or folder cannot be written.", "The log names it; check who owns the checkout and the cache folder."),
    ),
    (
        r"error: command .*ninja|CMake Error|ninja: build stopped|Failed building wheel|CMake build failed",
        (
            "llama.cpp did not compile on this machine.",
            "The first line with 'error:' in the log says why; a newer compiler often helps.",
        ),
    ),
]

REACH = 65_536
"""Characters at the end of a log in which causes are looked for; configuring CMake, further up, speaks of much."""


def diagnose(log: str, doing: str) -> SetupError:
    """Turn the log of a failed command into one sentence and a hint.

    Args:
        log: What the command printed.
        doing: What was being done, for failures nobody foresaw, e.g. "installing spec-local".
    """
    end = log[-REACH:]
    for pattern, (message, hint) in CAUSES:
        if re.search(pattern, end):
            return SetupError(message, hint, tail(log))
    return SetupError(f"{doing[:1].upper()}{doing[1:]} failed.", "The log has the tool's own words.", tail(log))


def from_os_error(error: OSError) -> SetupError:
    """The same for a file that this process itself could not use."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SetupError(*NO_DISK)
    return SetupError(
        f"{error.filename or 'A file'} cannot be used: {error.strerror}.",
        "Check who owns the checkout and the cache folder.",
    )


def tail(log: str, lines: int = 12) -> str:
    """The last lines of a log that say anything."""
    return "\n".join([line for line in log.splitlines() if line.strip()][-lines:])
