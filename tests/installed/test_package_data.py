"""Files of the package that are not Python reach an installation only if pyproject.toml lists them."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/stemma"


def other_files() -> set[str]:
    """Files of the package that are not Python: those that git tracks, or all of them without git (in an sdist)."""
    listing = subprocess.run(["git", "ls-files", "-z", "--", "src/stemma"], cwd=ROOT, capture_output=True, text=True) \
        if (ROOT / ".git").exists() else None
    if listing is not None and listing.returncode == 0 and listing.stdout:
        files = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(PACKAGE)) for path in files if path.suffix != ".py" and path.exists()}


def matches(patterns: list[str]) -> dict[str, set[str]]:
    return {pattern: {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob(pattern)} for pattern in patterns}


@pytest.fixture
def patterns() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["setuptools"]["package-data"]["stemma"]


def test_every_file_that_is_not_python_is_package_data(patterns):
    missing = other_files() - set().union(*matches(patterns).values())
    assert not missing, f"not in [tool.setuptools.package-data] of pyproject.toml: {sorted(missing)}"


def test_every_pattern_matches_a_file(patterns):
    assert not [pattern for pattern, files in matches(patterns).items() if not files]


def test_recipes_claims_style_sheet_and_py_typed_exist():
    files = other_files()
    assert {"recipes/bert.toml", "claims/masks.toml", "py.typed", "lab/report/page.css"} <= files
