"""What the process returns. Scripts rely on these numbers."""

from __future__ import annotations

from enum import IntEnum

from spec_local.errors import Aborted, BackendError, ModelError, SpecLocalError, UsageError


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    SOME_FAILED = 1
    """Some items of a batch failed, or a check found something wrong."""
    USAGE = 2
    """The command itself cannot be carried out as written."""
    MODEL = 3
    """A model or file problem."""
    BACKEND = 4
    """llama.cpp cannot run here, or failed."""
    INTERRUPTED = 130


_CODES = (
    (UsageError, ExitCode.USAGE),
    (ModelError, ExitCode.MODEL),
    (BackendError, ExitCode.BACKEND),
    (Aborted, ExitCode.INTERRUPTED),
)


def exit_code(error: SpecLocalError) -> ExitCode:
    """The code for an error that ends the program."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.BACKEND)
