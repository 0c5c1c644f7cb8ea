"""`spec-local generate --input` as a process: bad lines, kills, interrupts, pipes, locales and exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from batch_engines import ScriptedEngine, recited

from spec_local.batch import slots
from spec_local.cli import loading
from spec_local.cli.main import main
from spec_local.session.generation import Request

SUPPORT = Path(__file__).parents[1] / "support"
POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


def start(*arguments: object, delay_s: float = 0.0, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SUPPORT / "scripted_cli.py"), str(delay_s), "generate", *map(str, arguments)]
    environment = {**os.environ, "SPEC_LOCAL_HOME": "/nonexistent", **(env or {})}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def command(*arguments: object, data: bytes = b"", **options: Any) -> tuple[int, bytes, str]:
    """Exit code, standard output, standard error."""
    process = start(*arguments, **options)
    out, err = process.communicate(data, timeout=60)
    return process.returncode, out, err.decode("utf-8", "replace")


Here = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Here:
    """The same command in this process, which is faster; returns exit code, standard output, standard error."""
    monkeypatch.setattr(slots, "affordable_slots", lambda options: 4)
    monkeypatch.setenv("SPEC_LOCAL_HOME", "/nonexistent")

    def run(*arguments: object, delay_s: float = 0.0) -> tuple[int, bytes, str]:
        monkeypatch.setattr(loading, "load_engine", lambda settings, cancelled: ScriptedEngine(delay_s=delay_s))
        try:
            code = main(["generate", *map(str, arguments)])
        except SystemExit as end:
            code = int(str(end.code))
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


def records(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def prompts(path: Path, count: int, size: int = 40) -> Path:
    path.write_text("".join(json.dumps({"id": f"n{i}", "prompt": f"{i} " + "x" * size}) + "\n" for i in range(count)))
    return path


def test_a_file_of_everything_that_can_be_wrong(here: Here, tmp_path: Path) -> None:
    source, out, summary = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "summary.json"
    long = " ".join(["word"] * 5000)
    rows: list[tuple[bytes, str | None]] = [
        (b'\xef\xbb\xbf{"id": "first", "prompt": "hello"}', None),
        (b"", "blank"),
        (b"{bad", "invalid_json"),
        (b"[]", "not_an_object"),
        (b'"str"', "not_an_object"),
        (b"null", "not_an_object"),
        (b'{"id": "p"}', "missing_prompt"),
        (b'{"prompt": 5}', "wrong_type"),
        (b'{"prompt": ""}', "empty_prompt"),
        (b'{"prompt": "\xff"}', "invalid_utf8"),
        (b'{"prompt": "\\ud800"}', "lone_surrogate"),
        (b'{"prompt": "a", "temperature": NaN}', "not_a_number"),
        (json.dumps({"prompt": long}).encode(), "context_full"),
        (b'{"prompt": "windows"}\r', None),
        (b"   ", "blank"),
        (b'{"prompt": "last, without line end"}', None),
    ]
    source.write_bytes(b"\n".join(line for line, _ in rows))
    code, _, err = here("--input", source, "--output", out, "--summary", summary)
    assert code == 1, err
    found = {r["line"]: r["error"]["type"] if "error" in r else None for r in records(out)}
    assert found == {i: kind for i, (_, kind) in enumerate(rows, 1) if kind != "blank"}
    texts = {r["line"]: r["text"] for r in records(out) if "text" in r}
    assert texts[14] == recited(Request("windows"))
    assert texts[16] == recited(Request("last, without line end"))
    figures = json.loads(summary.read_text())
    assert figures["lines"] == 14 == figures["answered"] + figures["failed"]
    assert (figures["answered"], figures["failed"], sum(figures["errors"].values())) == (3, 11, 11)
    assert "3 answered, 11 failed" in err


def test_a_file_that_holds_no_json_at_all_gets_one_sentence_more(here: Here, tmp_path: Path) -> None:
    source, out = tmp_path / "notes.md", tmp_path / "out.jsonl"
    source.write_text("# Notes\nsome text\n")
    code, _, err = here("--input", source, "--output", out)
    assert code == 1
    assert "No line is JSON: --input-format text takes a prompt from each line" in err


def test_exit_codes(here: Here, tmp_path: Path) -> None:
    good = prompts(tmp_path / "in.jsonl", 3)
    assert here("--input", good, "--output", tmp_path / "a")[0] == 0
    assert here("--input", good, "--output", tmp_path / "a")[0] == 2, "not without --resume"
    assert here("--input", good, "--output", tmp_path / "a", "--resume")[0] == 0
    assert here("--input", tmp_path / "absent", "--output", tmp_path / "b")[0] == 2
    assert here("--input", good, "--output", good)[0] == 2
    assert here("--input", good, "--output", tmp_path / "no" / "folder")[0] == 3
    assert here("--input", good, "--output", "-", "--resume")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--input", "x", "--prompt", "y"], "--prompt and --input exclude each other"),
        (["--prompt", "x", "--resume"], "--resume needs --input"),
        (["--prompt", "x", "--parallel", "2"], "--parallel needs --input"),
        (["--input", "{good}", "--template", "{"], "template"),
        (["--input", "{good}", "--parallel", "0"], "1 to 64"),
        (["--input", "{good}", "--max-errors", "0"], "whole number"),
        (["--input", "{good}", "--timeout-per-item", "nan"], "seconds"),
        (["--input", "{good}", "--input-format", "text", "--column", "q"], "--column"),
        (["--input", "{good}", "--summary", "{good}"], "input file"),
        (["--input", "{good}", "--summary", "-"], "both go to standard output"),
    ],
)
def test_flags_that_make_no_sense_are_refused_before_anything_happens(
    arguments: list[str], says: str, here: Here, tmp_path: Path
) -> None:
    good = prompts(tmp_path / "in.jsonl", 1)
    code, out, err = here(*(str(good) if a == "{good}" else a for a in arguments))
    assert code == 2
    assert says in err
    assert out == b""
    assert "Traceback" not in err


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path: Path) -> None:
    """`kill -9` twenty times, `--resume` each time: in the end exactly the full set, no finished record ever redone."""
    source, out = prompts(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl"
    chance = random.Random(3)
    kills = 0
    finished: dict[str, bytes] = {}
    while kills < 20:
        before = sum(1 for _ in out.open("rb")) if out.exists() else 0
        process = start("--input", source, "--output", out, "--resume", "--parallel", 3, delay_s=0.004)
        # Let it come as far as its next few records, then wait a random moment: kills fall everywhere, start included.
        wanted = before + chance.randint(0, 4)
        ends = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < ends:
            if (sum(1 for _ in out.open("rb")) if out.exists() else 0) >= wanted:
                break
            time.sleep(0.005)
        time.sleep(chance.random() * 0.03)
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
        whole = out.read_bytes().split(b"\n")[:-1] if out.exists() else []
        for line in whole:
            record = json.loads(line)
            assert finished.setdefault(record["id"], line) == line, "a finished record changed"
        assert set(finished) == {json.loads(line)["id"] for line in whole}, "a finished record was lost"
        if len(whole) == 60 and kills < 20:  # all done early: begin anew
            out.unlink()
            finished.clear()
    code, _, err = command("--input", source, "--output", out, "--resume")
    assert code == 0, err
    found = records(out)
    assert sorted(r["line"] for r in found) == list(range(1, 61))
    for r in found:
        assert r["text"] == recited(Request(f"{r['line'] - 1} " + "x" * 40))
    for line in out.read_bytes().splitlines():
        assert finished.get(json.loads(line)["id"], line) == line


@POSIX
def test_first_interrupt_finishes_what_is_in_flight(tmp_path: Path) -> None:
    source, out = prompts(tmp_path / "in.jsonl", 300), tmp_path / "out.jsonl"
    process = start("--input", source, "--output", out, "--parallel", 3, "--summary", tmp_path / "s", delay_s=0.02)
    wait_for_records(out, 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"in flight" in err
    found = records(out)
    assert 2 <= len(found) < 20
    assert all("text" in r for r in found), "what was in flight has been finished"
    assert sorted(r["line"] for r in found) == list(range(1, len(found) + 1))
    assert json.loads((tmp_path / "s").read_text())["stopped"] == "interrupted"
    assert command("--input", source, "--output", out, "--resume")[0] == 0
    assert len(records(out)) == 300


@POSIX
def test_second_interrupt_stops_now(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "quick"}\n' + '{"prompt": "FOREVER"}\n' * 5)
    process = start("--input", source, "--output", out, "--parallel", 2, delay_s=0.01)
    wait_for_records(out, 1)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while b"Ctrl-C again" not in process.stderr.readline():  # two signals that wait together are one
        assert process.poll() is None
    time.sleep(0.3)
    assert process.poll() is None, "it still finishes the one that never ends"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"with --resume goes on" in err
    assert len(records(out)) == 1


def wait_for_records(out: Path, count: int) -> None:
    ends = time.monotonic() + 30
    while not out.exists() or out.read_bytes().count(b"\n") < count:
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_fail_fast_and_max_errors(here: Here, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n{bad\n{bad\n{bad\n' + '{"prompt": "b"}\n' * 100)
    code, out, err = here("--input", source, "--fail-fast", "--parallel", 1)
    assert code == 1
    assert len(out.splitlines()) == 2
    assert "stopped after 1 failure" in err
    code, out, _ = here("--input", source, "--max-errors", 3, "--parallel", 1)
    assert code == 1
    assert len(out.splitlines()) == 4


def test_timeout_per_item(here: Here, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "FOREVER"}\n{"prompt": "a"}\n')
    code, out, _ = here("--input", source, "--timeout-per-item", "0.3", delay_s=0.01)
    assert code == 1
    found = {r["line"]: r for r in map(json.loads, out.splitlines())}
    assert found[1]["error"]["type"] == "timeout"
    assert found[2]["text"] == recited(Request("a"))


def test_pipes_stream(tmp_path: Path) -> None:
    """Answers come while the input is still open; nothing but records on standard output."""
    process = start("--input", "-", "--output", "-", "--parallel", 2)
    assert process.stdin is not None
    assert process.stdout is not None
    for name in ("one", "two"):
        process.stdin.write(json.dumps({"prompt": name}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["text"] == recited(Request(name))
    out, _ = process.communicate(timeout=20)
    assert out == b""
    assert process.returncode == 0


def test_a_reader_that_goes_away_is_no_error() -> None:
    data = b"".join(json.dumps({"prompt": f"{i}"}).encode() + b"\n" for i in range(2000))
    process = start("--input", "-")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(data)
    process.stdin.close()
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(20) == 0
    assert b"Traceback" not in err


@pytest.mark.parametrize("stdout", ["pipe", "file"])
def test_records_are_utf8_whatever_the_locale(tmp_path: Path, stdout: str) -> None:
    env = {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    prompt = "“smart quotes”, naïve 😀"
    data = json.dumps({"prompt": prompt}, ensure_ascii=False).encode() + b'\n{"prompt": "\xe9"}\n'
    out_file = tmp_path / "out.jsonl"
    where = ["--output", str(out_file)] if stdout == "file" else []
    code, out, err = command("--input", "-", *where, data=data, env=env)
    assert code == 1
    found = {r["line"]: r for r in map(json.loads, (out_file.read_bytes() if where else out).splitlines())}
    assert found[1]["text"] == recited(Request(prompt))
    assert found[2]["error"]["type"] == "invalid_utf8"
    assert "0xe9 at offset 12 of the line" in found[2]["error"]["message"]
    assert "Traceback" not in err


def test_formats_by_name_and_by_flag(here: Here, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\n\ntwo\n")
    (tmp_path / "in.csv").write_text("id,q\n7,why?\n")
    _, out, _ = here("--input", tmp_path / "in.txt", "--template", "Say {text}")
    assert {r["line"]: r["text"] for r in map(json.loads, out.splitlines())} == {
        1: recited(Request("Say one")), 3: recited(Request("Say two")),
    }  # fmt: skip
    _, out, _ = here("--input", tmp_path / "in.csv", "--column", "q", "--echo-input")
    (record,) = map(json.loads, out.splitlines())
    assert (record["id"], record["input"]) == ("7", {"id": "7", "q": "why?"})
    code, _, err = here("--input", tmp_path / "in.csv")
    assert code == 2
    assert "it has: id, q" in err


def test_two_runs_on_one_output(tmp_path: Path) -> None:
    source, out = prompts(tmp_path / "in.jsonl", 200), tmp_path / "out.jsonl"
    first = start("--input", source, "--output", out, delay_s=0.02)
    wait_for_records(out, 1)
    code, _, err = command("--input", source, "--output", out, "--resume")
    assert code == 2
    assert "Another run is writing" in err
    first.kill()
    first.communicate()
    assert command("--input", source, "--output", out, "--resume")[0] == 0
    assert len(records(out)) == 200


@POSIX
def test_progress_is_drawn_on_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    import pty

    source, out = prompts(tmp_path / "in.jsonl", 30), tmp_path / "out.jsonl"
    ours, theirs = pty.openpty()
    words = [
        sys.executable,
        str(SUPPORT / "scripted_cli.py"),
        "0.02",
        "generate",
        "--input",
        str(source),
        "-o",
        str(out),
    ]
    environment = {**os.environ, "SPEC_LOCAL_HOME": "/nonexistent", "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone when the process is
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    text = shown.decode()
    assert "/30" in text
    assert "tokens/s" in text
    assert "at once" in text
    assert "tested tokens accepted" in text
    assert "30 answered" in text
    _, _, err = command("--input", source, "-o", tmp_path / "other")
    assert "at once" not in err
    assert "\x1b" not in err
