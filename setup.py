"""Finds the packages of the wheel; everything else is in pyproject.toml.

They are found, not listed, because a list by hand would one day lack a package, and only users would notice.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import find_packages, setup


def packages(mapping: dict[str, str]) -> list[str]:
    """Every package (a folder with an `__init__.py`) at or under the mapped folders, by import name."""
    roots = {name: folder for name, folder in mapping.items() if Path(folder, "__init__.py").exists()}
    return [*roots, *(f"{name}.{found}" for name, folder in roots.items() for found in find_packages(folder))]


project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
setup(packages=packages(project["tool"]["setuptools"]["package-dir"]))
