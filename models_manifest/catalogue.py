"""The catalogue: which models exist, where their files come from, and which draft serves which target.

`catalogue.json` beside this module is the built-in part; the user's own file in the config folder has the
same schema and wins where both name the same thing. `catalogue.schema.json` is generated from the classes
below (`python -m spec_local.models_manifest.catalogue`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from spec_local.errors import ModelError, UsageError
from spec_local.models_manifest.names import nearest, split_quantisation
from spec_local.paths import config_folder

_NAME = "[a-z0-9][a-z0-9._-]{0,99}"
Name = Annotated[str, Field(pattern=f"^{_NAME}$")]


def _inside(name: str) -> str:
    if not name.strip(". "):
        raise ValueError("a file needs a name, and must not leave its folder")
    return name


FileName = Annotated[str, Field(pattern=r"^[^/\\:\x00-\x1f\x7f-\x9f]{1,200}$"), AfterValidator(_inside)]
"""A name inside a model's own folder: no way out of it, nothing a terminal or a file system would take otherwise."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Bytes = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HubSource(_Strict):
    """A repository on the model hub that holds the variant's files under their own names."""

    kind: Literal["hub"]
    repository: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    revision: str = "main"
    folder: Annotated[str, Field(pattern=r"^(\w[\w.-]*(/\w[\w.-]*)*)?$")] = ""
    """The folder inside the repository; empty for its root."""


class Part(_Strict):
    """One consecutive piece of a file, carried as a data file inside a Python package."""

    package: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*$")]
    member: str
    """Path of the piece inside the package."""
    bytes: Bytes
    sha256: Sha256 | None = None


class PartsSource(_Strict):
    """Package parts: the pieces, joined in order, are the variant's one file."""

    kind: Literal["parts"]
    parts: Annotated[list[Part], Field(min_length=1)]


class UrlSource(_Strict):
    """Plain web addresses, one for each of the variant's files."""

    kind: Literal["url"]
    urls: Annotated[list[Annotated[str, Field(pattern=r"^https?://")]], Field(min_length=1)]


class PathSource(_Strict):
    """Files that already lie on this machine; they are used where they are."""

    kind: Literal["path"]
    paths: Annotated[list[str], Field(min_length=1)]


Source = Annotated[HubSource | PartsSource | UrlSource | PathSource, Field(discriminator="kind")]


class ModelFile(_Strict):
    """One GGUF file of a variant."""

    name: FileName
    bytes: Bytes | None = None
    sha256: Sha256 | None = None
    """Known beforehand; otherwise the hub's own checksum is used at download."""
    about_bytes: Bytes | None = None
    """Rough size for showing, where the exact one is not known."""


class Variant(_Strict):
    """A model in one quantisation: one file, or all files of a split GGUF, in order."""

    quantisation: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    files: Annotated[list[ModelFile], Field(min_length=1)]
    sources: Annotated[list[Source], Field(min_length=1)]
    """In the order in which they are tried."""

    @model_validator(mode="after")
    def _sources_fit_files(self) -> Self:
        for source in self.sources:
            if isinstance(source, PartsSource):
                if len(self.files) != 1:
                    raise ValueError("package parts make exactly one file")
                total = sum(part.bytes for part in source.parts)
                if self.files[0].bytes not in (None, total):
                    raise ValueError(f"the parts add up to {total} bytes, the file has {self.files[0].bytes}")
            elif isinstance(source, UrlSource | PathSource):
                places = source.urls if isinstance(source, UrlSource) else source.paths
                if len(places) != len(self.files):
                    raise ValueError(f"{len(places)} places for {len(self.files)} files")
        return self

    @property
    def bytes(self) -> int | None:
        """Exact size of all files together; None where one is unknown."""
        return _sum([file.bytes for file in self.files])

    @property
    def shown_bytes(self) -> int | None:
        """The same, roughly where the exact size is unknown: for people, not for checks."""
        return _sum([file.bytes or file.about_bytes for file in self.files])


class RecommendedSampling(_Strict):
    """What the model's makers recommend; the names are those of the sampling settings.

    The built-in entries leave `repeat_penalty` out: makers state it for a penalty over the whole text, which is
    something else than one over the last tokens.
    """

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: float | None = None


class ModelEntry(_Strict):
    """One model."""

    name: Name
    title: str
    family: str
    """Models of one family share their tokenizer."""
    parameters: Annotated[int, Field(gt=0)] | None = None
    licence: str
    context_length: Annotated[int, Field(gt=0)] | None = None
    """Tokens the model was trained for."""
    sampling: RecommendedSampling = RecommendedSampling()
    sampling_without_thinking: RecommendedSampling = RecommendedSampling()
    """What differs where a model that can think is told not to."""
    notes: list[str] = []
    """Sentences a user should know: template, thinking, licence terms to accept."""
    variants: Annotated[list[Variant], Field(min_length=1)]
    """The first one is the default."""

    @model_validator(mode="after")
    def _variants_differ(self) -> Self:
        seen = [variant.quantisation for variant in self.variants]
        if len(set(seen)) != len(seen):
            raise ValueError(f"{self.name}: a quantisation is listed twice")
        return self

    def variant(self, quantisation: str | None = None) -> Variant:
        """The variant in `quantisation`, or the default one.

        Raises:
            ModelError: This model is not listed in that quantisation.
        """
        if quantisation is None:
            return self.variants[0]
        for variant in self.variants:
            if variant.quantisation == quantisation.lower():
                return variant
        have = ", ".join(variant.quantisation for variant in self.variants)
        raise ModelError(f"{self.name} is not listed in {quantisation}.", f"Listed: {have}.")


class Pair(_Strict):
    """A target and the draft that serves it."""

    name: Name
    target: Name
    draft: Name
    expect: str = ""
    """One sentence about what the draft earns, and where."""


class Catalogue(_Strict):
    """All models and pairs known by name."""

    schema_version: Literal[1] = 1
    default_pair: Name | None = None
    models: list[ModelEntry] = []
    pairs: list[Pair] = []

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        for kind, names in (("model", [m.name for m in self.models]), ("pair", [p.name for p in self.pairs])):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{kind} {min(twice)} is listed twice")
        return self

    def model(self, name: str) -> ModelEntry:
        """The entry called `name`.

        Raises:
            ModelError: There is none; the hint names the nearest.
        """
        for entry in self.models:
            if entry.name == name.lower():
                return entry
        raise ModelError(
            f"No model is called {name!r}.",
            nearest(name, [entry.name for entry in self.models]) or "`spec-local models list` shows all names.",
        )

    def pair(self, name: str) -> Pair:
        """The pair called `name`.

        Raises:
            ModelError: There is none; the hint names the nearest.
        """
        for pair in self.pairs:
            if pair.name == name.lower():
                return pair
        raise ModelError(f"No pair is called {name!r}.", nearest(name, [pair.name for pair in self.pairs]))

    def find(self, spec: str) -> tuple[ModelEntry, Variant]:
        """The entry and variant `NAME` or `NAME:QUANTISATION` asks for.

        Raises:
            ModelError: Unknown name or quantisation.
        """
        name, quantisation = split_quantisation(spec)
        entry = self.model(name)
        return entry, entry.variant(quantisation)

    def merged(self, user: Catalogue) -> Catalogue:
        """This catalogue with `user`'s entries added, or put in place of those of the same name."""
        models = {entry.name: entry for entry in (*self.models, *user.models)}
        pairs = {pair.name: pair for pair in (*self.pairs, *user.pairs)}
        for pair in pairs.values():
            for name in (pair.target, pair.draft):
                if name not in models:
                    raise ModelError(f"The pair {pair.name} names a model {name!r} that is in no catalogue.")
        return Catalogue(
            default_pair=user.default_pair or self.default_pair,
            models=list(models.values()),
            pairs=list(pairs.values()),
        )


def _sum(sizes: list[int | None]) -> int | None:
    """The sum, or None where a summand is unknown."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def user_catalogue_path() -> Path:
    """The file with the user's own entries; it need not exist."""
    return config_folder() / "catalogue.json"


def builtin_catalogue() -> Catalogue:
    """The catalogue that ships with spec-local."""
    return _read(Path(__file__).with_name("catalogue.json"))


def user_catalogue() -> Catalogue:
    """The user's own entries; empty where there are none.

    Raises:
        ModelError: The file cannot be read or breaks the schema; says where.
    """
    path = user_catalogue_path()
    return _read(path) if path.exists() else Catalogue()


def load_catalogue() -> Catalogue:
    """Built-in and user entries, merged.

    Raises:
        ModelError: The user's file is damaged.
    """
    return builtin_catalogue().merged(user_catalogue())


def add_entry(entry: ModelEntry, pair: Pair | None = None) -> Path:
    """Write a model, and a pair it belongs to, into the user's catalogue, in place of one of the same name.

    Returns:
        The catalogue file.

    Raises:
        ModelError: The pair names an unknown model, or the file cannot be written.
    """

    def change(mine: Catalogue) -> Catalogue:
        models = [old for old in mine.models if old.name != entry.name] + [entry]
        pairs = [old for old in mine.pairs if pair is None or old.name != pair.name] + ([pair] if pair else [])
        return mine.model_copy(update={"models": models, "pairs": pairs})

    return _change_user_catalogue(change)


def remove_entry(name: str) -> Path:
    """Take a model or pair out of the user's catalogue; pairs with that model go with it.

    Raises:
        ModelError: The user's catalogue holds no such name.
    """

    def change(mine: Catalogue) -> Catalogue:
        names = [entry.name for entry in mine.models] + [pair.name for pair in mine.pairs]
        if name not in names:
            raise ModelError(f"{name!r} is not in your catalogue.", nearest(name, names))
        models = [entry for entry in mine.models if entry.name != name]
        pairs = [pair for pair in mine.pairs if name not in (pair.name, pair.target, pair.draft)]
        return mine.model_copy(update={"models": models, "pairs": pairs})

    return _change_user_catalogue(change)


def _change_user_catalogue(change: Callable[[Catalogue], Catalogue]) -> Path:
    """Read, change, check against the built-in part and replace the user's file, as one step among processes."""
    from filelock import FileLock

    path = user_catalogue_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=30):
            changed = change(user_catalogue())
            builtin_catalogue().merged(changed)
            fresh = path.with_suffix(".new")
            fresh.write_text(changed.model_dump_json(indent=2, exclude_defaults=True) + "\n", encoding="utf-8")
            os.replace(fresh, path)
    except OSError as error:
        raise ModelError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


def _read(path: Path) -> Catalogue:
    try:
        return Catalogue.model_validate_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ModelError(
            f"The catalogue {path} is damaged{f' at {where}' if where else ''}: {first['msg']}.",
            "Correct the file, or move it away.",
        ) from error


def checked_name(text: str) -> str:
    """`text` as a name for a new entry.

    Raises:
        UsageError: It has characters a name cannot have.
    """
    if not re.fullmatch(_NAME, text):
        raise UsageError(f"{text!r} cannot be a model name.", "Use a-z, 0-9, '.', '_' and '-'.")
    return text


def schema_text() -> str:
    """The JSON Schema of a catalogue file."""
    schema = Catalogue.model_json_schema()
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("catalogue.schema.json").write_text(schema_text(), encoding="utf-8")
