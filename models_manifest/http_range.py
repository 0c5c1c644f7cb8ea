"""Fetch one web address into a part file, going on where an earlier attempt stopped.

A partial file is continued only where the server proves that it is still the same file: by a strong ETag or
a Last-Modified date sent back as `If-Range`, or, where the checksum is known beforehand, by the checksum.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import cache
from time import sleep
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from spec_local.models_manifest.part_file import PartFile, Report, SourceError, ensure_space

_BLOCK = 256 << 10
_TIMEOUT_S = 20.0
_RETRIES = 4
_BACKOFF_S = 0.25
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_SECRET = {"authorization", "cookie", "proxy-authorization"}
_LONGEST_WAIT_S = 300.0
"""Most seconds to wait at a server's word before asking again."""
_EXPIRED = {400, 401, 403, 404, 410}
"""What storage answers once a signed address has run out."""
_PASSING = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Remote:
    """A file on a server."""

    url: str
    key: str
    """What the file is, independent of mirrors and signed addresses: a partial file of another key is not continued."""
    bytes: int | None = None
    """Expected size; None where unknown."""
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pinned: bool = False
    """Whether the key already pins the content, so that a server's changing ETags mean nothing."""


@cache
def _opener() -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"]:  # some Python builds bring no certificates of their own
        try:
            import certifi

            context.load_verify_locations(certifi.where())
        except ImportError:
            pass
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Redirect())


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows a server to another address, but neither without encryption nor with what only the first one may know."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if before.scheme == "https" and after.scheme != "https":
            raise SourceError(f"{shown(req.full_url)} leads to {shown(newurl)}, which is not encrypted.")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and before.netloc != after.netloc:
            for name in [name for name in request.headers if name.lower() in _SECRET]:
                request.remove_header(name)
        return request


def shown(url: str) -> str:
    """An address for messages: without a user's name, a password, or the query, which may be a signature."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _require_trust(remote: Remote) -> None:
    """Without encryption anybody on the way may change a file; a checksum known beforehand would show it.

    Raises:
        SourceError: Neither is there.
    """
    parts = urlsplit(remote.url)
    if parts.scheme == "https" or remote.sha256 or (parts.hostname or "") in _LOOPBACK:
        return
    raise SourceError(
        f"{shown(remote.url)} is not encrypted, and no checksum of the file is known.",
        "Use an https:// address, or give the file's SHA-256.",
    )


Pause = Callable[[float], None]
"""Waits so many seconds, as a server asked, and lets the person see it. It may raise to cancel."""


def fetch(
    remote: Remote, part: PartFile, report: Report, *, anew: Callable[[], Remote] | None = None, pause: Pause = sleep
) -> None:
    """Bring `part` to the whole content of `remote`. The content is not verified here.

    Args:
        remote: What to fetch.
        part: Where to.
        report: Told how far it is.
        anew: Looks the file up again, for an address that is good for a while only (a signed one); None: it is not.
        pause: Waits where the server says how long.

    Raises:
        SourceError: The server does not deliver; what came is kept.
        DownloadError: It does not fit on the disk.
        OSError: The disk failed.
    """
    _require_trust(remote)
    if part.notes().get("key") != remote.key:
        part.discard()
    failures = 0
    looked_up_at = -1
    while True:
        before, asked = part.size, None
        try:
            if _attempt(remote, part, report):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"the server answers {error.code} {error.reason}"
            if error.code in _EXPIRED and anew is not None and part.size > looked_up_at:
                looked_up_at, found = part.size, anew()  # an address may end in the middle: asked for once at a place
                if found.key == remote.key:
                    remote = found
                    continue
                raise SourceError(f"{part.final.name} was replaced by another file while it was fetched.") from error
            if error.code not in _PASSING:
                raise SourceError(
                    f"{shown(remote.url)} cannot be fetched: {reason}.", _advice(error.code, part.size)
                ) from error
            asked = retry_after(error.headers)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
            if part.size == 0:  # never heard of: another source is the better retry
                raise SourceError(f"{shown(remote.url)} cannot be reached: {reason}.") from error
        failures = 0 if part.size > before else failures + 1
        if failures > _RETRIES:
            raise SourceError(
                f"{shown(remote.url)} cannot be fetched: {reason}.",
                "Run the same command again: it goes on where it stopped.",
            )
        if asked is None:
            time.sleep(_BACKOFF_S * 2**failures)
        else:
            pause(asked)


def retry_after(headers: Mapping[str, str] | Message) -> float | None:
    """Seconds to wait that a server asks for, at most `_LONGEST_WAIT_S`; None where it does not say."""
    value = (headers.get("Retry-After") or "").strip()
    if value.isdecimal():
        seconds = float(value)
    else:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(0.0, seconds), _LONGEST_WAIT_S)


def _attempt(remote: Remote, part: PartFile, report: Report) -> bool:
    """One request. Returns whether the file is whole now."""
    notes = part.notes()
    validator = notes.get("validator")
    have = part.size if validator or remote.sha256 or remote.pinned else 0
    request = urllib.request.Request(remote.url, headers={"Accept-Encoding": "identity", **remote.headers})
    if have:
        if have == remote.bytes:
            return True
        request.add_header("Range", f"bytes={have}-")
        if validator and not remote.pinned:
            request.add_header("If-Range", validator)
    try:
        response = _opener().open(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        # Nothing behind what is there: either that is all of it, or it is another file by now.
        same = remote.pinned or _validator(error.headers) in (None, validator)
        if same and error.headers.get("Content-Range") == f"bytes */{have}" and notes.get("bytes") == have:
            return True
        part.discard()
        return False
    with response:
        return _receive(response, remote, part, have, report)


def _receive(response: Any, remote: Remote, part: PartFile, have: int, report: Report) -> bool:
    headers = response.headers
    validator = _validator(headers)
    start, total = _content_range(response)
    begun = part.notes().get("validator")
    if start and (start != have or (begun not in (None, validator) and not remote.pinned)):
        part.discard()  # another file than the one begun: ask again from the start
        return False
    if remote.bytes is not None and total is not None and total != remote.bytes:
        raise SourceError(
            f"{shown(remote.url)} has {total} bytes where {remote.bytes} are expected: it is another file."
        )
    ensure_space(part.path.parent, (total or 0) - start, part.final.name)
    mode = "r+b" if start else "wb"
    with part.path.open(mode) as file:
        part.note(key=remote.key, validator=validator, bytes=total)
        file.seek(start)
        done = _copy(response, file, start, report)
        file.truncate()
    return total is None or done == total


def _copy(response: Any, file: IO[bytes], done: int, report: Report) -> int:
    report(done)
    while True:
        try:
            block = response.read1(_BLOCK)
        except http.client.IncompleteRead as error:
            block = error.partial
            if not block:
                return done
        if not block:
            return done
        file.write(block)
        done += len(block)
        report(done)


def _validator(headers: Message) -> str | None:
    """What `If-Range` takes: a strong ETag, else the date of the last change."""
    etag = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def _content_range(response: Any) -> tuple[int, int | None]:
    """First byte of the body and size of the whole file; the size is None where the server does not say."""
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None:
            raise http.client.HTTPException("the server sent a part without saying which")
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length")
    return 0, int(length) if length and length.isdigit() else None


def _advice(code: int, have: int) -> str:
    if have and code in _EXPIRED:
        return "The address may have run out: the same command goes on where it stopped."
    return {
        401: "The file asks for a login: run `hf auth login`, or set HF_TOKEN.",
        403: "The file asks for permission: accept its licence on its page, then run `hf auth login`.",
        404: "It is not there (any more).",
    }.get(code, "")
