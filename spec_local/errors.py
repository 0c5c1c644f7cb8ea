"""The one error tree. Every failure a person can meet is a `SpecLocalError`: one sentence saying what
and where, and a hint saying what to do. Exit codes are chosen by the command line, not here."""

from __future__ import annotations

from typing import Literal


class SpecLocalError(Exception):
    """A failure with a sentence for the person and, where there is one, a way out.

    Args:
        message: What went wrong and where, as one sentence.
        hint: What to do about it, as one sentence; empty where nothing helps.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class UsageError(SpecLocalError):
    """The request itself cannot be met: a bad flag, value or combination."""


class ModelError(SpecLocalError):
    """A model or one of its files is missing, damaged, or does not fit the request."""


class PairError(ModelError):
    """The draft cannot draft for the target: the vocabularies have too little in common, or cannot be compared."""


class DownloadError(ModelError):
    """A model file could not be fetched whole."""


class TemplateError(ModelError):
    """A chat template is missing, broken, or refuses this conversation."""


class BackendError(SpecLocalError):
    """llama.cpp cannot run here: not installed, or it failed inside a call."""


class WorkerError(BackendError):
    """A worker that was to take layers is not there, speaks another protocol, or was lost with what it held."""


class CacheError(BackendError):
    """A key/value cache could not be brought to the state the next pass needs."""


class ContextFullError(UsageError):
    """The prompt does not fit the context window."""


class NoTokenError(UsageError):
    """What a request asks for (grammar, bans, biases) leaves no token to go on with. The request's fault, never the
    backend's: it fails alone."""


class InvariantError(AssertionError):
    """Something that exactness rests on does not hold: a defect of this program, which `spec-local verify` names.

    Args:
        what: "cache", "noise" or "draft row".
        message: What was found.
    """

    def __init__(self, what: Literal["cache", "noise", "draft row"], message: str) -> None:
        super().__init__(message)
        self.what = what


class Aborted(SpecLocalError):
    """A pass or a load was stopped on request. Not a failure: the caches are as they were before the pass, and what was
    loaded is freed."""
