"""Claims: files of published findings, verdicts on results, and the built-in text and tasks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import small_text

from stemma import recipe_loading
from stemma.cli.claims import claims_app
from stemma.errors import UserError
from stemma.lab import builtin_data, claims
from stemma.lab.claims import CLAIMS, all_claims, claim_experiment, claim_verdict, find_claim, read_claim
from stemma.lab.experiment import DownstreamTask, Experiment
from stemma.lab.report.lab_phrases import CLAIM_VERDICTS
from stemma.text.tables import read_table

FILES = sorted(CLAIMS.glob("*.toml"))
REQUIRED = {"next_sentence", "masks", "units", "replaced_tokens", "positions", "chinese_words"}
SMALL = """
title    = "Are two layers better than one?"
paper    = "none"
found    = "They do."
tokens   = 400
seeds    = 2
measure  = "pseudo_bits_per_byte"
better   = "two"
worse    = "one"
changes  = [
  "network.width=16", "network.feedforward=16", "network.heads=2", "corpus.sequence_length=32",
  "tokenizer.vocab_size=300", "training.batch_size=2", "training.warmup_steps=2",
]

[[variants]]
name    = "one"
recipe  = "bert"
changes = ["network.layers=1"]

[[variants]]
name   = "two"
recipe = "bert"
"""


def write_claim(folder: Path, text: str, name: str = "layers.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_claim_has_valid_recipes_and_a_suitable_metric(path):
    claim = read_claim(path)
    recipes = claim.recipes("tiny")
    assert set(claim.compared_pair) <= set(recipes) and len(claim.found) > 60 and claim.paper.startswith("arXiv:")
    assert claim.title.endswith("?") and claim.seeds > 1
    first, second = (recipes[name] for name in claim.compared_pair)
    changed = {change.key for change in recipe_loading.diff(first, second)}
    assert 1 <= len(changed) <= 3, changed  # only the change in question
    steps = claim.tokens / (first.settings.training.batch_size * first.settings.corpus.sequence_length)
    assert steps > 4 * max(recipe.settings.training.warmup_steps for recipe in recipes.values())
    for recipe in recipes.values():  # the recipes have an objective for the metric
        kinds = {task.kind for task in recipe.settings.objective.values()}
        needed = {"pseudo_bits_per_byte": "masked_lm", "bits_per_byte": "causal_lm"}.get(claim.measure)
        assert needed is None or needed in kinds


def test_built_in_claims_are_found_by_name():
    assert {path.stem for path in FILES} >= REQUIRED
    assert len(FILES) >= 12
    assert find_claim("masks").name == "masks"
    with pytest.raises(UserError, match='Did you mean "positions"'):
        find_claim("position")


def test_all_problems_of_a_claim_are_reported_together(tmp_path):
    bad = (SMALL.replace('better   = "two"', 'better   = "three"').replace('"network.layers=1"', '"network.layer=1"')
           .replace('measure  = "pseudo_bits_per_byte"', 'measure  = "task"\ntasks = ["damages"]'))
    with pytest.raises(UserError, match="3 problems") as caught:
        read_claim(write_claim(tmp_path, bad))
    message = str(caught.value)
    assert "must name two different ones of one, two" in message and "network.layer = 1" in message
    assert 'Did you mean "damage"' in message


@pytest.mark.parametrize(("change", "expected"), [
    (("paper    =", "papers   ="), 'Did you mean "paper"'),
    (('found    = "They do."', ""), "found"),
    (('worse    = "one"', ""), "say what is expected"),
    (('worse    = "one"', 'worse    = "one"\nmargin   = 0.1'), "say what is expected"),
    (('worse    = "one"', 'worse    = "two"'), "two different ones"),
    (('changes = ["network.layers=1"]', ""), "come to the same recipe at size tiny"),
    (('name   = "two"', 'name   = "one"'), "a name of its own"),
    (('recipe = "bert"', 'recipe = "brt"'), 'Did you mean "bert"'),
    (('recipe = "bert"', 'recipe = "bert"\nsize = "mini"'), "no such key"),
    (('measure  = "pseudo_bits_per_byte"', 'measure  = "task"'), "needs tasks"),
    (('seeds    = 2', 'seeds    = 2\nlanguage = "zh"\ntasks = ["order"]'), "are English"),
    (('title    =', 'name = "x"\ntitle    ='), "has the name of its file"),
])
def test_invalid_claims_are_rejected(tmp_path, change, expected):
    assert change[0] in SMALL
    with pytest.raises(UserError) as caught:
        read_claim(write_claim(tmp_path, SMALL.replace(*change)))
    assert expected in str(caught.value)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def results(low: float | None, high: float | None, *, higher: bool = True, a: str = "old", b: str = "new",
            verdict: str = "inconclusive", seeds: int = 3) -> dict[str, Any]:
    mean = 0.5 if low is None or high is None else (low + high) / 2
    other = {"measure": "loss", "a": a, "b": b, "mean": -9.0, "low": -9.1, "high": -8.9, "verdict": "", "seeds": 3}
    return {"measures": [{"key": "score", "title": "score", "unit": "points", "higher": higher, "margin": 0.05},
                         {"key": "loss"}],
            "cells": [], "differences": [other, {"measure": "score", "a": a, "b": b, "mean": mean, "low": low,
                                                 "high": high, "verdict": verdict, "seeds": seeds}]}


ABOUT = {"name": "n", "title": "t", "paper": "p", "found": "f", "note": None, "equal": None, "margin": None}
BETTER = ABOUT | {"better": "new", "worse": "old"}
EQUAL = ABOUT | {"better": None, "worse": None, "equal": ["old", "new"], "margin": 0.5}


@pytest.mark.parametrize(("low", "high", "higher", "verdict"), [
    (0.1, 0.3, True, "seen"), (-0.1, 0.3, True, "inconclusive"), (-0.3, -0.1, True, "opposite"),
    (-0.3, -0.1, False, "seen"), (-0.3, 0.1, False, "inconclusive"), (0.1, 0.3, False, "opposite"),
    (-0.01, 0.03, True, "not seen at this size"), (-0.03, 0.01, False, "not seen at this size")])
def test_better_requires_the_whole_interval_on_one_side(low, high, higher, verdict):
    found = claim_verdict(BETTER, results(low, high, higher=higher))
    assert found["verdict"] == verdict and found["interval"] == [low, high]
    assert found["text"].endswith(f": {CLAIM_VERDICTS[verdict]}.")
    assert "new minus old" in found["text"] and "3 seeds" in found["text"]
    # the lab may compare the variants in the other order
    reversed_pair = claim_verdict(BETTER, results(low, high, higher=higher, a="new", b="old"))
    assert reversed_pair["interval"] == [-high, -low]
    opposite = {"seen": "opposite", "opposite": "seen"}
    assert reversed_pair["verdict"] == opposite.get(verdict, verdict)


@pytest.mark.parametrize(("low", "high", "verdict"), [
    (-0.2, 0.3, "seen"), (0.1, 0.3, "seen"), (-0.2, 0.9, "inconclusive"), (0.1, 0.9, "inconclusive"),
    (0.6, 0.9, "opposite"), (-0.9, -0.6, "opposite")])
def test_equal_requires_the_interval_within_the_margin(low, high, verdict):
    assert claim_verdict(EQUAL, results(low, high))["verdict"] == verdict


def test_one_seed_is_inconclusive():
    found = claim_verdict(BETTER, results(None, None, seeds=1))
    assert found["verdict"] == "inconclusive" and found["interval"] is None and "--seeds" in found["text"]


def test_identical_weights_are_equal_and_not_better():
    same = results(None, None, verdict="same bytes")
    assert claim_verdict(EQUAL, same)["verdict"] == "seen"
    assert claim_verdict(BETTER, same)["verdict"] == "not seen at this size"


def test_failed_variants_are_not_compared():
    without = results(0.1, 0.2) | {"differences": [], "cells": [{"variant": "old", "state": "failed"}]}
    found = claim_verdict(BETTER, without)
    assert found["verdict"] == "inconclusive" and "training of old failed" in found["text"]
    assert claim_verdict(BETTER, without | {"measures": []})["interval"] is None


# --- text and tasks ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small standard library: ten packages of four pages, which share one sentence, and forty single modules."""
    root = tmp_path_factory.mktemp("library")
    for package in range(10):
        for page in range(4):
            file = root / f"package{package}" / f"{'__init__' if not page else f'part{page}'}.py"
            file.parent.mkdir(exist_ok=True)
            lines = [f"The reader number {index} of page {page} opens the thing of package {package} before it closes."
                     for index in range(12 + package)]
            shared = "This is said by every page of all the packages here."
            last = f"{shared} The page {page} of package {package} before all others says it in its own words."
            file.write_text('"""' + "\n\n".join([*lines, last]) + '\n"""\n')
    for index in range(40):
        (root / f"single{index}.py").write_text(
            f'"""The module single{index} has one page that tells of itself and of nothing else."""\n')
    return root


@pytest.fixture(scope="module")
def data(library, tmp_path_factory) -> dict[str, Any]:
    return builtin_data.builtin_data(tmp_path_factory.mktemp("own") / "text", root=library)


def rows(data: dict[str, Any], task: str, split: str) -> list[dict[str, str]]:
    return read_table(data["tasks"][task][split]).rows


@pytest.mark.parametrize("task", builtin_data.TASKS)
def test_tasks_are_balanced_and_disjoint(data, task):
    trained = {line.casefold() for line in Path(data["text"]).read_text().splitlines()}
    used: list[str] = []
    for split in ("train", "dev"):
        examples = rows(data, task, split)
        counts = Counter(row["label"] for row in examples)
        assert sorted(counts) == data["tasks"][task]["labels"] and len(set(counts.values())) == 1
        assert len(counts) == (8 if task == "module" else 2)
        assert [row["label"] for row in examples] != sorted(row["label"] for row in examples)
        used += [row[column] for row in examples for column in row if column.startswith("text")]
    assert len(set(used)) == len(used)  # each sentence is used once
    assert not trained & {sentence.casefold() for sentence in used}
    assert len(rows(data, task, "train")) == pytest.approx(2 * len(rows(data, task, "dev")), abs=16)


def test_labels_of_the_tasks_are_correct(data):
    for row in rows(data, "module", "train"):
        assert f"of package {row['label'].removeprefix('package')} before" in row["text"]
    pairs = rows(data, "order", "train") + rows(data, "order", "dev")
    for row in pairs:
        a, b = (int(row[key].split("number ")[1].split()[0]) for key in ("text_a", "text_b"))
        assert b - a == (1 if row["label"] == "in order" else -1)
    originals = [row["text"] for row in rows(data, "damage", "dev") if row["label"] == "as written"]
    assert all(text.startswith("The ") for text in originals)


def test_half_of_each_package_is_held_out_and_no_page_is_in_both_splits(library):
    pages = builtin_data.python_docs.collect_pages(library)
    train, held_out, packages = builtin_data.split_pages(pages, seed=0)
    assert {page.name for page in train} | {page.name for page in held_out} == {page.name for page in pages}
    assert not {page.name for page in train} & {page.name for page in held_out}
    for package in packages:
        assert {page.group for page in train} >= {package} <= {page.group for page in held_out}


def test_built_in_data_are_cached_and_reproducible(data, library, tmp_path):
    folder = Path(data["text"]).parent
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    stamps = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    builtin_data.builtin_data(folder, root=library)
    assert stamps == {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    again = builtin_data.builtin_data(tmp_path / "again", root=library)
    assert before == {file.name: file.read_bytes() for file in Path(again["text"]).parent.iterdir()}
    other = builtin_data.builtin_data(tmp_path / "other", seed=1, root=library)
    assert Path(other["text"]).read_bytes() != before["train.txt"]


def test_damaged_text_is_written_again_and_folders_with_other_files_are_rejected(library, tmp_path):
    folder = tmp_path / "own"
    original = Path(builtin_data.builtin_data(folder, root=library)["text"]).read_bytes()
    (folder / "train.txt").write_text("cut off")
    assert Path(builtin_data.builtin_data(folder, root=library)["text"]).read_bytes() == original
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("to keep")
    with pytest.raises(UserError, match="something else"):
        builtin_data.builtin_data(tmp_path / "mine", root=library)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "to keep"


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_library(library, monkeypatch) -> None:
    monkeypatch.setattr(claims, "builtin_data", lambda folder: builtin_data.builtin_data(folder, root=library))


def test_a_claim_becomes_an_experiment_that_is_stored_with_it(small_library, tmp_path):
    claim = find_claim("next_sentence")
    experiment = claim_experiment(claim, tokens=7, seeds=2, command="stemma claims run next_sentence")
    assert [variant.name for variant in experiment.variants] == ["neither", "next sentence", "sentence order"]
    assert (experiment.kind, experiment.allowance.amount, experiment.seeds) == ("claim", 7, (0, 1))
    assert [task.name for task in experiment.tasks] == ["pair", "classify"]
    assert experiment.measure is None  # the first task decides
    assert Path(experiment.text[0]).is_file() and Path(experiment.tasks[0].train).name == "order-train.tsv"
    experiment.write(tmp_path)
    stored = Experiment.read(tmp_path).details["claim"]
    assert claim_verdict(stored, results(0.1, 0.2, a="next sentence", b="sentence order"))["verdict"] == "seen"


def test_a_claim_accepts_text_and_tasks_of_the_user(text_file, monkeypatch):
    monkeypatch.setattr(claims, "builtin_data", lambda folder: pytest.fail("the documentation of Python is not needed"))
    experiment = claim_experiment(find_claim("masks"), corpus=[str(text_file)])
    assert experiment.text == (str(text_file),) and experiment.tasks == ()
    assert experiment.measure == "pseudo_bits_per_byte"
    task = DownstreamTask("classify", "a.tsv", "b.tsv")
    experiment = claim_experiment(find_claim("chinese_words"), corpus=[str(text_file)], tasks=[task])
    assert experiment.tasks == (task,) and experiment.measure is None
    with pytest.raises(UserError, match="Chinese text, and none comes with"):
        claim_experiment(find_claim("chinese_words"))


# --- verbs ------------------------------------------------------------------------------------------------------------


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    typer.main.get_command(claims_app).main([*map(str, arguments), "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_claims_are_listed_and_shown(capsys, tmp_path):
    listed = run_json(capsys)["claims"]
    assert [entry["name"] for entry in listed] == [claim.name for claim in all_claims()]
    assert listed[0]["total_tokens"] == listed[0]["cells"] * listed[0]["tokens"]
    plan = run_json(capsys, "show", "masks")
    assert {change["key"] for change in plan["between"]} == {"objective.masked_lm.dynamic",
                                                            "objective.masked_lm.duplicates"}
    assert run_json(capsys, "show", write_claim(tmp_path, SMALL))["name"] == "layers"
    typer.main.get_command(claims_app).main([], standalone_mode=False)
    output = capsys.readouterr().out
    assert "positions  Are learned positions" in output and "needs --corpus" in output
    typer.main.get_command(claims_app).main(["show", "positions"], standalone_mode=False)
    assert "learned and waves differ by less than 0.05" in capsys.readouterr().out


@pytest.mark.slow
def test_a_claim_file_of_the_user_runs_to_its_verdict(capsys, tmp_path):
    (tmp_path / "text.txt").write_text(small_text())
    claim, out = write_claim(tmp_path, SMALL), tmp_path / "lab"
    found = run_json(capsys, "run", claim, "--corpus", tmp_path / "text.txt", "--out", out)
    assert found["claim"]["name"] == "layers"
    assert found["claim"]["verdict"] in ("seen", "not seen at this size", "opposite", "inconclusive")
    low, high = found["claim"]["interval"]
    assert low <= high
    assert json.loads((out / "results.json").read_text())["claim"]["verdict"] == found["claim"]["verdict"]
