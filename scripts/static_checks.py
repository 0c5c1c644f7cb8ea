"""Lint, format, types and import contracts, as `make check` and CI run them.

mypy and import-linter know nothing of setuptools' package-dir mapping, so both run in `.checks`, a tree of links with
the installed layout, in which ui/ is spec_local/ui. Its place never changes, so their caches stay warm.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
TREE = CHECKOUT / ".checks"
BESIDE = ("scripts", "tests")


def place(source: Path, link: Path) -> None:
    """Link to a file or folder, or copy it where the system forbids links (Windows without developer mode)."""
    try:
        link.symlink_to(source, target_is_directory=source.is_dir())
    except OSError:
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, link)


def assemble(checkout: Path, tree: Path) -> dict[str, str]:
    """Lay out the checkout as it is installed.

    Args:
        checkout: Where the sources are.
        tree: Emptied (but for the tools' caches) and filled with links.

    Returns:
        For each mapped folder its path in the tree and its path in the checkout, e.g. spec_local/ui: ui.
    """
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    mapping = {name.replace(".", "/"): folder for name, folder in project["tool"]["setuptools"]["package-dir"].items()}
    for name in ("spec_local", *BESIDE):
        old = tree / name
        if old.is_symlink() or old.is_file():
            old.unlink()
        elif old.exists():
            shutil.rmtree(old)
    (tree / "spec_local").mkdir(parents=True)
    for source in (checkout / "spec_local").iterdir():
        place(source, tree / "spec_local" / source.name)
    moved = {name: folder for name, folder in mapping.items() if name != folder and (checkout / folder).exists()}
    for name, folder in moved.items():
        place(checkout / folder, tree / name)
    for name in BESIDE:
        place(checkout / name, tree / name)
    return moved


def real_paths(text: str, moved: dict[str, str]) -> str:
    """Name the files in a tool's output as they are called in the checkout."""
    for name, folder in moved.items():
        here = r"[/\\]".join(name.split("/"))
        text = re.sub(rf"^{here}(?=[/\\])", folder, text, flags=re.MULTILINE)
    return text


def check(name: str, command: Sequence[str], folder: Path, moved: dict[str, str]) -> bool:
    """Run one check, and show what it says if it fails.

    Returns:
        Whether it passed.
    """
    begin = time.monotonic()
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(["scripts", "tests/support"]), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    passed = done.returncode == 0
    print(f"{name:<18} {'ok' if passed else 'FAILED':<7} {time.monotonic() - begin:5.1f} s", flush=True)
    if not passed:
        print(real_paths(done.stdout.decode(errors="replace"), moved), flush=True)
    return passed


def main() -> int:
    """Run every check, even after one has failed.

    Returns:
        0 if all passed, else 1.
    """
    moved = assemble(CHECKOUT, TREE)
    config = str(CHECKOUT / "pyproject.toml")
    contracts = ["-c", "from importlinter.cli import lint_imports_command as run; run()"]
    results = [
        check("ruff check", ["-m", "ruff", "check", "."], CHECKOUT, moved),
        check("ruff format", ["-m", "ruff", "format", "--check", "."], CHECKOUT, moved),
        check("mypy", ["-m", "mypy", "--config-file", config, "spec_local", *BESIDE], TREE, moved),
        check("import contracts", [*contracts, "--no-logo", "--cache-dir", ".import_cache", config], TREE, moved),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
