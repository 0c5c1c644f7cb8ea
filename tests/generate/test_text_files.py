"""Text files that people save: with a byte-order mark, in UTF-16, with a bad byte. One way to read all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spec_local.cli.loading import structure
from spec_local.cli.options import Setting, read_config
from spec_local.cli.terminal import read_text
from spec_local.errors import SpecLocalError, UsageError
from spec_local.models_manifest.catalogue import user_catalogue, user_catalogue_path
from spec_local.session.attachments import read_attachment
from spec_local.text_files import read_text_file

MARK = b"\xef\xbb\xbf"


def schema(path: Path) -> str:
    made = structure({"json_schema": Setting(str(path), "flag")})
    assert made is not None
    return made.text


READERS: dict[str, tuple[Callable[[Path], object], bytes, object]] = {
    "prompt": (lambda path: read_text(str(path)), b"caf\xc3\xa9", "café"),
    "configuration": (read_config, b"n_ctx = 9", {"n_ctx": 9}),
    "attachment": (lambda path: read_attachment(path).text, b"caf\xc3\xa9", "café"),
    "schema": (schema, b'{"type": "null"}', '{"type": "null"}'),
    "template": (read_text_file, b"{{ messages }}", "{{ messages }}"),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_mark_is_dropped_and_trouble_is_a_sentence(kind: str, tmp_path: Path) -> None:
    read, data, expected = READERS[kind]
    path = tmp_path / "a.txt"
    for content in (data, MARK + data):
        path.write_bytes(content)
        assert read(path) == expected
    path.write_bytes(data.decode().encode("utf-16"))
    with pytest.raises(UsageError, match=r"UTF-16.* Save it as UTF-8"):
        read(path)
    path.write_bytes(data + b"\xff")
    with pytest.raises(UsageError, match=f"byte 0xff at offset {len(data)}"):
        read(path)
    path.unlink()
    if kind != "configuration":
        with pytest.raises(SpecLocalError, match="cannot be read: No such file"):
            read(path)


def test_a_catalogue_saved_with_a_mark_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_LOCAL_HOME", str(tmp_path))
    path = user_catalogue_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(MARK + b'{"models": [], "pairs": []}')
    assert list(user_catalogue().models) == []
