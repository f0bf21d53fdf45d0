"""`tree`, `show` and `diff`: printed output and JSON."""

from __future__ import annotations

import itertools
import json

import pytest

from stemma import recipe_loading
from stemma.cli import main
from stemma.cli.recipes import _diff_row, wrap_rows


def json_output(capsys, *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_tree_shows_children_under_their_parents(capsys):
    lines = printed(capsys, "tree").splitlines()
    roots = [line for line in lines if line[0].isalpha()]
    assert [line.split()[:2] for line in roots] == [  # by year
        ["ngram", "1998"], ["nnlm", "2003"], ["word2vec", "2013"], ["lstm-lm", "2014"], ["rnnsearch", "2014"],
        ["transformer", "2017"]]
    assert any("── bert  2018  " in line for line in lines[2:])
    recipes = json_output(capsys, "tree")["recipes"]
    bert = next(entry for entry in recipes if entry["name"] == "bert")
    assert {"parent": "transformer", "year": 2018, "title": "BERT"}.items() <= bert.items()
    assert set(recipes[0]) == {"name", "parent", "year", "title", "summary"}


def test_show_gives_each_value_with_its_origin(capsys):
    result = json_output(capsys, "show", "bert@tiny", "network.layers=3")
    assert result["recipe"] == "bert@tiny" and result["values"]["network"]["layers"] == 3
    assert result["origin"]["network.layers"] == "command line" and result["origin"]["tokenizer.kind"] == "bert"
    rows = [line.split() for line in printed(capsys, "show", "bert").splitlines()]
    assert ["tokenizer.vocab_size", "30,522", "bert"] in rows
    assert ["network.norm.epsilon", "1e-12", "bert"] in rows
    assert ["network.norm.placement", "post", "transformer"] in rows


def test_show_reads_the_recipe_file_of_a_run(capsys, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_loading.recipe("bert@tiny", ["training.steps=7"]).to_toml())
    assert json_output(capsys, "show", str(path))["values"]["training"]["steps"] == 7


def test_diff_marks_removed_added_and_changed_values(capsys):
    out = printed(capsys, "diff", "transformer", "bert")
    assert out.startswith("transformer -> bert · ")
    rows = [line.split() for line in out.splitlines()]
    assert ["-", "network.decoder"] in rows
    assert ["+", "objective.masked_lm.rate", "0.15"] in rows
    assert ["~", "tokenizer.vocab_size", "37,000", "->", "30,522"] in rows
    changes = json_output(capsys, "diff", "transformer", "bert")["changes"]
    assert {"key": "tokenizer.vocab_size", "from": 37000, "to": 30522} in changes
    assert {"key": "network.decoder", "from": {"layers": 6}, "to": None} in changes
    assert len(changes) == len(rows) - 1


def test_diff_of_equal_recipes_prints_no_difference(capsys):
    assert printed(capsys, "diff", "bert", "bert@base") == "bert -> bert@base · no difference\n"


def test_errors_are_printed_on_stderr_and_as_json(capsys):
    assert main(["show", "bert@tiny", "network.heads=7", "objective.masked_lm.rate=1.7", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: 2 problems in bert@tiny with your changes\n  network.heads = 7 ")
    assert json.loads(captured.out) == {"error": "2 problems in bert@tiny with your changes", "problems": [
        "network.heads = 7: width 128 is not divisible by 7 (try 8)",
        "objective.masked_lm.rate = 1.7: must lie between 0 and 1"]}


@pytest.mark.parametrize("width", [60, 80])
def test_wrapped_rows_fit_the_terminal_and_keep_all_characters(width):
    recipes = [recipe_loading.recipe(name) for name in ("transformer", "bert", "gpt2", "t5", "xlnet", "ernie-2",
                                                        "unilm")]
    for a, b in itertools.permutations(recipes, 2):
        rows = [_diff_row(change) for change in recipe_loading.diff(a, b)]
        for row, lines in zip(rows, wrap_rows(rows, width), strict=True):
            assert max(map(len, lines)) <= width
            assert "".join("".join(lines).split()) == "".join("".join(row).split())


def test_values_that_do_not_fit_are_printed_below_their_key():
    rows = [("~  corpus.pair", "start A separator B:1 separator:1", "->  A end B"),
            ("~  network.layers", "6", "->  12")]
    assert wrap_rows(rows, 54) == [["  ~  corpus.pair", "       start A separator B:1 separator:1 ->  A end B"],
                                   ["  ~  network.layers   6   ->  12"]]
    assert wrap_rows(rows, 240)[1] == ["  ~  network.layers   6                                   ->  12"]
