"""The hub as a source, played by a loopback server that speaks its protocol."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_local.errors import DownloadError
from spec_local.models_manifest import http_range, hub
from spec_local.models_manifest.catalogue import ModelEntry, add_entry
from spec_local.models_manifest.download import pull


@pytest.fixture
def content(tmp_path: Path, write_model: Callable[..., Path]) -> bytes:
    """A model file of about 2 MB."""
    return write_model(tmp_path / "source.gguf", general__filler="z" * (2 << 20)).read_bytes()


@pytest.fixture
def hub_file(home: Path, server: Any, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The file of the model `tiny` as the hub serves it: a redirect with its facts, and the storage behind."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(hub, "_silent", {})
    monkeypatch.setattr(http_range, "_BACKOFF_S", 0)
    facts = {
        "X-Repo-Commit": "0" * 40,
        "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
        "X-Linked-Size": str(len(content)),
        "Location": f"{server.url.replace('127.0.0.1', 'localhost')}/storage/abc?signature=1",
    }
    server.serve("/me/tiny-GGUF/resolve/main/q4/tiny.gguf", b"", status=302, headers=facts)
    server.serve("/storage/abc?signature=1", content)
    variant = {
        "quantisation": "f32",
        "files": [{"name": "tiny.gguf"}],
        "sources": [{"kind": "hub", "repository": "me/tiny-GGUF", "folder": "q4"}],
    }
    entry = {"name": "tiny", "title": "Tiny", "family": "tiny", "licence": "MIT", "variants": [variant]}
    add_entry(ModelEntry.model_validate(entry))
    return server.files["/me/tiny-GGUF/resolve/main/q4/tiny.gguf"]


def test_a_file_comes_with_the_hubs_own_checksum(hub_file: Any, server: Any, content: bytes) -> None:
    seen: list[str] = []
    path = pull("tiny", progress=lambda done, total, what: seen.append(f"{total} {what}"))
    assert path.read_bytes() == content
    assert f"{len(content)} checking tiny.gguf" in seen, "the hub states a checksum, so it is checked"
    assert [asked for _, path, asked in server.requests if path.startswith("/storage")] == [None]


def test_the_token_goes_to_the_hub_and_not_to_the_storage(hub_file: Any, server: Any) -> None:
    pull("tiny")
    tokens = {path.split("/")[1]: token for path, token in server.tokens}
    assert tokens["me"] == "Bearer hf_secret"
    assert tokens["storage"] is None


def test_a_cut_download_resumes_even_when_the_signed_address_changes(
    hub_file: Any, server: Any, content: bytes
) -> None:
    server.serve("/storage/abc?signature=1", content, cuts=1, cut_after=600_000, status_after_cut=403)
    with pytest.raises(DownloadError):
        pull("tiny")
    hub_file.headers["Location"] = hub_file.headers["Location"].replace("=1", "=2")
    server.serve("/storage/abc?signature=2", content, etag='"another edge"')
    assert pull("tiny").read_bytes() == content
    assert server.gets()[-1] == "bytes=600000-"


def test_a_new_version_on_the_hub_starts_over(hub_file: Any, server: Any, content: bytes) -> None:
    server.serve("/storage/abc?signature=1", content, cuts=1, cut_after=600_000, status_after_cut=403)
    with pytest.raises(DownloadError):
        pull("tiny")
    newer = content.replace(b"z", b"w")
    hub_file.headers["X-Linked-Etag"] = hashlib.sha256(newer).hexdigest()
    server.serve("/storage/abc?signature=1", newer)
    assert pull("tiny").read_bytes() == newer
    assert server.gets()[-1] is None


def test_a_corrupted_transfer_is_refused(hub_file: Any, server: Any, content: bytes) -> None:
    server.serve("/storage/abc?signature=1", content[:-1] + b"!")
    with pytest.raises(DownloadError, match="SHA-256"):
        pull("tiny")


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (404, {"X-Error-Code": "EntryNotFound"}, r"me/tiny-GGUF has no file tiny\.gguf"),
        (404, {"X-Error-Code": "RepoNotFound"}, "no public repository me/tiny-GGUF"),
        (403, {"X-Error-Code": "GatedRepo"}, "accepted its licence"),
        (500, {}, "500"),
    ],
)
def test_refusals_are_explained(hub_file: Any, status: int, headers: dict[str, str], says: str) -> None:
    hub_file.status, hub_file.headers = status, headers
    with pytest.raises(DownloadError, match=says):
        pull("tiny")


def test_a_silent_hub_costs_a_few_seconds_once(hub_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_ANSWER_S", 0.3)
    monkeypatch.setattr(hub, "_ask", lambda *arguments: threading.Event().wait(5))
    begin = time.monotonic()
    with pytest.raises(DownloadError, match="does not answer"):
        pull("tiny")
    assert time.monotonic() - begin < 2
    begin = time.monotonic()
    with pytest.raises(DownloadError, match="a moment ago"):
        pull("tiny")
    assert time.monotonic() - begin < 0.2


@pytest.mark.parametrize("code", [403, 401, 410])
def test_an_address_that_runs_out_in_the_middle_is_looked_up_afresh(
    hub_file: Any, server: Any, content: bytes, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage answers 403 once a signature has expired: the hub gives another one, and it goes on at the byte."""
    storage = server.files["/storage/abc?signature=1"]
    storage.cuts, storage.cut_after, storage.status_after_cut = 1, 700_000, code
    server.serve("/storage/abc?signature=2", content)
    first, locate = hub_file.headers["Location"], hub.locate
    answers = [first, first.replace("=1", "=2")]

    def looked_up(*arguments: Any) -> Any:
        hub_file.headers["Location"] = answers.pop(0)
        return locate(*arguments)

    monkeypatch.setattr(hub, "locate", looked_up)
    path = pull("tiny")
    assert path.read_bytes() == content
    gets = [(path, asked) for method, path, asked in server.requests if method == "GET" and "storage" in path]
    assert gets[-1] == ("/storage/abc?signature=2", "bytes=700000-")


def test_an_address_that_stays_refused_is_asked_for_once_more_only(hub_file: Any, server: Any) -> None:
    storage = server.files["/storage/abc?signature=1"]
    storage.cuts, storage.cut_after, storage.status_after_cut = 1, 700_000, 403
    with pytest.raises(DownloadError, match="403") as caught:
        pull("tiny")
    assert "goes on where it stopped" in str(caught.value)
    assert "licence" not in str(caught.value)
    assert len([1 for method, path, _ in server.requests if method == "GET" and "storage" in path]) == 3


def test_a_hub_that_is_asked_too_often_is_asked_again_when_it_says(hub_file: Any, server: Any, content: bytes) -> None:
    hub_file.refusals = [(429, {"Retry-After": "1"})]
    waited: list[str] = []
    started = time.monotonic()
    path = pull("tiny", progress=lambda done, total, what: waited.append(what))
    assert path.read_bytes() == content
    assert time.monotonic() - started >= 1
    assert any(what.startswith("waiting 1 s") for what in waited)
