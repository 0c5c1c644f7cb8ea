"""Change what is known and what is stored: the user's own entries, and the files in the cache folder."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spec_local.errors import ModelError, UsageError
from spec_local.models_manifest.catalogue import (
    HubSource,
    ModelEntry,
    ModelFile,
    Pair,
    PathSource,
    Source,
    UrlSource,
    Variant,
    add_entry,
    checked_name,
    load_catalogue,
    remove_entry,
    user_catalogue,
)
from spec_local.models_manifest.gguf_header import read_header
from spec_local.models_manifest.names import split_quantisation
from spec_local.models_manifest.store import requantised_path, stored_paths
from spec_local.paths import models_folder


@dataclass(frozen=True, slots=True)
class Removed:
    """What `remove_model` took away."""

    entry: bool
    """Whether the user's catalogue lost an entry."""
    files: tuple[Path, ...]
    """Model files deleted from the cache folder."""
    bytes: int
    """Disk space freed, partial downloads included."""


def add_model(
    name: str,
    path: Path | None = None,
    repository: str | None = None,
    file: str | None = None,
    url: str | None = None,
    sha256: str | None = None,
    quantisation: str | None = None,
    draft: str | None = None,
    licence: str = "not stated",
) -> ModelEntry:
    """Put a model of the user's own into their catalogue, in place of an entry of the same name.

    Args:
        name: What to call it.
        path: A model file on this machine, used where it is; or
        repository: a hub repository with
        file: this file in it; or
        url: the web address of a model file.
        sha256: Its checksum, if known.
        quantisation: Its quantisation; found in the file or its name otherwise.
        draft: Name of a catalogue model that drafts for it.
        licence: Its licence.

    Raises:
        UsageError: The name cannot be one, or not exactly one place was given.
        ModelError: The file is no model, the draft is unknown, or the catalogue cannot be written.
    """
    checked_name(name)
    if [path is not None, repository is not None, url is not None].count(True) != 1 or (repository and not file):
        raise UsageError("Say where the model is.", "Give a path, a hub repository and a file in it, or a web address.")
    facts: dict[str, Any] = {}
    source: Source
    try:
        if path is not None:
            header = read_header(path)
            quantisation = quantisation or header.quantisation
            facts = {"title": header.name, "parameters": header.parameters, "context_length": header.context_length}
            files = [ModelFile(name=part.name, bytes=part.stat().st_size) for part in header.files]
            source = PathSource(kind="path", paths=[str(part.absolute()) for part in header.files])
        elif repository is not None:
            folder, _, base = (file or "").rpartition("/")
            files = [ModelFile(name=base)]
            source = HubSource(kind="hub", repository=repository, folder=folder)
        else:
            base = (url or "").split("?")[0].rstrip("/").rpartition("/")[2]
            files = [ModelFile(name=base)]
            source = UrlSource(kind="url", urls=[url or ""])
        if sha256:
            files[0] = files[0].model_copy(update={"sha256": sha256.lower()})
        variant = Variant(
            quantisation=(quantisation or _quantisation_in(files[0].name)).lower(), files=files, sources=[source]
        )
        entry = ModelEntry.model_validate(
            {
                "name": name,
                "family": "",
                "licence": licence,
                "variants": [variant.model_dump()],
                **facts,
                "title": facts.get("title") or name,
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise UsageError(f"{name} cannot be added: {where}: {first['msg']}.") from error
    if draft is not None:
        load_catalogue().model(draft)
    add_entry(entry, Pair(name=name, target=name, draft=draft.lower()) if draft else None)
    return entry


def remove_model(spec: str) -> Removed:
    """Delete the stored files of a model, or of one of its quantisations, and the user's own entry of that name.

    Files at paths the user gave, and files of other programs, stay where they are.

    Raises:
        ModelError: Nothing of that name is known, or a file cannot be deleted.
    """
    name, quantisation = split_quantisation(spec)
    entry = load_catalogue().model(name)
    try:
        if quantisation is not None:
            made = requantised_path(entry.name, quantisation)  # may go under a name that the catalogue does not list
            listed = any(variant.quantisation == quantisation for variant in entry.variants)
            paths = stored_paths(entry, entry.variant(quantisation)) if listed or not made.is_file() else []
            paths += [made] if made not in paths and made.is_file() else []
            doomed = [p for path in paths for p in (path, *path.parent.glob(f"{path.name}.*")) if p.is_file()]
            freed = sum(path.stat().st_size for path in doomed)
            for path in doomed:
                path.unlink()
            return Removed(False, tuple(path for path in paths if path in doomed), freed)
        folder = models_folder() / entry.name
        inside = [path for path in folder.rglob("*") if path.is_file()]
        freed = sum(path.stat().st_size for path in inside)
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise ModelError(f"{entry.name} cannot be removed: {error}.") from error
    own = any(mine.name == entry.name for mine in user_catalogue().models)
    if own:
        remove_entry(entry.name)
    return Removed(own, tuple(path for path in inside if path.suffix == ".gguf"), freed)


def _quantisation_in(file_name: str) -> str:
    """`qwen2.5-7b-instruct-Q4_K_M-00001-of-00002.gguf` → `q4_k_m`; `unknown` where the name has none."""
    found = re.findall(r"(?:^|[-._])((?:iq|q|tq)\d\w*|bf16|f16|f32|mxfp4)(?=[-.]|$)", file_name, re.IGNORECASE)
    return str(found[-1]).lower() if found else "unknown"
