"""Pictures of the documents: each is there, is shown somewhere, and is fit to be shown."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def shown() -> set[Path]:
    """The pictures of this repository that documents show; whether they exist is not looked at."""
    return {
        (document.parent / target).resolve()
        for document in DOCUMENTS
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
        if "://" not in target
    }


def test_documents_show_pictures_and_no_picture_is_left_over() -> None:
    kept = {path.resolve() for ending in ("svg", "png") for path in (ROOT / "docs").rglob(f"*.{ending}")}
    assert kept == shown()
    assert "docs/chat/" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_pictures_are_whole_small_and_fetch_nothing() -> None:
    for path in sorted(shown()):
        text = path.read_text(encoding="utf-8")
        assert path.suffix == ".svg", path
        assert ElementTree.fromstring(text).tag.endswith("svg"), path
        assert len(text) < 150_000, path
        assert "url(http" not in text.replace("url(#", ""), path
        assert "@import" not in text, path
