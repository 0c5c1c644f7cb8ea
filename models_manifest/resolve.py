"""From what a person writes, a name or a path, to a file on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spec_local.errors import ModelError, UsageError
from spec_local.models_manifest.catalogue import (
    Catalogue,
    HubSource,
    ModelEntry,
    ModelFile,
    Variant,
    load_catalogue,
)
from spec_local.models_manifest.found import SPEC_LOCAL, FoundFile, find_files
from spec_local.models_manifest.names import looks_like_path, nearest, split_quantisation
from spec_local.models_manifest.sizes import show_bytes
from spec_local.models_manifest.splits import split_files
from spec_local.models_manifest.store import present, requantised_path, stored_paths

NO_DRAFT_MODEL = ("none", "text")
"""Values of `draft` that ask for no draft model."""


class NotPulledError(ModelError):
    """A model the catalogue knows is not on this machine yet.

    Attributes:
        name: What to pull: a model, or the pair it belongs to.
        bytes: Size of the download; None where unknown.
    """

    def __init__(self, message: str, name: str, size: int | None) -> None:
        super().__init__(message, f"`spec-local models pull {name}` brings it.")
        self.name = name
        self.bytes = size


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file that is on this machine."""

    path: Path
    """Absolute; for a split GGUF its first file."""
    name: str
    """Its catalogue name with the quantisation where that is not the default, or the file's name."""
    entry: ModelEntry | None
    """Its catalogue entry; None for a file the catalogue does not know."""
    origin: str
    """Whose folder it lies in: "spec-local", "hub cache", "Ollama" …, or "path"."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One line of `models list`."""

    entry: ModelEntry | None
    """None for a file no catalogue entry describes."""
    variant: Variant | None
    name: str
    path: Path | None
    """None where it is not on this machine."""
    origin: str
    bytes: int | None
    pairs: tuple[str, ...]
    """Names of the pairs it belongs to."""


def resolve_model(spec: str) -> ResolvedModel:
    """The file that `NAME`, `NAME:QUANTISATION`, a path, or the name of a file found on this machine means.

    Without a quantisation the default one is taken, else whichever is here.

    Raises:
        NotPulledError: The catalogue knows it, but it is not here.
        ModelError: There is no such file or name; the hint names the nearest.
    """
    spec = spec.strip()
    if not spec:
        raise UsageError("No model is named.", "`spec-local models list` shows all names.")
    catalogue = load_catalogue()
    if looks_like_path(spec):
        path = Path(os.path.abspath(Path(spec).expanduser()))
        if path.exists():
            return _at_path(path, catalogue)
        found = [file for file in find_files() if file.name == spec]
        if not found:
            raise ModelError(f"There is no file {path}.", _neighbour(path))
        return ResolvedModel(found[0].path, spec, _entry_of(found[0].path, catalogue), found[0].origin)

    name, quantisation = split_quantisation(spec)
    known = {entry.name: entry for entry in catalogue.models}
    if name in known:
        return _from_entry(known[name], quantisation, catalogue)
    files = find_files()
    for file in files:
        if file.name.lower() == spec.lower():
            return ResolvedModel(file.path, file.name, None, file.origin)
    if Path(spec).is_file():
        return _at_path(Path(spec).absolute(), catalogue)
    if (pair := next((pair for pair in catalogue.pairs if pair.name == name), None)) is not None:
        models = f"Its models are {pair.target} and {pair.draft}"
        raise ModelError(f"{name} is a pair of models, not a model.", f"{models}; both at once are --pair {name}.")
    hint = nearest(name, [*known, *(file.name for file in files)]) or "`spec-local models list` shows all names."
    raise ModelError(f"No model is called {spec!r}, and there is no such file.", hint)


def resolve_pair(
    target: str | None = None, draft: str | None = "auto", pair: str | None = None
) -> tuple[ResolvedModel, ResolvedModel | None, list[str]]:
    """Target and draft for what was asked.

    Args:
        target: Name or path; None for that of `pair`, or of the default pair.
        draft: Name or path; "auto" (or None) for the draft the catalogue pairs with the target, if it is here;
            "text" or "none" for no draft model.
        pair: Name of a pair.

    Returns:
        The target, the draft model or None, and sentences that say what was chosen and why.

    Raises:
        UsageError: Both a pair and a target were given.
        NotPulledError: A model that was asked for by name is not here.
        ModelError: No such name or file.
    """
    if pair and target:
        raise UsageError("A pair and a target cannot both be given.", "Give --pair alone, or -m and -d.")
    catalogue = load_catalogue()
    chosen = catalogue.pair(pair) if pair else None
    if chosen is None and target is None:
        if catalogue.default_pair is None:
            raise UsageError("No model is named and the catalogue has no default pair.", "Name one with -m.")
        chosen = catalogue.pair(catalogue.default_pair)
    try:
        resolved = resolve_model(chosen.target if chosen else target or "")
    except NotPulledError as error:
        if chosen is None or draft in NO_DRAFT_MODEL:
            raise
        raise NotPulledError(error.message, chosen.name, _pair_bytes(chosen.target, chosen.draft, catalogue)) from error
    if draft in NO_DRAFT_MODEL:
        return resolved, None, []
    if draft not in (None, "", "auto"):
        return resolved, resolve_model(draft), []
    if pair and chosen:
        return resolved, resolve_model(chosen.draft), []
    found, notes = _auto_draft(resolved, catalogue)
    return resolved, found, notes


def list_models() -> list[ListedModel]:
    """Every variant of the catalogue, present or not, then the files on this machine that it does not describe."""
    catalogue = load_catalogue()
    files = find_files()
    listed = []
    known: set[Path] = set()
    for model in catalogue.models:
        pairs = tuple(pair.name for pair in catalogue.pairs if model.name in (pair.target, pair.draft))
        for variant in model.variants:
            place = _locate(model, variant, files)
            name = _shown_name(model, variant.quantisation)
            size = variant.shown_bytes if place is None else sum(path.stat().st_size for path in split_files(place[0]))
            listed.append(ListedModel(model, variant, name, place and place[0], place[1] if place else "", size, pairs))
            if place:
                known.add(place[0].resolve())
    for file in files:
        if file.path.resolve() not in known:
            entry = _entry_of(file.path, catalogue)
            listed.append(ListedModel(entry, None, file.name, file.path, file.origin, file.bytes, ()))
    return listed


def local_variant(entry: ModelEntry, variant: Variant) -> Path | None:
    """The first file of a variant wherever it lies on this machine, in this program's folder or another's."""
    place = _locate(entry, variant, find_files())
    return place[0] if place else None


def _from_entry(entry: ModelEntry, quantisation: str | None, catalogue: Catalogue) -> ResolvedModel:
    listed = [v for v in entry.variants if quantisation is None or v.quantisation == quantisation]
    files = find_files()
    for variant in listed:
        place = _locate(entry, variant, files)
        if place:
            return ResolvedModel(place[0], _shown_name(entry, variant.quantisation), entry, place[1])
    made = requantised_path(entry.name, quantisation or "")
    if quantisation and made.is_file():
        return ResolvedModel(made, _shown_name(entry, quantisation), entry, SPEC_LOCAL)
    variant = listed[0] if listed else entry.variant(quantisation)  # the latter says what is listed
    name, size = _shown_name(entry, variant.quantisation), variant.shown_bytes
    how_large = f" ({show_bytes(size)})" if size else ""
    raise NotPulledError(f"{name} is not on this machine yet{how_large}.", name, size)


def _shown_name(entry: ModelEntry, quantisation: str) -> str:
    return entry.name if quantisation == entry.variants[0].quantisation else f"{entry.name}:{quantisation}"


def _locate(entry: ModelEntry, variant: Variant, files: list[FoundFile]) -> tuple[Path, str] | None:
    """Where a variant lies and whose folder that is."""
    path = present(entry, variant)
    if path is not None:
        return path, SPEC_LOCAL if path in stored_paths(entry, variant) else "path"
    first = variant.files[0]
    for file in files:
        if _is_that(file, first, variant) and all(p.is_file() for p in _siblings(file.path, variant)):
            return file.path, file.origin
    return None


def _is_that(file: FoundFile, wanted: ModelFile, variant: Variant) -> bool:
    """Whether a file of another program is the wanted one: same content address, or same repository, name and size."""
    if wanted.bytes not in (None, file.bytes) or file.origin == SPEC_LOCAL:
        return False
    if wanted.sha256 and wanted.sha256 in (file.path.name.removeprefix("sha256-"), file.path.resolve().name):
        return True
    name = file.name.lower()
    for source in variant.sources:
        if isinstance(source, HubSource):
            full = f"{source.repository}/{wanted.name}".lower()
            if name == full or name == full.replace("/", "_") or name.endswith(f"/{full}"):
                return True
    return wanted.bytes is not None and name.rpartition("/")[2] == wanted.name.lower()


def _siblings(first: Path, variant: Variant) -> list[Path]:
    return [first, *(first.with_name(file.name) for file in variant.files[1:])]


def _at_path(path: Path, catalogue: Catalogue) -> ResolvedModel:
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"It holds {', '.join(inside[:3])}." if inside else "Name a .gguf file."
        raise ModelError(f"{path} is a folder, not a model file.", hint)
    first = split_files(path)[0]
    return ResolvedModel(first, first.name, _entry_of(first, catalogue), "path")


def _entry_of(path: Path, catalogue: Catalogue) -> ModelEntry | None:
    """The entry that lists a file of this name, or in whose folder it lies."""
    for entry in catalogue.models:
        if path.parent == requantised_path(entry.name, "").parent:
            return entry
        if any(file.name.lower() == path.name.lower() for variant in entry.variants for file in variant.files):
            return entry
    return None


def _auto_draft(target: ResolvedModel, catalogue: Catalogue) -> tuple[ResolvedModel | None, list[str]]:
    """The first paired draft that is here; else a sentence saying which one would serve."""
    pairs = [pair for pair in catalogue.pairs if target.entry and pair.target == target.entry.name]
    for pair in pairs:
        try:
            return resolve_model(pair.draft), []
        except NotPulledError:
            continue
    if not pairs:
        return None, [f"The catalogue pairs no draft model with {target.name}; drafting from the text alone."]
    return None, [
        f"{pairs[0].draft}, the draft for {target.name}, is not on this machine; drafting from the text alone. "
        f"`spec-local models pull {pairs[0].draft}` brings it."
    ]


def _pair_bytes(target: str, draft: str, catalogue: Catalogue) -> int | None:
    sizes = [catalogue.model(name).variant().shown_bytes for name in (target, draft)]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _neighbour(path: Path) -> str:
    try:
        names = [file.name for file in path.parent.iterdir() if file.suffix.lower() == ".gguf"]
    except OSError:
        return f"There is no folder {path.parent} either." if not path.parent.is_dir() else ""
    return nearest(path.name, names) or (f"Beside it lies {names[0]}." if names else "")
