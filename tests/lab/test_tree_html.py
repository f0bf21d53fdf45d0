"""`stemma tree --html`: the tree of recipes as one page."""

import html
import re
from pathlib import Path

import pytest
from commands import stemma

from stemma import recipe_loading
from stemma.lab.report.tree_html import write_tree


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tree(tmp_path_factory.mktemp("tree") / "tree.html", {"roberta"}).read_text(encoding="utf-8")


def entry(page: str, name: str) -> str:
    """The <details> element of a recipe."""
    return re.search(rf'<details class="[a-z]*"><summary><span class="name">{name}</span>.*?</details>', page, re.S)[0]


def test_every_recipe_is_nested_in_its_parent(page: str):
    stack: list[str] = []
    parents: dict[str, str | None] = {}
    for mark in re.finditer(r'<ul[^>]*>|</ul>|<span class="name">([^<]+)', page):
        if mark[0].startswith("<ul"):
            stack.append("")
        elif mark[0] == "</ul>":
            stack.pop()
        else:
            stack[-1] = mark[1]
            parents[mark[1]] = stack[-2] if len(stack) > 1 else None
    assert parents == {info.name: info.parent for info in recipe_loading.list_recipes()}


def test_the_details_of_a_recipe_list_its_changes(page: str):
    roberta = recipe_loading.recipe("roberta")
    details = html.unescape(re.sub(r"<wbr>", "", entry(page, "roberta")))
    assert roberta.summary in details and "2019" in details and roberta.paper in details
    changes = recipe_loading.diff("bert", "roberta")
    assert f"{len(changes)} changes from bert" in details and details.count("<tr>") == len(changes) + 1
    assert "<code>objective.masked_lm.dynamic</code></td><td>false</td><td>true</td>" in details
    assert "A root" in entry(page, "transformer") and "<table" not in entry(page, "transformer")


def test_a_highlighted_recipe_is_also_marked_in_words(page: str):
    assert page.count("compared here") == 1 and "compared here" in entry(page, "roberta")
    assert entry(page, "roberta").startswith('<details class="lit">')


def test_the_page_has_no_script_and_loads_nothing(page: str):
    assert "<script" not in page and "script-src" not in page and "default-src 'none'" in page.replace("&#x27;", "'")
    assert not re.search(r"\b(?:href|src)=|url\(|@import", page)  # papers are named, not linked


def test_the_command_writes_the_page_and_overwrites_only_with_overwrite(tmp_path: Path):
    file = tmp_path / "family.html"
    done = stemma("tree", "--html", file)
    assert done.code == 0 and str(file) in done.out and "<title>The family of recipes" in file.read_text()
    file.write_text("mine")
    refused = stemma("tree", "--html", file)
    assert refused.code == 2
    assert refused.err == f"error: {file} exists; choose another file for --html, or add --overwrite.\n"
    assert file.read_text() == "mine"
    done = stemma("tree", "--html", file, "--overwrite", "--json")
    assert done.json["html"] == str(file) and len(done.json["recipes"]) == len(recipe_loading.list_recipes())
    assert "family" in file.read_text()
    folder = stemma("tree", "--html", tmp_path, "--overwrite")
    assert folder.code == 2 and "is a folder" in folder.err
    missing_folder = stemma("tree", "--html", tmp_path / "no" / "family.html")
    assert missing_folder.code == 2 and "cannot write" in missing_folder.err and not (tmp_path / "no").exists()
