"""GGUF files other programs already keep on this machine. They are used where they lie, never copied or changed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spec_local.environment import variable
from spec_local.models_manifest.gguf_format import read_first_keys
from spec_local.models_manifest.kinds import no_model
from spec_local.models_manifest.splits import split_number
from spec_local.paths import models_folder

SPEC_LOCAL, HUB, LLAMA_CPP, LM_STUDIO, OLLAMA = "spec-local", "hub cache", "llama.cpp", "LM Studio", "Ollama"


_DEEPEST, _MOST_FOLDERS = 8, 20_000
"""How far a model folder is searched: a link may lead to a whole disk."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One model file on this machine."""

    path: Path
    """For a split GGUF its first file."""
    name: str
    """What its owner calls it: `publisher/repository/file.gguf`, or `model:tag` with Ollama."""
    origin: str
    """Whose it is: one of the constants above."""
    bytes: int
    """Size of the file at `path`."""


def find_files() -> list[FoundFile]:
    """All models in the model folders of spec-local and of other programs, by origin and name."""
    seen: set[Path] = set()
    files = []
    for file in (*_stored(), *_hub(), *_llama_cpp(), *_lm_studio(), *_ollama()):
        real = file.path.resolve()
        if real not in seen:
            seen.add(real)
            if not no_model(read_first_keys(file.path), split_number(file.path) is not None):
                files.append(file)
    return files


def _stored() -> Iterator[FoundFile]:
    yield from _tree(models_folder(), SPEC_LOCAL)


def _hub() -> Iterator[FoundFile]:
    home = variable("HF_HOME") or str(_xdg_cache() / "huggingface")
    cache = Path(variable("HF_HUB_CACHE") or variable("HUGGINGFACE_HUB_CACHE") or f"{home}/hub").expanduser()
    for repository in _entries(cache):
        if not repository.name.startswith("models--"):
            continue
        owner = repository.name.removeprefix("models--").replace("--", "/")
        for snapshot in _entries(repository / "snapshots"):
            for file in _tree(snapshot, HUB):
                yield FoundFile(file.path, f"{owner}/{file.name}", HUB, file.bytes)


def _llama_cpp() -> Iterator[FoundFile]:
    given = variable("LLAMA_CACHE")
    if given:
        yield from _tree(Path(given).expanduser(), LLAMA_CPP)
    elif sys.platform == "darwin":
        yield from _tree(Path.home() / "Library/Caches/llama.cpp", LLAMA_CPP)
    elif sys.platform == "win32":
        local = variable("LOCALAPPDATA") or Path.home() / "AppData/Local"
        yield from _tree(Path(local) / "llama.cpp", LLAMA_CPP)
    else:
        yield from _tree(_xdg_cache() / "llama.cpp", LLAMA_CPP)


def _lm_studio() -> Iterator[FoundFile]:
    homes = [Path.home() / ".lmstudio", Path.home() / ".cache/lm-studio"]
    with suppress(OSError, ValueError):  # LM Studio notes here where a user moved its home to
        homes.insert(0, Path((Path.home() / ".lmstudio-home-pointer").read_text("utf-8-sig").strip()))
    for home in homes:
        yield from _tree(home / "models", LM_STUDIO)


def _ollama() -> Iterator[FoundFile]:
    given = variable("OLLAMA_MODELS")
    usual = [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    for home in [Path(given).expanduser()] if given else usual:
        for manifest in _walk(home / "manifests"):
            try:
                layers = json.loads(manifest.read_bytes())["layers"]
                digest = next(layer["digest"] for layer in layers if layer["mediaType"].endswith("image.model"))
                path = home / "blobs" / str(digest).replace(":", "-")
                size = path.stat().st_size
            except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
                continue  # not a manifest of a model that is here
            *owner, model, tag = manifest.relative_to(home / "manifests").parts
            names = [part for part in owner if part not in ("registry.ollama.ai", "library")]
            yield FoundFile(path, "/".join([*names, f"{model}:{tag}"]), OLLAMA, size)


def _tree(folder: Path, origin: str) -> Iterator[FoundFile]:
    """GGUF files below `folder`, named by their path in it; later files of a split are left out."""
    for path in _walk(folder):
        name = path.name.lower()
        if not name.endswith(".gguf") or (split_number(path) or 1) > 1:
            continue
        try:
            size = path.stat().st_size
        except OSError:  # a link into nowhere
            continue
        yield FoundFile(path, path.relative_to(folder).as_posix(), origin, size)


def _walk(folder: Path) -> Iterator[Path]:
    """All files below `folder`, linked folders included, each folder once: models are often linked to another disk."""
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen or len(seen) >= _MOST_FOLDERS:
            folders.clear()
            continue
        seen.add(real)
        if Path(place).relative_to(folder).parts[_DEEPEST:]:
            folders.clear()
        folders.sort()
        for name in sorted(names):
            yield Path(place, name)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _xdg_cache() -> Path:
    return Path(variable("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
