"""Recipes of the user's own: listed without loading anything, found by name, and never in the place of ours."""

from __future__ import annotations

import json

import pytest

from stemma import recipe_loading
from stemma.cli import main

EVIL = "from pathlib import Path\nPath(__file__).with_name('loaded').touch()\n"


@pytest.fixture(params=["recipes", "elsewhere"])
def asked(request, tmp_path, monkeypatch):
    """What names the folder on a command line, if anything must."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / request.param
    folder.mkdir()
    (folder / "mine.toml").write_text('parent = "bert"\ntitle = "Mine"\nyear = 2030\nsummary = "Deeper."\n'
                                      "[network]\nlayers = 3\n")
    (folder / "evil.py").write_text(EVIL)
    (folder / "with-code.toml").write_text('parent = "mine.toml"\nplugins = ["evil.py"]\n')
    (folder / "other.toml").write_text("[tool.something]\nkey = 1\n")
    return folder, [] if request.param == "recipes" else ["--recipes", request.param]


def answer(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tree_lists_them_and_loads_nothing(asked, capsys, tmp_path):
    folder, options = asked
    found = {info["name"]: info for info in answer(capsys, "tree", *options)["recipes"]}
    assert found["mine"]["parent"] == "bert" and found["mine"]["file"].endswith("mine.toml")
    assert found["with-code"]["parent"] == "mine" and "file" not in found["bert"] and "other" not in found
    assert main(["tree", *options]) == 0
    shown = capsys.readouterr().out
    assert "mine" in shown and "with-code" in shown
    assert main(["tree", "--html", "tree.html", *options]) == 0
    assert "with-code" in (tmp_path / "tree.html").read_text()
    assert not list(tmp_path.rglob("loaded"))


def test_they_are_found_by_name(asked, capsys):
    folder, options = asked
    assert answer(capsys, "show", "mine@tiny", *options)["values"]["network"]["layers"] == 2
    assert answer(capsys, "diff", "bert", "mine", *options)["changes"] == [
        {"key": "network.layers", "from": 12, "to": 3}]
    (folder / "child.toml").write_text('parent = "mine"\n[network]\nlayers = 5\n')
    assert answer(capsys, "show", "child", *options)["values"]["network"]["layers"] == 5
    assert main(["show", "min", *options]) == 2
    assert 'no recipe "min". Did you mean "mine"?' in capsys.readouterr().err
    assert main(["show", "with-code", *options]) == 2  # named, so its code is loaded, and found wanting
    assert "evil.py registers nothing" in capsys.readouterr().err


def test_a_name_of_ours_is_never_taken(asked, capsys):
    folder, options = asked
    (folder / "bert.toml").write_text('parent = "roberta"\n')
    for words in (["tree"], ["show", "bert"], ["diff", "bert", "mine"]):
        assert main([*words, *options]) == 2
        assert "bert.toml has the name of a recipe that comes with Stemma" in capsys.readouterr().err
    assert main(["show", "gpt2", *options]) == 0


def test_what_a_lab_left_is_no_recipe_of_the_user(asked, capsys):
    folder, options = asked
    (folder / "000.toml").write_text(recipe_loading.recipe("bert@tiny").to_toml())
    assert "000" not in {info["name"] for info in answer(capsys, "tree", *options)["recipes"]}


def test_a_folder_that_is_missing_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tree", "--recipes", "nowhere"]) == 2
    assert "there is no folder nowhere of recipes" in capsys.readouterr().err
