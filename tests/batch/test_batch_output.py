"""The output file: whole records, one writer, and a resume that loses and repeats nothing."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from batch_engines import ScriptedEngine, recipe, recited

from spec_local.batch.job import BatchOptions, Job
from spec_local.batch.output import OutputError, OutputFile
from spec_local.batch.source import Source
from spec_local.errors import UsageError
from spec_local.sampling import Sampling
from spec_local.session.concurrency import Fixed
from spec_local.session.generation import Request


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.splitlines()]


def run(source: Path, out: Path, *, slots: int = 3, limit: int | None = None, **options: Any) -> Job:
    """One run; `limit` ends it after so many records, as a crash would."""
    wanted = options.pop("sampling", Sampling())
    settings = BatchOptions(**options)
    with OutputFile(str(out), resume=settings.resume) as output:
        job = Job(ScriptedEngine(), slots, recipe(sampling=wanted), Source(str(source)), output, settings)
        job.plan()
        for count, _ in enumerate(job.run(), 1):
            if count == limit:
                break
    return job


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": f"n{i}", "prompt": f"prompt {i}"}) + "\n" for i in range(12)))
    return path


def check_full(out: Path, count: int = 12) -> None:
    records = lines(out)
    assert sorted(r["line"] for r in records) == list(range(1, count + 1))
    for r in records:
        assert r["text"] == recited(Request(f"prompt {r['line'] - 1}"))


def test_records(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    job = run(source, out, echo_input=True)
    check_full(out)
    record = lines(out)[0]
    assert list(record)[:3] == ["id", "line", "text"]
    assert record["input"] == {"id": record["id"], "prompt": f"prompt {record['line'] - 1}"}
    assert record["usage"]["completion_tokens"] == len(record["token_ids"])
    assert job.summary.answered == 12
    assert not list(tmp_path.glob(".*")), "neither lock nor temporary file is left"


@pytest.mark.parametrize("cut_at", [1, 5, 11])
@pytest.mark.parametrize("tail", ["", '{"id": "n', '{"id": "n1", "line": 2, "text": "\\ud83', "\n\n", "\x00" * 9])
def test_resume_drops_a_cut_record_and_keeps_the_rest_byte_for_byte(
    source: Path, tmp_path: Path, cut_at: int, tail: str
) -> None:
    out = tmp_path / "out.jsonl"
    run(source, out, limit=cut_at)
    before = out.read_bytes()
    with out.open("a") as file:
        file.write(tail)
    job = run(source, out, resume=True)
    assert out.read_bytes().startswith(before)
    check_full(out)
    assert job.summary.kept == before.count(b"\n")
    assert job.summary.done == 12


def test_resume_of_a_record_whose_line_end_is_missing(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(source, out, limit=4)
    before = out.read_bytes()
    out.write_bytes(before[:-1])
    run(source, out, resume=True)
    assert out.read_bytes().startswith(before)
    check_full(out)


def test_resume_of_nothing_and_of_everything(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(source, out, resume=True)
    check_full(out)
    before = out.read_bytes()
    job = run(source, out, resume=True)
    assert out.read_bytes() == before
    assert (job.summary.kept, job.summary.answered) == (12, 0)


def test_resume_does_failures_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    good = source.read_text()
    source.write_text(good.replace("prompt 3", "REFUSE").replace('"prompt 5"}', '"prom'))
    run(source, out)
    assert sum("error" in r for r in lines(out)) == 2
    kept = [line for line in out.read_bytes().splitlines() if b'"error"' not in line]
    source.write_text(good)
    job = run(source, out, resume=True)
    assert out.read_bytes().splitlines()[:10] == kept
    check_full(out)
    assert (job.summary.kept, job.summary.answered) == (10, 2)


def test_resume_does_again_what_has_changed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(source, out)
    text = source.read_text().replace("prompt 3", "another 3")
    text = text.replace('"prompt 5"', '"prompt 5", "temperature": 0')
    source.write_text(text)
    job = run(source, out, resume=True)
    records = {r["id"]: r for r in lines(out)}
    assert len(lines(out)) == len(records) == 12
    assert records["n3"]["text"] == recited(Request("another 3"))
    assert (job.summary.kept, job.summary.answered) == (10, 2)
    assert job.summary.notes == [
        "'n3' (line 4) is answered again: its prompt has changed.",
        "'n5' (line 6) is answered again: its sampling has changed.",
    ]
    job = run(source, out, resume=True, sampling=Sampling(temperature=0.1))
    assert (job.summary.kept, job.summary.answered) == (1, 11), "n5 has its own temperature"


def test_what_does_not_matter_is_not_done_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(source, out)
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    source.write_text("".join(json.dumps({**row, "label": 1}) + "\n\n" for row in reversed(rows)))
    before = out.read_bytes()
    job = run(source, out, resume=True)
    assert out.read_bytes() == before, "order, blank lines and unknown fields change no answer"
    assert job.summary.kept == 12


def test_without_ids_the_line_number_is_the_name(tmp_path: Path) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    from spec_local.batch.records import Layout

    source.write_text("one\ntwo\nthree\n")
    run(source, out, layout=Layout("text"))
    source.write_text("one\nTWO\nthree\nfour\n")
    job = run(source, out, resume=True, layout=Layout("text"))
    assert job.summary.kept == 2
    assert sorted((r["line"], r["text"]) for r in lines(out)) == [
        (i, recited(Request(p))) for i, p in enumerate(["one", "TWO", "three", "four"], 1)
    ]


def test_answers_to_lines_that_are_gone_are_kept(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(source, out)
    before = out.read_bytes()
    source.write_text("".join(source.read_text().splitlines(keepends=True)[:5]))
    job = run(source, out, resume=True)
    assert out.read_bytes() == before
    assert "7 old answers" in job.summary.notes[-1]


def test_repeated_ids_are_reported_and_all_done(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        '{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n{"id": "1", "prompt": "c"}\n{"id": 1, "prompt": "a"}\n'
    )
    job = run(source, out)
    assert len(lines(out)) == 4
    assert [note[:24] for note in job.summary.notes] == ["The id 1 of line 2 was t", "The id 1 of line 4 was t"]
    before = out.read_bytes()
    assert run(source, out, resume=True).summary.kept == 4
    assert out.read_bytes() == before


def test_misspelt_fields_are_noted_once(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "a", "temprature": 0, "label": 1}\n' * 3)
    assert run(source, out).summary.notes == [
        "The field 'temprature' (line 1) means nothing here; did you mean temperature?"
    ]


def test_an_output_that_holds_something_is_not_touched(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(source, out, limit=3)
    before = out.read_bytes()
    with pytest.raises(UsageError, match="--resume"):
        run(source, out)
    assert out.read_bytes() == before


@pytest.mark.parametrize("content", ["my thesis\n", '{"a": 1}\n', '[1]\n{"id": 1}\n', "a,b\n1,2\n"])
def test_a_file_that_is_no_output_is_not_resumed(source: Path, tmp_path: Path, content: str) -> None:
    out = tmp_path / "precious"
    out.write_text(content)
    with pytest.raises(UsageError, match=r"Line 1 of .* is no record"):
        run(source, out, resume=True)
    assert out.read_text() == content


def test_second_run_is_refused_and_the_lock_ends_with_the_first(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with OutputFile(str(out)):
        for resume in (False, True):
            with pytest.raises(UsageError, match="Another run"):
                OutputFile(str(out), resume=resume)
        link = tmp_path / "link.jsonl"
        link.symlink_to(out)
        with pytest.raises(UsageError, match="Another run"):
            OutputFile(str(link))
    run(source, out)
    check_full(out)


def test_lock_holds_between_processes_and_ends_with_them(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    code = (
        "import sys; from spec_local.batch.output import OutputFile; "
        f"output = OutputFile({str(out)!r}); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="Another run"):
            OutputFile(str(out))
        holder.kill()
        holder.wait()
    OutputFile(str(out)).close()


def test_resume_goes_through_a_link_and_keeps_the_mode(source: Path, tmp_path: Path) -> None:
    out, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    run(source, out, limit=3)
    out.chmod(0o640)
    link.symlink_to(out)
    with out.open("a") as file:
        file.write('{"cut')
    run(source, link, resume=True)
    assert link.is_symlink()
    assert out.stat().st_mode & 0o777 == 0o640
    check_full(out)


def test_a_write_that_fails_says_so(source: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with pytest.raises(OutputError, match=r"/dev/full cannot be written: No space"):
        run(source, Path("/dev/full"))


def test_a_disk_that_is_full_leaves_whole_lines(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write may take half a record before it fails: what was taken is given back."""
    out = tmp_path / "out.jsonl"
    run(source, out, limit=2)
    whole = out.read_bytes()

    class Full:
        """The file on a disk with room for a hundred bytes more."""

        def __init__(self, file: Any) -> None:
            self.file, self.room = file, 100

        def write(self, data: Any) -> int:
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = int(self.file.write(bytes(data[: self.room])))
            self.room -= written
            return written

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    right = OutputFile._open

    def opened(self: OutputFile) -> None:
        right(self)
        vars(self)["_file"] = Full(self._file)

    monkeypatch.setattr(OutputFile, "_open", opened)
    with pytest.raises(OutputError, match="No space"):
        run(source, out, resume=True)
    assert out.read_bytes() == whole
    monkeypatch.undo()
    run(source, out, resume=True)
    check_full(out)


def test_output_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be"):
        OutputFile(str(tmp_path / "no" / "such" / "folder.jsonl"))
    with pytest.raises((OutputError, UsageError)):
        OutputFile(str(tmp_path))


def test_a_pipe_can_be_resumed_from(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.jsonl"
    run(source, out, limit=5)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(source.read_bytes())))
    job = run(Path("-"), out, resume=True)
    assert job.summary.done == 12
    check_full(out)


def test_max_errors_begins_nothing_more(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "good"}\n{bad\n{bad\n' + '{"prompt": "more"}\n' * 50)
    job = run(source, out, max_errors=2)
    assert job.stopped == "stopped after 2 failures"
    assert job.summary.failed == 2
    assert job.summary.done < 10


def test_summary_adds_up(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    source.write_text(source.read_text() + '{bad\n\n{"prompt": "REFUSE"}\n{"prompt": "x", "max_tokens": 3}\n')
    job = run(source, out)
    figures = job.summary.as_dict(concurrency=Fixed(3), stopped=None, model={})
    assert figures["lines"] == 15 == figures["kept"] + figures["answered"] + figures["failed"]
    assert figures["errors"] == {"invalid_json": 1, "usage": 1}
    assert figures["finish_reasons"] == {"stop": 12, "max_tokens": 1}
    records = [r for r in lines(out) if "error" not in r]
    assert figures["usage"]["completion_tokens"] == sum(len(r["token_ids"]) for r in records)
    assert figures["speculation"]["rounds"] == sum(r["speculation"]["rounds"] for r in records)
    assert figures["speculation"]["emitted"] == figures["usage"]["completion_tokens"]
    json.dumps(figures, allow_nan=False)


def test_source_counts_lines(tmp_path: Path) -> None:
    path = tmp_path / "in"
    for data, count in ((b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n", 2)):
        path.write_bytes(data)
        assert Source(str(path)).lines() == count
    with pytest.raises(UsageError, match="no such file"):
        Source(str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="folder"):
        Source(str(tmp_path))
