"""Tools for the tests of `models_manifest`: isolated folders, GGUF files made to order, a loopback server."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_CODES = {"u8": (0, "B"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "u64": (10, "Q")}


def _text(value: bytes | str) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value) if value < 0 else struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if value and isinstance(value[0], bool):
        return struct.pack("<IIQ", 9, 7, len(value)) + bytes(value)
    if value and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(v) for v in value)


def gguf_bytes(
    metadata: dict[str, Any], tensors: Sequence[tuple[str, tuple[int, ...]]], n_keys: int | None = None
) -> bytes:
    """A GGUF file of F32 tensors; `n_keys` lies about the number of keys."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata) if n_keys is None else n_keys)
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    offset = 0
    for name, shape in tensors:
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        size = 4
        for n in shape:
            size *= n
        offset += size + -size % 32
    return head + bytes(-len(head) % 32) + bytes(offset)


def model_metadata(tokens: list[str | bytes] | None = None, **changes: Any) -> dict[str, Any]:
    """Metadata of a two-layer llama; a keyword `a__b` sets the key `a.b`, None removes it."""
    texts = tokens if tokens is not None else [f"t{n}" for n in range(8)]
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.file_type": 0,
        "llama.block_count": 2,
        "llama.context_length": 512,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [1] * len(texts),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages }}",
    }
    for key, value in changes.items():
        full = key.replace("__", ".")
        full = next((known for known in metadata if known.endswith(full)), full)
        metadata[full] = value
    return {key: value for key, value in metadata.items() if value is not None}


TENSORS = [("token_embd.weight", (32, 8)), ("blk.0.attn_k.weight", (32, 16)), ("blk.1.attn_k.weight", (32, 16))]


def _write_model(path: Path, tokens: list[str | bytes] | None = None, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_bytes(model_metadata(tokens, **changes), TENSORS))
    return path


@pytest.fixture
def write_model() -> Callable[..., Path]:
    """`write_model(path, tokens=None, **changes)` writes a small model file; see `model_metadata`."""
    return _write_model


@pytest.fixture
def make_gguf() -> Callable[..., bytes]:
    """`make_gguf(metadata, tensors)` gives the bytes of a GGUF file."""
    return gguf_bytes


@pytest.fixture
def metadata() -> Callable[..., dict[str, Any]]:
    """`metadata(tokens, **changes)`: see `model_metadata`."""
    return model_metadata


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for spec-local and every other program; the hub out of reach."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(folder / "spec-local"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on the discard port
    for name in ("SPEC_LOCAL_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("LLAMA_CACHE", "OLLAMA_MODELS", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return folder


@dataclass
class Served:
    """A file on the loopback server, and how the server behaves for it."""

    content: bytes
    etag: str | None = '"v1"'
    ranges: bool = True
    honours_if_range: bool = True
    cut_after: int | None = None
    """Close the connection after that many bytes of a body, once per entry of `cuts`."""
    cuts: int = 0
    status: int | None = None
    status_after_cut: int | None = None
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Status and headers of the next answers, before anything is served."""
    refuses_gets: bool = False
    """Only GETs get them."""
    stall: threading.Event | None = None
    """Wait for it half way."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """The loopback server: what it serves, and the requests it saw as (method, path, Range)."""

    url: str
    files: dict[str, Served] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Authorization header of every request."""

    def serve(self, path: str, content: bytes, **how: Any) -> Served:
        """Serve `content` at `path`; `how` sets fields of `Served`."""
        self.files[path] = Served(content, **how)
        return self.files[path]

    def gets(self) -> list[str | None]:
        """The Range headers of all GETs."""
        return [asked for method, _, asked in self.requests if method == "GET"]


@pytest.fixture
def server() -> Iterator[Server]:
    """A web server on loopback that can cut, resume, change its ETag and lie."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            asked = self.headers.get("Range")
            state.requests.append((self.command, self.path, asked))
            state.tokens.append((self.path, self.headers.get("Authorization")))
            file = state.files.get(self.path)
            if file is not None and file.refusals and (body or not file.refuses_gets):
                code, headers = file.refusals.pop(0)
                self.send_response(code)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()
                return
            if file is None or file.status:
                self.send_response(file.status if file and file.status else 404)
                for name, value in (file.headers if file else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start, total = 0, len(file.content)
            condition = self.headers.get("If-Range")
            if asked and file.ranges and (condition in (None, file.etag) or not file.honours_if_range):
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= total:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{total}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            else:
                self.send_response(200)
            if file.etag:
                self.send_header("ETag", file.etag)
            for name, value in file.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(total - start))
            self.end_headers()
            if not body:
                return
            content = file.content[start:]
            if file.cuts > 0:
                file.cuts -= 1
                file.status = file.status_after_cut
                self.wfile.write(content[: file.cut_after])
                self.wfile.flush()
                self.close_connection = True
                return
            if file.stall is not None:
                self.wfile.write(content[: len(content) // 3])
                self.wfile.flush()
                file.stall.wait(30)
                content = content[len(content) // 3 :]
            try:
                self.wfile.write(content)
            except OSError:  # the client was killed
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def real_header() -> Callable[[str], Any]:
    """`real_header(name)`: the header of a real model, or a skip where it is not on this machine."""
    from spec_local.errors import ModelError
    from spec_local.models_manifest import read_header, resolve_model

    def read(name: str) -> Any:
        try:
            path = resolve_model(name).path
        except ModelError as error:
            pytest.skip(f"{error.message} {error.hint}")
        return read_header(path)

    return read
