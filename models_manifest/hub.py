"""The model hub: where a file lies there, and how large it is. The transfer itself is `http_range`'s."""

from __future__ import annotations

import threading
import time
from urllib.parse import urlsplit

from spec_local.environment import variable
from spec_local.models_manifest.catalogue import HubSource
from spec_local.models_manifest.http_range import Pause, Remote, retry_after
from spec_local.models_manifest.part_file import SourceError

_ANSWER_S = 8.0
"""The hub must answer within this time, name look-up included; then other sources have their turn."""

_FORGET_S = 60.0

_silent: dict[str | None, float] = {}
"""Endpoint → when it did not answer: the second model of a pair need not wait for it again."""


def locate(source: HubSource, name: str, pause: Pause = time.sleep) -> Remote:
    """Ask the hub for a file of `source`; where it says "later", once more after a `pause` as long as it asks for.

    Uses `huggingface_hub` for the address, the user's token and the mirror set in `HF_ENDPOINT`.

    Raises:
        SourceError: The hub cannot be reached in a few seconds, or has no such file for this user.
    """
    endpoint = variable("HF_ENDPOINT")
    if time.monotonic() - _silent.get(endpoint, -_FORGET_S) < _FORGET_S:
        raise SourceError("The model hub was out of reach a moment ago.")
    answer: list[Remote | BaseException] = []

    def ask() -> None:
        try:
            answer.append(_ask(source, name, endpoint))
        except BaseException as error:
            answer.append(error)

    # A thread, because a name look-up can hang for longer than any socket timeout.
    thread = threading.Thread(target=ask, name="hub", daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    if not answer:
        _silent[endpoint] = time.monotonic()
        raise SourceError(f"The model hub does not answer within {_ANSWER_S:.0f} seconds.")
    if isinstance(answer[0], Remote):
        return answer[0]
    if (wanted := _later(answer[0])) is not None and pause is not _no_more:
        pause(wanted)
        return locate(source, name, _no_more)
    raise _sentence(answer[0], source, name, endpoint) from answer[0]


def _no_more(_: float) -> None:
    """The pause of a question that is asked for the second time: there is no third."""


def _later(error: BaseException) -> float | None:
    """Seconds after which a hub that is asked too often wants to be asked again; None for any other trouble."""
    response = getattr(error, "response", None)
    if response is None or response.status_code != 429:
        return None
    return retry_after(response.headers)


def _ask(source: HubSource, name: str, endpoint: str | None) -> Remote:
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    url = hf_hub_url(
        source.repository, name, subfolder=source.folder or None, revision=source.revision, endpoint=endpoint
    )
    found = get_hf_file_metadata(url, timeout=_ANSWER_S, endpoint=endpoint)
    digest = (found.etag or "").strip('"').lower()
    # Signed storage addresses refuse a second authorisation; only the hub itself gets the user's token.
    token = get_token() if urlsplit(found.location).netloc == urlsplit(url).netloc else None
    return Remote(
        url=found.location,
        key=f"hub:{source.repository}:{name}:{digest}",
        bytes=found.size,
        sha256=digest if len(digest) == 64 else None,
        pinned=bool(digest),
        headers={"Authorization": f"Bearer {token}"} if token else {},
    )


def _sentence(error: BaseException, source: HubSource, name: str, endpoint: str | None) -> SourceError:
    if isinstance(error, ImportError):
        return SourceError("The package huggingface_hub is not installed.")
    from huggingface_hub import errors

    repository = source.repository
    if isinstance(error, errors.GatedRepoError):
        return SourceError(
            f"The hub gives {repository} only to users who accepted its licence.",
            "Accept it on the repository's page, then run `hf auth login`.",
        )
    if isinstance(error, errors.EntryNotFoundError):
        return SourceError(f"The hub repository {repository} has no file {name}.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return SourceError(f"The hub has no public repository {repository}.", "For a private one run `hf auth login`.")
    _silent[endpoint] = time.monotonic()
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return SourceError(f"The model hub cannot be reached: {reason}.")
