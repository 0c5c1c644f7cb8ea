"""Failures of the set-up as one sentence and a hint."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest
from bootstrapping import console, failures

LOGS = {
    "disk": (
        "g++: error: /tmp/x.o\nfatal error: error writing to /tmp/cc.s: No space left on device\nninja: build stopped",
        "free disk space",
    ),
    "quota": ("OSError: [Errno 122] Disk quota exceeded: '/home/x/.venv'", "free disk space"),
    "memory": (
        "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\nninja: build stopped",
        "memory ran out",
    ),
    "name resolution": (
        "WARNING: Retrying after connection broken by 'NewConnectionError(': Failed to establish a new connection: "
        "[Errno -3] Temporary failure in name resolution')': /simple/numpy/\n"
        "ERROR: Could not find a version that satisfies the requirement numpy\n"
        "ERROR: No matching distribution found for numpy",
        "cannot be reached",
    ),
    "timeout": (
        "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out.",
        "cannot be reached",
    ),
    "certificate": ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))", "certificate"),
    "nothing at all": (
        "ERROR: Could not find a version that satisfies the requirement setuptools>=77 (from versions: none)",
        "cannot be reached",
    ),
    "mirror": ("ERROR: No matching distribution found for textual>=8.2.6", "not on the package index"),
    "cuda": ("nvcc fatal   : Unsupported gpu architecture 'compute_120'\nninja: build stopped", "CUDA build"),
    "no compiler": ("CMake Error: No CMAKE_CXX_COMPILER could be found.", "no working C++ compiler"),
    "no visual studio": (
        "Generator Visual Studio 17 2022 could not find any instance of Visual Studio.",
        "C++ compiler",
    ),
    "no venv": (
        "The virtual environment was not created successfully because ensurepip is not available.",
        "virtual environments",
    ),
    "damaged": (
        "error: uninstall-no-record-file\n\n× Cannot uninstall llama_cpp_python 0.3.36",
        "environment is damaged",
    ),
    "rights": ("PermissionError: [Errno 13] Permission denied: '/opt/x/.venv'", "cannot be written"),
    "compile": (
        "llama.cpp/src/x.cpp:1:1: error: 'foo' was not declared\nninja: build stopped: subcommand failed.",
        "not compile",
    ),
}


@pytest.mark.parametrize(("log", "words"), LOGS.values(), ids=LOGS.keys())
def test_each_cause_has_its_sentence(log: str, words: str):
    error = failures.diagnose(log, "Installing things")
    assert words in error.message
    assert error.message.endswith(".")
    assert error.message.count(". ") == 0
    assert error.hint.endswith(".")
    assert error.excerpt.splitlines()[-1] == log.splitlines()[-1]


def test_an_unforeseen_failure_says_what_was_being_done():
    error = failures.diagnose("strange\n", "installing spec-local")
    assert error.message == "Installing spec-local failed."
    assert "log" in error.hint


def test_tail_leaves_out_empty_lines():
    assert failures.tail("a\n\nb\n \nc\n", 2) == "b\nc"


def test_report_ends_with_sentence_and_hint(tmp_path: Path):
    stream = io.StringIO()
    error = failures.SetupError("It failed.", "Do this.", "last words")
    console.report(error, console.Console(tmp_path / "log", stream))
    lines = stream.getvalue().splitlines()
    assert lines[-2:] == ["It failed.", "Do this."]
    assert lines[0].strip() == "last words"
    assert str(tmp_path / "log") in lines[1]


def test_a_full_disk_of_our_own_is_a_sentence_too():
    error = failures.from_os_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x/y"))
    assert "disk" in error.message
    other = failures.from_os_error(PermissionError(errno.EACCES, "Permission denied", "/x/y"))
    assert other.message == "/x/y cannot be used: Permission denied."
    assert other.hint
