"""What standard input means: one rule for pipes, files, sockets, terminals and nothing; never a hang without a word."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
PROGRAM = """
import sys
from argparse import Namespace
from spec_local.cli.generate import read_prompt
print(repr(read_prompt(Namespace(prompt=sys.argv[1] or None, file=sys.argv[2] or None, raw=False,
                                 no_stdin=sys.argv[3] == "no", json_schema=None, grammar=sys.argv[4] or None))))
"""


def start(stdin: int | IO[Any], prompt: str = "", file: str = "", no: str = "", grammar: str = "") -> Any:
    command = [sys.executable, "-c", PROGRAM, prompt, file, no, grammar]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def read(*arguments: Any, data: bytes | None = None, **options: Any) -> tuple[str, str]:
    process = start(*arguments, **options)
    out, err = process.communicate(data, timeout=30)
    return out.decode().strip(), err.decode()


def test_a_pipe_is_the_prompt_or_stands_behind_it() -> None:
    assert read(subprocess.PIPE, data=b"piped") == ("'piped'", "")
    out, err = read(subprocess.PIPE, "asked", data=b"a\nb\n")
    assert out == r"'asked\n\na\nb\n'"
    assert "Standard input (2 lines) was added behind the prompt" in err
    assert read(subprocess.PIPE, "asked", data=b"") == ("'asked'", "")


@pytest.mark.parametrize("prompt", ["asked", ""])
def test_a_pipe_that_stays_silent_is_named_after_a_second(prompt: str) -> None:
    reader, writer = os.pipe()
    process = start(reader, prompt)
    os.close(reader)
    said = process.stderr.readline().decode()
    assert "Waiting for standard input to end" in said
    assert "--no-stdin" in said
    os.write(writer, b"late")
    os.close(writer)
    out, _ = process.communicate(timeout=30)
    assert "late" in out.decode()


def test_ctrl_c_ends_the_waiting() -> None:
    reader, writer = os.pipe()
    process = start(reader, "asked")
    assert process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode != 0
    os.close(reader)
    os.close(writer)


def test_no_stdin_leaves_a_pipe_alone() -> None:
    reader, writer = os.pipe()
    assert read(reader, "asked", no="no") == ("'asked'", "")
    os.close(reader)
    os.close(writer)


def test_a_file_is_read_from_its_start_only(tmp_path: Path) -> None:
    """`while read line; do …; done < list`: the rest of the list is the loop's."""
    path = tmp_path / "list"
    path.write_text("one\ntwo\n")
    with path.open("rb") as file:
        assert read(file, "asked")[0] == r"'asked\n\none\ntwo\n'"
    with path.open("rb", buffering=0) as file:
        file.read(4)
        assert read(file, "asked") == ("'asked'", "")
        assert file.read() == b"two\n"


def test_a_socket_is_a_pipe_and_nothing_is_nothing() -> None:
    ours, theirs = socket.socketpair()
    process = start(theirs, "asked")  # type: ignore[arg-type]
    theirs.close()
    ours.sendall(b"sent")
    ours.close()
    assert process.communicate(timeout=30)[0].decode().strip() == r"'asked\n\nsent'"
    assert read(subprocess.DEVNULL, "asked") == ("'asked'", "")


def test_standard_input_is_named_once(tmp_path: Path) -> None:
    assert "--file and --grammar both name it" in read(subprocess.PIPE, "", "-", grammar="-", data=b"x")[1]
    assert read(subprocess.PIPE, "asked", grammar="-", data=b"root ::= [a]") == ("'asked'", "")
    assert read(subprocess.PIPE, "asked", "-", data=b"x") == (r"'asked\n\nx'", "")


def test_a_batch_says_that_it_waits_for_lines(tmp_path: Path) -> None:
    support = Path(__file__).parents[1] / "support" / "scripted_cli.py"
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [sys.executable, str(support), "0", "generate", "--input", "-", "--output", str(out), "--parallel", "1"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SPEC_LOCAL_HOME": "/nonexistent"},
    )
    assert process.stderr is not None
    assert process.stdin is not None
    assert b"Waiting for lines on standard input" in process.stderr.readline()
    process.stdin.write(b'{"prompt": "a"}\n')
    process.stdin.flush()
    ends = time.monotonic() + 30
    while not out.exists() or not out.read_bytes():
        assert time.monotonic() < ends
        time.sleep(0.05)
    _, said = process.communicate(timeout=30)
    assert b"Waiting" not in said
    assert json.loads(out.read_text())["line"] == 1
