"""The documents: examples run as they are printed, and what is generated is current."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from spec_local.cli.main import build_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "python.md"]
EXAMPLES = [
    pytest.param(example, id=f"{page.name} {number}")
    for page in PAGES
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL), 1)
]


def test_every_page_has_an_example():
    assert len(EXAMPLES) >= 4


@pytest.mark.models
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_python_example_runs(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    from spec_local.errors import ModelError
    from spec_local.models_manifest import resolve_pair

    try:
        resolve_pair()
    except ModelError as error:
        pytest.skip(error.message)
    exec(compile(example, "example", "exec"), {})
    out = capsys.readouterr().out.strip()
    assert out
    if figure := re.search(r"([\d.]+) tokens per pass", out):
        assert float(figure[1]) >= 1
    if "stream.close()" in example:
        assert out.endswith("cancelled")


def test_the_page_of_commands_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from make_docs import PAGE, commands_page

    assert PAGE.read_text(encoding="utf-8") == commands_page(), "run: python scripts/make_docs.py"


def test_everything_on_the_page_of_commands_is_explained() -> None:
    lines = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line == "." or line.endswith("` |  |")] == []


def _command_lines() -> list[list[str]]:
    found = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for block in (block for language, block in blocks if language in ("", "sh")):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                for number, word in enumerate(words):
                    if word == "spec-local":
                        rest = words[number + 1 :]
                        end = next((i for i, w in enumerate(rest) if w in ("<", ">", "|", "&", "&&", ";")), len(rest))
                        found.append(rest[:end])
    return found


def test_the_command_lines_shown_are_understood() -> None:
    lines = _command_lines()
    assert len(lines) >= 10
    assert {"chat", "generate", "bench", "verify"} <= {line[0] for line in lines}
    parser = build_parser()
    for line in lines:
        try:
            parser.parse_args(line)
        except SystemExit as end:
            pytest.fail(f"spec-local {shlex.join(line)}: exit {end.code}")


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]), ids=lambda p: p.name
)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} refers to {target}"
