"""`spec-local generate` on a tiny model: prompts from everywhere, output to everywhere, exit codes, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spec_local.cli.terminal import TextOutput

COMMAND = [sys.executable, "-m", "spec_local.cli.main", "generate"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def run(
    home: Path, *words: object, stdin: bytes | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env={**os.environ, "SPEC_LOCAL_HOME": str(home), **environment},
        timeout=120,
        check=False,
    )


def raw(model: Path, *more: object) -> list[object]:
    return ["-m", model, "-d", "text", "--raw", "--temperature", 0, "--max-tokens", 12, "--threads", 1, *more]


def test_prompts_join_and_output_is_the_same_everywhere(home: Path, tiny_target: Path, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("beta ")
    out = tmp_path / "out.txt"
    piped = run(home, *raw(tiny_target, "-p", "alpha ", "-f", tmp_path / "b.txt"), stdin=b"gamma")
    assert piped.returncode == 0, piped.stderr
    whole = run(home, *raw(tiny_target, "-p", "alpha beta gamma", "-o", out))
    assert (whole.returncode, whole.stdout) == (0, b"")
    assert out.read_bytes() == piped.stdout
    assert piped.stdout.endswith(b"\n")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_an_output_file_held_stays_until_there_is_an_answer(
    home: Path, tiny_target: Path, tmp_path: Path, flags: list[str]
) -> None:
    out = tmp_path / "out.txt"
    earlier = "an earlier answer, longer than the next one will be\n" * 100
    out.write_text(earlier)
    missing = run(home, "-p", "x", "-m", tmp_path / "no.gguf", "-o", out, *flags)
    assert (missing.returncode, out.read_text()) == (3, earlier)
    answered = run(home, *raw(tiny_target, "-p", "alpha", "-o", out, *flags))
    assert answered.returncode == 0, answered.stderr
    piped = run(home, *raw(tiny_target, "-p", "alpha", *flags))
    assert (earlier not in out.read_text()) and out.read_text()[:12] == piped.stdout.decode()[:12]


def test_an_output_file_is_emptied_by_success_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    cases: list[tuple[list[str], bool, str]] = [
        ([], True, "old\n"),
        ([], False, ""),
        (["new"], True, "new\n"),
        (["a", "b"], False, "ab\n"),
    ]
    for words, keep, expected in cases:
        out.write_text("old\n")
        output = TextOutput(str(out))
        assert out.read_text() == "old\n"
        for word in words:
            output.write(word)
        output.close(keep=keep)
        assert out.read_text() == expected


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX devices")
def test_a_device_is_an_output_file_too() -> None:
    output = TextOutput(os.devnull)
    output.write("gone")
    output.close()


def test_json_has_the_fields_of_the_contract(home: Path, tiny_target: Path, tiny_draft: Path) -> None:
    words = ["-m", tiny_target, "-d", tiny_draft, "--draft-length", 3, "--raw", "-p", "one two", "--json", "--seed", 0]
    ended = run(home, *words, "--max-tokens", 20, "--threads", 1, "--stats")
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["finish_reason"] in ("stop", "length")
    assert answer["seed"] == 0
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"]) <= 20
    timings = {"load_s", "prefill_s", "ttft_s", "decode_s", "decode_tokens_per_s", "draft_s", "verify_s", "host_s"}
    assert timings <= set(answer["timings"])
    speculation = answer["speculation"]
    assert speculation["state"] == "on"
    assert speculation["acceptance_rule"] == "coupled"
    assert speculation["tokens_per_pass"] > 1
    assert 0 < speculation["acceptance_rate"] <= 1
    assert speculation["sources"]["model"]["tested"] == speculation["tested"]
    assert len(speculation["per_position"]) == 3
    assert answer["model"]["target"]
    assert answer["model"]["draft"]
    assert answer["model"]["drafters"] == ["model"]
    assert b"tokens in" in ended.stderr
    assert f"of {speculation['tested']} tested tokens accepted" in ended.stderr.decode()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 2, "There is no prompt"),
        (["-p", ""], 2, "The prompt is empty"),
        (["-p", "x", "--temperature", "-1"], 2, "temperature cannot be -1"),
        (["-p", "x", "--draft-length", "99"], 2, "draft_length cannot be 99"),
        (["-p", "x", "--temprature", "1"], 2, "did you mean --temperature"),
        (["-p", "x", "-m", "no-such-model"], 3, "No model is called 'no-such-model'"),
        (["-p", "x", "-m", "/no/such/file.gguf"], 3, "There is no file /no/such/file.gguf"),
        (["-f", "/no/such/file.txt"], 2, "/no/such/file.txt cannot be read"),
    ],
)
def test_bad_requests_are_a_sentence_and_a_code(
    home: Path, tiny_target: Path, words: list[str], code: int, sentence: str
) -> None:
    model = [] if "-m" in words else ["-m", tiny_target, "-d", "text"]
    ended = run(home, *model, *words)
    assert ended.returncode == code, ended.stderr
    assert sentence in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
    assert ended.stdout == b""


def test_input_that_is_no_utf8_is_named_by_its_offset(home: Path, tiny_target: Path) -> None:
    ended = run(home, "-m", tiny_target, "-d", "text", stdin=b"abc\xffdef")
    assert ended.returncode == 2
    assert b"byte 0xff at offset 3" in ended.stderr


def test_a_console_that_knows_no_unicode_does_not_end_the_program(home: Path, tiny_target: Path) -> None:
    words = raw(tiny_target, "-p", "caf\u00e9 \u201cquoted\u201d \U0001f680")
    ended = run(home, *words, LC_ALL="C.UTF-8", PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert ended.returncode == 0, ended.stderr
    ended.stdout.decode("utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interrupt_keeps_what_was_written(home: Path, tiny_target: Path) -> None:
    words = ["-m", tiny_target, "-d", "none", "--raw", "-p", "go", "--min-tokens", 100_000, "--n-ctx", 120_000]
    process = subprocess.Popen(
        [*COMMAND, *map(str, words), "--threads", "1", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SPEC_LOCAL_HOME": str(home)},
    )
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    answer = json.loads(out) if out else None
    if answer is not None:  # interrupted while loading: nothing was written
        assert answer["finish_reason"] == "cancelled"
        assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])
