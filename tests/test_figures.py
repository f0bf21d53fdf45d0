"""The figures of the documentation equal what docs/figures/make.py draws today."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
FIGURES = DOCS / "figures"
NAMES = {path.stem for path in FIGURES.glob("*.svg")}


def draw(folder: Path, *names: str) -> None:
    """Draw figures in a separate process, in a copy of the folder."""
    for path in FIGURES.iterdir():
        if path.suffix in (".py", ".txt"):
            (folder / path.name).write_bytes(path.read_bytes())
    subprocess.run([sys.executable, "make.py", *names], cwd=folder, check=True, timeout=300)


def test_the_figure_of_bert_is_up_to_date(tmp_path: Path) -> None:
    draw(tmp_path, "bert")
    assert (tmp_path / "bert.svg").read_text() == (FIGURES / "bert.svg").read_text(), "run docs/figures/make.py again"


@pytest.mark.slow
def test_every_figure_is_up_to_date(tmp_path: Path) -> None:
    draw(tmp_path)
    drawn = {path.stem: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn.keys() == NAMES
    assert [name for name in drawn if drawn[name] != (FIGURES / f"{name}.svg").read_text()] == []


def test_every_figure_is_on_a_page_and_has_its_colours() -> None:
    used = {name for page in DOCS.rglob("*.md")
             for name in re.findall(r"!\[[^\]]+\]\([./]*figures/([\w-]+)\.svg\)", page.read_text())}
    assert used == NAMES
    for name in NAMES:
        svg = (FIGURES / f"{name}.svg").read_text()
        assert "currentColor" in svg and "<title>" in svg
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")  # loads nothing from another server


def test_the_recipe_on_the_family_page_equals_the_file() -> None:
    page = (DOCS / "family" / "index.md").read_text()
    on_page = tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    file = tomllib.loads((DOCS.parent / "src" / "stemma" / "recipes" / "roberta.toml").read_text())
    assert on_page == {key: value for key, value in file.items() if key not in ("finetuning", "sizes")}
