"""What README and documents point to is there, and every picture is shown somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_TARGET = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def targets(document: Path, images: bool) -> list[Path]:
    """The files of this repository that a document shows, or links to."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [
        document.parent / target.split("#")[0]
        for mark, target in _TARGET.findall(text)
        if bool(mark) == images and not re.match(r"[a-z]+:|#", target)
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_points_to_exists(document: Path) -> None:
    wanted = targets(document, images=True) + targets(document, images=False)
    assert [str(path) for path in wanted if not path.exists()] == []


def shown() -> list[Path]:
    return sorted({path.resolve() for document in DOCUMENTS for path in targets(document, images=True)})


def test_documents_show_pictures_and_no_picture_is_left_over() -> None:
    pictures = shown()
    assert (ROOT / "docs" / "chat" / "5-provenance.svg").resolve() in pictures
    kept = {path.resolve() for ending in ("svg", "png") for path in (ROOT / "docs").rglob(f"*.{ending}")}
    assert kept == set(pictures)


def test_pictures_are_whole_small_and_fetch_nothing() -> None:
    for path in shown():
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag.endswith("svg"), path
        assert len(text) < 150_000, path
        assert "url(http" not in text.replace("url(#", ""), path
        assert "@import" not in text, path
