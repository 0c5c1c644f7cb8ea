"""Downloads: encrypted or checked, secrets for their owner only, and none of them in messages."""

from __future__ import annotations

import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from spec_local.models_manifest import http_range
from spec_local.models_manifest.http_range import Remote, fetch, shown
from spec_local.models_manifest.part_file import PartFile, SourceError

SECRETS = ("hunter2", "hf_secret", "signature=abc")


def _part(tmp_path: Path) -> PartFile:
    return PartFile(tmp_path / "tiny.gguf")


def test_certificates_are_verified() -> None:
    """The context of every download is the verifying one of Python's own library."""
    http_range._opener.cache_clear()
    handlers = [h for h in vars(http_range._opener())["handlers"] if isinstance(h, urllib.request.HTTPSHandler)]
    (handler,) = handlers
    context: ssl.SSLContext = handler._context  # type: ignore[attr-defined]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_no_encryption_needs_a_checksum(tmp_path: Path) -> None:
    remote = Remote("http://models.example/tiny.gguf", "k")
    with pytest.raises(SourceError, match="not encrypted, and no checksum") as caught:
        fetch(remote, _part(tmp_path), lambda done: None)
    assert "https://" in caught.value.hint
    for trusted in (
        Remote("https://models.example/x", "k"),
        Remote("http://models.example/x", "k", sha256="0" * 64),
        Remote("http://127.0.0.1:1/x", "k"),
        Remote("http://[::1]:1/x", "k"),
    ):
        http_range._require_trust(trusted)


@pytest.mark.parametrize(("before", "after", "kept"), [
    ("https://hub.example/a", "https://hub.example/b", True),
    ("https://hub.example/a", "https://storage.example/b?signature=abc", False),
    ("https://hub.example/a", "https://hub.example.evil/b", False),
    ("http://127.0.0.1:1/a", "http://127.0.0.1:2/a", False),
])  # fmt: skip
def test_a_token_goes_no_further_than_its_server(before: str, after: str, kept: bool) -> None:
    request = urllib.request.Request(before, headers={"Authorization": "Bearer hf_secret", "Range": "bytes=5-"})
    following = http_range._Redirect().redirect_request(request, None, 302, "Found", {}, after)
    assert following is not None
    assert ("Authorization" in following.headers) is kept
    assert following.headers["Range"] == "bytes=5-"


def test_an_encrypted_address_does_not_lead_to_a_plain_one() -> None:
    request = urllib.request.Request("https://me:hunter2@hub.example/a")
    with pytest.raises(SourceError, match="is not encrypted") as caught:
        http_range._Redirect().redirect_request(request, None, 302, "", {}, "http://hub.example/b?signature=abc")
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_no_secret_stands_in_a_message_or_on_the_disk(tmp_path: Path, server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(http_range, "_BACKOFF_S", 0)
    address = server.url.replace("http://", "http://me:hunter2@")
    part = _part(tmp_path)
    for url in (
        f"{server.url}/absent?signature=abc",
        f"{address}/absent?signature=abc",
        "http://127.0.0.1:9/x?signature=abc",
    ):
        with pytest.raises(SourceError) as caught:
            fetch(Remote(url, "k", headers={"Authorization": "Bearer hf_secret"}), part, lambda done: None)
        assert not any(secret in str(caught.value) for secret in SECRETS)
    for file in tmp_path.rglob("*"):
        assert not any(secret.encode() in file.read_bytes() for secret in SECRETS if file.is_file())
    assert shown("https://me:hunter2@h.example:8/p?signature=abc#x") == "https://h.example:8/p"
