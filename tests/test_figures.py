"""The drawings of the documentation are what the code draws today."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
FIGURES = DOCS / "figures"
DRAWN = {path.stem for path in FIGURES.glob("*.svg")}


def draw(folder: Path, *names: str) -> None:
    """In a process of its own, into a copy of the folder."""
    for path in FIGURES.iterdir():
        if path.suffix in (".py", ".txt"):
            (folder / path.name).write_bytes(path.read_bytes())
    subprocess.run([sys.executable, "make.py", *names], cwd=folder, check=True, timeout=300)


def test_the_drawing_of_bert_is_what_the_code_draws(tmp_path: Path) -> None:
    draw(tmp_path, "bert")
    assert (tmp_path / "bert.svg").read_text() == (FIGURES / "bert.svg").read_text(), "run docs/figures/make.py again"


@pytest.mark.slow
def test_every_drawing_is_what_the_code_draws(tmp_path: Path) -> None:
    draw(tmp_path)
    made = {path.stem: path.read_text() for path in tmp_path.glob("*.svg")}
    assert made.keys() == DRAWN
    assert [name for name in made if made[name] != (FIGURES / f"{name}.svg").read_text()] == []


def test_every_drawing_is_on_a_page_and_follows_its_colours() -> None:
    shown = {name for page in DOCS.rglob("*.md")
             for name in re.findall(r"!\[[^\]]+\]\([./]*figures/([\w-]+)\.svg\)", page.read_text())}
    assert shown == DRAWN
    for name in DRAWN:
        svg = (FIGURES / f"{name}.svg").read_text()
        assert "currentColor" in svg and "<title>" in svg
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")  # asks nothing of another server


def test_the_recipe_on_the_page_of_the_family_is_the_file() -> None:
    page = (DOCS / "family" / "index.md").read_text()
    shown = tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    file = tomllib.loads((DOCS.parent / "src" / "stemma" / "recipes" / "roberta.toml").read_text())
    assert shown == {key: value for key, value in file.items() if key not in ("finetuning", "sizes")}
