"""Recipes of the user: listed without loading plug-ins, found by name, and not allowed to replace built-in ones."""

from __future__ import annotations

import json

import pytest

from stemma import recipe_loading
from stemma.cli import main

PLUGIN = "from pathlib import Path\nPath(__file__).with_name('loaded').touch()\n"


@pytest.fixture(params=["recipes", "other"])
def recipe_folder(request, tmp_path, monkeypatch):
    """A folder of recipes, and the options that name it on the command line (none for recipes/)."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / request.param
    folder.mkdir()
    (folder / "mine.toml").write_text('parent = "bert"\ntitle = "Mine"\nyear = 2030\nsummary = "Deeper."\n'
                                      "[network]\nlayers = 3\n")
    (folder / "plugin.py").write_text(PLUGIN)
    (folder / "with-code.toml").write_text('parent = "mine.toml"\nplugins = ["plugin.py"]\n')
    (folder / "other.toml").write_text("[tool.something]\nkey = 1\n")
    return folder, [] if request.param == "recipes" else ["--recipes", request.param]


def json_output(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tree_lists_user_recipes_without_loading_plugins(recipe_folder, capsys, tmp_path):
    folder, options = recipe_folder
    recipes = {info["name"]: info for info in json_output(capsys, "tree", *options)["recipes"]}
    assert recipes["mine"]["parent"] == "bert" and recipes["mine"]["file"].endswith("mine.toml")
    assert recipes["with-code"]["parent"] == "mine" and "file" not in recipes["bert"] and "other" not in recipes
    assert main(["tree", *options]) == 0
    printed = capsys.readouterr().out
    assert "mine" in printed and "with-code" in printed
    assert main(["tree", "--html", "tree.html", *options]) == 0
    assert "with-code" in (tmp_path / "tree.html").read_text()
    assert not list(tmp_path.rglob("loaded"))


def test_user_recipes_are_found_by_name(recipe_folder, capsys):
    folder, options = recipe_folder
    assert json_output(capsys, "show", "mine@tiny", *options)["values"]["network"]["layers"] == 2
    assert json_output(capsys, "diff", "bert", "mine", *options)["changes"] == [
        {"key": "network.layers", "from": 12, "to": 3}]
    (folder / "child.toml").write_text('parent = "mine"\n[network]\nlayers = 5\n')
    assert json_output(capsys, "show", "child", *options)["values"]["network"]["layers"] == 5
    assert main(["show", "min", *options]) == 2
    assert 'no recipe "min". Did you mean "mine"?' in capsys.readouterr().err
    assert main(["show", "with-code", *options]) == 2  # a recipe that is named loads its plug-ins
    assert "plugin.py registers nothing" in capsys.readouterr().err


def test_the_name_of_a_built_in_recipe_is_refused(recipe_folder, capsys):
    folder, options = recipe_folder
    (folder / "bert.toml").write_text('parent = "roberta"\n')
    for words in (["tree"], ["show", "bert"], ["diff", "bert", "mine"]):
        assert main([*words, *options]) == 2
        assert "bert.toml has the name of a recipe that comes with Stemma" in capsys.readouterr().err
    assert main(["show", "gpt2", *options]) == 0


def test_resolved_recipes_of_a_lab_are_not_listed(recipe_folder, capsys):
    folder, options = recipe_folder
    (folder / "000.toml").write_text(recipe_loading.recipe("bert@tiny").to_toml())
    assert "000" not in {info["name"] for info in json_output(capsys, "tree", *options)["recipes"]}


def test_a_missing_recipe_folder_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tree", "--recipes", "nowhere"]) == 2
    assert "there is no folder nowhere of recipes" in capsys.readouterr().err
