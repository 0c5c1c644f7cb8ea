"""Where model files lie in the cache folder, and whether they are there."""

from __future__ import annotations

from pathlib import Path

from spec_local.models_manifest.catalogue import ModelEntry, ModelFile, PathSource, Variant
from spec_local.paths import models_folder


def stored_paths(entry: ModelEntry, variant: Variant) -> list[Path]:
    """Where the files of a variant lie once they are pulled, in order."""
    return [models_folder() / entry.name / file.name for file in variant.files]


def is_whole(path: Path, file: ModelFile) -> bool:
    """Whether `path` is there with the size the catalogue knows. Its content was verified when it got its name."""
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return path.is_file() and file.bytes in (None, size)


def present(entry: ModelEntry, variant: Variant) -> Path | None:
    """The first file of a variant, where all its files are on this machine: stored, or at paths the user gave."""
    places = [stored_paths(entry, variant)]
    places += [[Path(path).expanduser() for path in s.paths] for s in variant.sources if isinstance(s, PathSource)]
    for paths in places:
        if all(is_whole(path, file) for path, file in zip(paths, variant.files, strict=True)):
            return paths[0]
    return None


def requantised_path(name: str, quantisation: str) -> Path:
    """Where `models requantise` puts a variant it makes of the model `name`."""
    return models_folder() / name / f"{name}-{quantisation.lower()}.gguf"
