"""Text files that go with a message: `@path` in what a person writes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spec_local.errors import UsageError
from spec_local.text_files import decode_text

LARGEST = 1_000_000
"""Bytes of one attached file; more never fits a context, and is most often a mistake."""

_PUNCTUATION = ".,;:!?)]}>'’”*_`"
"""What may stand behind a path in a sentence."""

_KNOWN = (
    "txt md rst tex log csv tsv json jsonl yaml yml toml ini cfg conf xml html htm css js jsx ts tsx py pyi ipynb "
    "c h cc cpp hpp cs rs go java kt rb php lua swift sh sql diff pdf doc docx odt rtf"
)
"""Endings of files that people attach, or mean to. Not any ending: @ada.lovelace, @router.get are no paths."""
_ENDINGS = frozenset(_KNOWN.split())
_TYPED_SHORT = frozenset(ending[:-1] for ending in _ENDINGS if len(ending) > 2)
"""The same without their last letter."""

_MENTION = re.compile(r'(?<!\S)@(?:"(?P<quoted>[^"\n]+)"|(?P<bare>[^\s"]+))')


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file as it was when the message was sent."""

    name: str
    """The path as the person wrote it."""
    text: str


def mentions(text: str) -> list[str]:
    """The paths named as `@path` or `@"path with blanks"`, each once, in order; whether they exist is not looked at."""
    found = [match["quoted"] or match["bare"] for match in _MENTION.finditer(text)]
    return list(dict.fromkeys(found))


def mention(path: str) -> str:
    """How a path is written in a message."""
    return f'@"{path}"' if re.search(r"\s", path) else f"@{path}"


def attached(text: str, folder: Path | None = None) -> tuple[Attachment, ...]:
    """The files that a message mentions; a mention that names no file and looks like none (a person, a decorator) is
    just text.

    Raises:
        UsageError: A mentioned file is not there, is no UTF-8 text, is too large, or cannot be read.
    """
    found: dict[str, Path] = {}
    for mentioned in mentions(text):
        # "Look at @notes.txt." ends a sentence; a file that is really called so comes first.
        for name in dict.fromkeys((mentioned, mentioned.rstrip(_PUNCTUATION))):
            if name and (path := _file(name, folder or Path.cwd())) is not None:
                found[name] = path
                break
        else:
            if _looks_like_path(name):
                raise UsageError(f"There is no file {name}.", "In backquotes, with the @, it is sent as text.")
    return tuple(read_attachment(path, name) for name, path in found.items())


def _file(name: str, folder: Path) -> Path | None:
    try:
        path = folder / Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # RuntimeError: ~somebody who is not a user here
        return None


def _looks_like_path(name: str) -> bool:
    """Whether a mention can only be meant as a file: it starts like a path, or has the ending of a text file. A slash
    alone is also that of a package, @types/node."""
    if re.fullmatch(r"[\w\s.~/\\+-]*", name) is None:
        return False  # pasted code such as @app.get('/')
    ending = name.rpartition(".")[2].lower() if "." in name.strip(".") else ""
    return name.startswith(("/", "./", "../", "~/")) or ending in _ENDINGS or ending in _TYPED_SHORT


def read_attachment(path: Path, name: str | None = None) -> Attachment:
    """Read one file; raises as `attached`."""
    name = name or str(path)
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UsageError(f"{name} has {size / 1e6:.1f} MB; at most {LARGEST / 1e6:.0f} MB can be attached.")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from error
    text = decode_text(data, name)
    if "\x00" in text:
        raise UsageError(f"{name} is not a text file.", "Attach a text file.")
    return Attachment(name, text.replace("\r\n", "\n"))


def with_attachments(text: str, files: Iterable[Attachment]) -> str:
    """What the model reads: the message, then each file in a fence longer than any inside it, named after its ending,
    as answers then name theirs."""
    parts = [text]
    for file in files:
        longest = max((len(run) for run in re.findall("`{3,}", file.text)), default=2)
        fence = "`" * (longest + 1)
        body = file.text if file.text.endswith("\n") else f"{file.text}\n"
        ending = re.fullmatch(r"\.(\w+)", Path(file.name).suffix)
        parts.append(f"{file.name}:\n{fence}{ending[1] if ending else ''}\n{body}{fence}")
    return "\n\n".join(parts)
