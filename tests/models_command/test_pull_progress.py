"""Someone who waits for a download sees how large it is, how far it has come and how long it will take."""

from __future__ import annotations

import hashlib

import pytest
from tiny_gguf import write_transformer

from spec_local.cli.loading import _Lines, spoken
from spec_local.cli.main import main
from spec_local.models_manifest.catalogue import ModelEntry, Pair, add_entry


def test_lines_say_size_speed_and_time_left(capsys):
    now = [0.0]
    lines = _Lines(every_s=10, clock=lambda: now[0])
    for second in range(31):
        now[0] = float(second)
        lines.report(100e6 + second * 10e6, 1e9, "downloading x.gguf")
    lines.report(0, 1e9, "checking x.gguf")
    assert capsys.readouterr().err.splitlines() == [
        "downloading x.gguf (1 GB, 100 MB of it here already)",
        "downloading x.gguf: 200 MB of 1 GB, 10 MB/s, 1 min 20 s left",
        "downloading x.gguf: 300 MB of 1 GB, 10 MB/s, 1 min 10 s left",
        "downloading x.gguf: 400 MB of 1 GB, 10 MB/s, 1 min 0 s left",
        "checking x.gguf (1 GB)",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (125, "2 min 5 s"), (4800, "1 h 20 min")])
def test_times_as_people_say_them(seconds, text):
    assert spoken(seconds) == text


def test_pulling_a_pair_names_both_with_sizes(tmp_path, monkeypatch, capsys):
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "web"))

        def log_message(self, *_):
            pass

    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SPEC_LOCAL_MODELS", raising=False)
    (tmp_path / "web").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        for name in ("big", "little"):
            data = write_transformer(tmp_path / "web" / f"{name}.gguf", width=64 if name == "big" else 32).read_bytes()
            url = f"http://127.0.0.1:{server.server_address[1]}/{name}.gguf"
            file = {"name": f"{name}.gguf", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            variant = {"quantisation": "f32", "files": [file], "sources": [{"kind": "url", "urls": [url]}]}
            entry = {"name": name, "title": name, "family": "", "licence": "", "variants": [variant]}
            pair = Pair(name="both", target="big", draft="little") if name == "little" else None
            add_entry(ModelEntry.model_validate(entry), pair)
        assert main(["models", "pull", "both"]) == 0
        said = capsys.readouterr()
        assert said.out.strip().endswith("big.gguf")
        lines = said.err.splitlines()
        assert lines[0].startswith("Fetching big (f32, ")
        assert " and little (f32, " in lines[0]
        assert lines[0].endswith(" in all")
        assert any(line.startswith("downloading big.gguf (") for line in lines)
        assert lines[-1].startswith("Fetched in ")
        assert main(["models", "pull", "both"]) == 0
        assert capsys.readouterr().err == "Everything was here already\n"
    finally:
        server.shutdown()
        server.server_close()
