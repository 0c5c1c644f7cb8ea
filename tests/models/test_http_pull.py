"""Downloads from a web server that cuts, resumes, changes its ETag and lies: case 40."""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_local.errors import DownloadError, ModelError
from spec_local.models_manifest import http_range
from spec_local.models_manifest.catalogue import ModelEntry, add_entry
from spec_local.models_manifest.download import pull
from spec_local.models_manifest.resolve import NotPulledError, resolve_model
from spec_local.paths import models_folder

Add = Callable[..., Path]


@pytest.fixture
def content(tmp_path: Path, write_model: Callable[..., Path]) -> bytes:
    """A model file of about 3 MB."""
    return write_model(tmp_path / "source.gguf", general__filler="x" * (3 << 20)).read_bytes()


@pytest.fixture
def add(home: Path, server: Any, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Add:
    """`add(how, **facts)` serves the model `tiny` and catalogues it with these facts; returns where it will lie."""
    monkeypatch.setattr(http_range, "_BACKOFF_S", 0)

    def put(how: dict[str, Any] | None = None, **facts: Any) -> Path:
        server.serve("/tiny.gguf", content, **(how or {}))
        source = {"kind": "url", "urls": [f"{server.url}/tiny.gguf"]}
        variant = {"quantisation": "f32", "files": [{"name": "tiny.gguf", **facts}], "sources": [source]}
        entry = {"name": "tiny", "title": "Tiny", "family": "tiny", "licence": "MIT", "variants": [variant]}
        add_entry(ModelEntry.model_validate(entry))
        return models_folder() / "tiny" / "tiny.gguf"

    return put


def part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_plain_pull_is_verified_placed_and_reported(add: Add, content: bytes) -> None:
    path = add(bytes=len(content), sha256=digest(content))
    with pytest.raises(NotPulledError) as missing:
        resolve_model("tiny")
    assert missing.value.name == "tiny" and missing.value.bytes == len(content)
    seen: list[tuple[int, int, str]] = []
    assert pull("tiny", progress=lambda *now: seen.append(now)) == path
    assert path.read_bytes() == content and not part_of(path).exists()
    assert {what for _, _, what in seen} == {"downloading tiny.gguf", "checking tiny.gguf"}
    assert seen[-1][:2] == (len(content), len(content))
    assert resolve_model("tiny").path == path


def test_what_is_there_is_not_fetched_again(add: Add, server: Any, content: bytes) -> None:
    add(sha256=digest(content))
    pull("tiny")
    server.requests.clear()
    pull("tiny")
    pull("tiny", offline=True)
    assert server.requests == []


def test_a_cut_connection_is_taken_up_where_it_broke(add: Add, server: Any, content: bytes) -> None:
    path = add({"cuts": 3, "cut_after": 700_000}, sha256=digest(content))
    pull("tiny")
    assert path.read_bytes() == content
    assert server.gets() == [None, "bytes=700000-", "bytes=1400000-", "bytes=2100000-"]


def test_killed_at_a_third_and_started_again(add: Add, server: Any, content: bytes, home: Path) -> None:
    """The process dies by SIGKILL; what came stays as `.part`, is no model, and is taken up by the next."""
    stall = threading.Event()
    path = add({"stall": stall}, sha256=digest(content))
    code = "from spec_local.models_manifest import pull; pull('tiny')"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=home)
    deadline = time.monotonic() + 20
    while not (part_of(path).exists() and part_of(path).stat().st_size > 200_000) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    stall.set()
    kept = part_of(path).stat().st_size
    assert 200_000 < kept < len(content) and not path.exists()
    with pytest.raises(NotPulledError):
        resolve_model("tiny")
    with pytest.raises(ModelError):
        resolve_model(str(path))

    server.files["/tiny.gguf"].stall = None
    pull("tiny")
    assert path.read_bytes() == content
    assert server.gets()[-1] == f"bytes={kept}-"


def test_cancelling_keeps_what_came(add: Add, server: Any, content: bytes) -> None:
    path = add(sha256=digest(content))

    def cancel(done: int, total: int, what: str) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=cancel)
    kept = part_of(path).stat().st_size
    assert kept > 0 and not path.exists()
    pull("tiny")
    assert path.read_bytes() == content and server.gets()[-1] == f"bytes={kept}-"


def test_a_server_without_ranges_sends_all_again(add: Add, server: Any, content: bytes) -> None:
    path = add({"ranges": False, "cuts": 2, "cut_after": 500_000}, sha256=digest(content))
    pull("tiny")
    assert path.read_bytes() == content
    assert len(server.gets()) == 3


@pytest.mark.parametrize("honours", [True, False])
def test_a_changed_etag_starts_over(add: Add, server: Any, content: bytes, honours: bool) -> None:
    """Half of one version and half of another is never joined, whether the server minds If-Range or not."""
    old = content.replace(b"x", b"y")
    path = add()
    server.serve("/tiny.gguf", old, cuts=1, cut_after=800_000, status_after_cut=404)
    with pytest.raises(DownloadError, match="404"):
        pull("tiny")
    assert part_of(path).stat().st_size == 800_000
    server.serve("/tiny.gguf", content, etag='"v2"', honours_if_range=honours)
    pull("tiny")
    assert path.read_bytes() == content


def test_without_any_validator_nothing_is_joined(add: Add, server: Any, content: bytes) -> None:
    path = add({"etag": None, "cuts": 1, "cut_after": 900_000})
    pull("tiny")
    assert path.read_bytes() == content and server.gets() == [None, None]


def test_a_weak_etag_is_no_proof(add: Add, server: Any, content: bytes) -> None:
    add({"etag": 'W/"v1"', "cuts": 1, "cut_after": 900_000})
    pull("tiny")
    assert server.gets() == [None, None]


def test_a_date_is_proof_enough(add: Add, server: Any, content: bytes) -> None:
    date = {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
    path = add({"etag": None, "headers": date, "cuts": 1, "cut_after": 900_000, "honours_if_range": False})
    pull("tiny")
    assert path.read_bytes() == content and server.gets()[-1] == "bytes=900000-"


def test_a_wrong_checksum_is_said_and_not_loadable(add: Add, content: bytes) -> None:
    path = add(sha256="0" * 64)
    with pytest.raises(DownloadError, match="SHA-256") as caught:
        pull("tiny")
    assert digest(content) in caught.value.message and "0" * 64 in caught.value.message
    assert not path.exists() and not part_of(path).exists()
    with pytest.raises(NotPulledError):
        resolve_model("tiny")


def test_another_size_is_another_file(add: Add, content: bytes) -> None:
    add(bytes=len(content) + 1)
    with pytest.raises(DownloadError, match=f"{len(content)} bytes where {len(content) + 1} are expected"):
        pull("tiny")


def test_a_web_page_instead_of_the_file_is_refused(add: Add, server: Any) -> None:
    path = add()
    server.serve("/tiny.gguf", b"<!doctype html><html>please log in</html>")
    with pytest.raises(DownloadError, match="web page"):
        pull("tiny")
    assert not path.exists()


@pytest.mark.parametrize(("status", "says"), [(404, "404"), (401, "login"), (403, "licence"), (503, "503")])
def test_refusals_are_explained(add: Add, server: Any, status: int, says: str) -> None:
    add({"status": status})
    with pytest.raises(DownloadError) as caught:
        pull("tiny")
    assert says in str(caught.value)
    assert len(server.gets()) == (5 if status == 503 else 1)


def test_too_little_disk_is_said_before_anything_is_fetched(
    add: Add, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add(bytes=len(content))
    usage = shutil.disk_usage(path.anchor)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1 << 20))
    with pytest.raises(DownloadError, match=r"needs 3.15 MB more, but .* has only 1.05 MB free"):
        pull("tiny")
    assert not part_of(path).exists()


def test_a_disk_that_fills_up_keeps_what_came(add: Add, server: Any, content: bytes, monkeypatch: Any) -> None:
    path = add(sha256=digest(content))
    real = http_range._copy

    def full(response: Any, file: Any, done: int, report: Any) -> int:
        file.write(response.read(1_000_000))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(http_range, "_copy", full)
    with pytest.raises(DownloadError, match="is full") as caught:
        pull("tiny")
    assert "goes on where it stopped" in caught.value.hint
    assert part_of(path).stat().st_size == 1_000_000 and not path.exists()
    monkeypatch.setattr(http_range, "_copy", real)
    pull("tiny")
    assert path.read_bytes() == content and server.gets()[-1] == "bytes=1000000-"


def test_a_folder_that_cannot_be_written_is_said(add: Add, home: Path) -> None:
    path = add()
    path.parent.parent.mkdir(parents=True)
    path.parent.write_text("a file where a folder should be")
    with pytest.raises(DownloadError, match="cannot be written to"):
        pull("tiny")


def test_two_processes_fetch_once(add: Add, server: Any, content: bytes, home: Path) -> None:
    stall = threading.Event()
    path = add({"stall": stall}, sha256=digest(content))
    code = "from spec_local.models_manifest import pull; print(pull('tiny'))"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    deadline = time.monotonic() + 20
    while not server.requests and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)  # the other one has its chance to ask, too
    stall.set()
    outputs = [process.communicate(timeout=30)[0].strip() for process in both]
    assert outputs == [str(path)] * 2 and path.read_bytes() == content
    assert len(server.gets()) == 1


def test_waiting_for_another_process_is_shown(add: Add, content: bytes) -> None:
    from filelock import FileLock

    path = add(sha256=digest(content))
    path.parent.mkdir(parents=True)
    seen: list[str] = []
    lock = FileLock(path.with_name("tiny.gguf.lock"))

    def progress(done: int, total: int, what: str) -> None:
        seen.append(what)
        lock.release()

    lock.acquire()
    pull("tiny", progress=progress)
    assert seen[0] == "waiting for another process to finish tiny.gguf"
    assert path.read_bytes() == content


def test_offline_never_touches_the_network(add: Add, server: Any) -> None:
    add()
    with pytest.raises(DownloadError, match="switched off") as caught:
        pull("tiny", offline=True)
    assert "models pull tiny" in caught.value.hint and server.requests == []


def test_split_models_come_as_a_whole(
    home: Path, server: Any, make_gguf: Any, metadata: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]
    for n, name in enumerate(names):
        facts = (metadata() if n == 0 else {"general.architecture": "llama"}) | {"split.no": n, "split.count": 2}
        server.serve(f"/{name}", make_gguf(facts, [(f"blk.{n}.attn_k.weight", (32, 16))]))
    source = {"kind": "url", "urls": [f"{server.url}/{name}" for name in names]}
    variant = {"quantisation": "f32", "files": [{"name": name} for name in names], "sources": [source]}
    entry = {"name": "big", "title": "Big", "family": "big", "licence": "MIT", "variants": [variant]}
    add_entry(ModelEntry.model_validate(entry))
    server.files[f"/{names[1]}"].status = 404
    with pytest.raises(DownloadError, match="big-00002-of-00002"):
        pull("big")
    with pytest.raises(NotPulledError):
        resolve_model("big")
    server.files[f"/{names[1]}"].status = None
    path = pull("big")
    assert path.name == names[0] and resolve_model("big").path == path


def test_a_server_that_says_when_is_asked_again_then(add: Add, server: Any, content: bytes) -> None:
    """`Retry-After` in seconds or as a date; a line says so while it waits."""
    from email.utils import formatdate

    path = add({"refusals": [(429, {"Retry-After": "2"}), (503, {"Retry-After": formatdate(time.time() + 4)})]})
    seen: list[str] = []
    started = time.monotonic()
    pull("tiny", progress=lambda done, total, what: seen.append(what))
    assert time.monotonic() - started > 2.5
    assert path.read_bytes() == content
    assert any(re.fullmatch("waiting [12] s for tiny.gguf, as the server asks", what) for what in seen)
    assert len(server.gets()) == 3


def test_a_wait_is_bounded_and_can_be_stopped(add: Add, server: Any) -> None:
    path = add({"refusals": [(429, {"Retry-After": "86400"})]})

    def cancel(done: int, total: int, what: str) -> None:
        if what.startswith("waiting"):
            assert int(what.split()[1]) <= 300
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=cancel)
    assert not path.exists()


@pytest.mark.parametrize("value", ["soon", "", "-5", "Thu, 99 Foo 2024"])
def test_a_wait_that_says_nothing_is_none(value: str) -> None:
    assert http_range.retry_after({"Retry-After": value}) is None
