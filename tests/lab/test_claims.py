"""Claims: files that say what to compare and what to expect, the verdict over what came out, text that all have."""

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
from stemma.lab import builtin_data as own
from stemma.lab import claims as module
from stemma.lab.claims import CLAIMS, all_claims, claim_experiment, claim_verdict, find_claim, read_claim
from stemma.lab.experiment import DownstreamTask, Experiment
from stemma.lab.report.lab_phrases import CLAIM_VERDICTS
from stemma.text.tables import read_table

FILES = sorted(CLAIMS.glob("*.toml"))
ASKED_FOR = {"next_sentence", "masks", "units", "replaced_tokens", "positions", "chinese_words"}
SMALL = """
title    = "Do two layers know more than one?"
paper    = "nobody's"
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


def written(folder: Path, text: str, name: str = "layers.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_claim_can_be_run(path):
    claim = read_claim(path)
    recipes = claim.recipes("tiny")
    assert set(claim.compared_pair) <= set(recipes) and len(claim.found) > 60 and claim.paper.startswith("arXiv:")
    assert claim.title.endswith("?") and claim.seeds > 1
    first, second = (recipes[name] for name in claim.compared_pair)
    changed = {change.key for change in recipe_loading.diff(first, second)}
    assert 1 <= len(changed) <= 3, changed  # the question, and nothing else
    steps = claim.tokens / (first.settings.training.batch_size * first.settings.corpus.sequence_length)
    assert steps > 4 * max(one.settings.training.warmup_steps for one in recipes.values())
    for one in recipes.values():  # the measure is one that these recipes have
        kinds = {task.kind for task in one.settings.objective.values()}
        needed = {"pseudo_bits_per_byte": "masked_lm", "bits_per_byte": "causal_lm"}.get(claim.measure)
        assert needed is None or needed in kinds


def test_those_that_come_along_are_listed():
    assert {path.stem for path in FILES} >= ASKED_FOR
    assert len(FILES) >= 12
    assert find_claim("masks").name == "masks"
    with pytest.raises(UserError, match='Did you mean "positions"'):
        find_claim("position")


def test_all_problems_of_a_claim_are_reported_at_once(tmp_path):
    bad = (SMALL.replace('better   = "two"', 'better   = "three"').replace('"network.layers=1"', '"network.layer=1"')
           .replace('measure  = "pseudo_bits_per_byte"', 'measure  = "task"\ntasks = ["damages"]'))
    with pytest.raises(UserError, match="3 problems") as caught:
        read_claim(written(tmp_path, bad))
    told = str(caught.value)
    assert "must name two different ones of one, two" in told and "network.layer = 1" in told
    assert 'Did you mean "damage"' in told


@pytest.mark.parametrize(("change", "said"), [
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
def test_a_bad_claim_is_refused(tmp_path, change, said):
    assert change[0] in SMALL
    with pytest.raises(UserError) as caught:
        read_claim(written(tmp_path, SMALL.replace(*change)))
    assert said in str(caught.value)


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
def test_better_is_decided_by_the_whole_interval(low, high, higher, verdict):
    found = claim_verdict(BETTER, results(low, high, higher=higher))
    assert found["verdict"] == verdict and found["interval"] == [low, high]
    assert found["text"].endswith(f": {CLAIM_VERDICTS[verdict]}.")
    assert "new minus old" in found["text"] and "3 seeds" in found["text"]
    # the lab has it the other way round
    turned = claim_verdict(BETTER, results(low, high, higher=higher, a="new", b="old"))
    assert turned["interval"] == [-high, -low]
    opposite = {"seen": "opposite", "opposite": "seen"}
    assert turned["verdict"] == opposite.get(verdict, verdict)


@pytest.mark.parametrize(("low", "high", "verdict"), [
    (-0.2, 0.3, "seen"), (0.1, 0.3, "seen"), (-0.2, 0.9, "inconclusive"), (0.1, 0.9, "inconclusive"),
    (0.6, 0.9, "opposite"), (-0.9, -0.6, "opposite")])
def test_equal_means_that_the_interval_is_narrow(low, high, verdict):
    assert claim_verdict(EQUAL, results(low, high))["verdict"] == verdict


def test_one_seed_shows_nothing():
    found = claim_verdict(BETTER, results(None, None, seeds=1))
    assert found["verdict"] == "inconclusive" and found["interval"] is None and "--seeds" in found["text"]


def test_the_same_bytes_are_equal_and_not_better():
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
    """A standard library of ten packages that talk about different things; some say the same."""
    root = tmp_path_factory.mktemp("library")
    for package in range(10):
        for page in range(4):
            file = root / f"package{package}" / f"{'__init__' if not page else f'part{page}'}.py"
            file.parent.mkdir(exist_ok=True)
            lines = [f"The reader number {number} of page {page} opens the thing of package {package} before it closes."
                     for number in range(12 + package)]
            alike = "This is said by every page of all the packages here."
            last = f"{alike} The page {page} of package {package} before all others says it in its own words."
            file.write_text('"""' + "\n\n".join([*lines, last]) + '\n"""\n')
    for alone in range(40):
        (root / f"alone{alone}.py").write_text(
            f'"""The module alone{alone} has one page that tells of itself and of nothing else."""\n')
    return root


@pytest.fixture(scope="module")
def made(library, tmp_path_factory) -> dict[str, Any]:
    return own.builtin_data(tmp_path_factory.mktemp("own") / "text", root=library)


def rows(made: dict[str, Any], task: str, part: str) -> list[dict[str, str]]:
    return read_table(made["tasks"][task][part]).rows


@pytest.mark.parametrize("task", own.TASKS)
def test_tasks_are_balanced_and_disjoint(made, task):
    trained = {line.casefold() for line in Path(made["text"]).read_text().splitlines()}
    used: list[str] = []
    for part in ("train", "dev"):
        some = rows(made, task, part)
        counts = Counter(row["label"] for row in some)
        assert sorted(counts) == made["tasks"][task]["labels"] and len(set(counts.values())) == 1
        assert len(counts) == (8 if task == "module" else 2)
        assert [row["label"] for row in some] != sorted(row["label"] for row in some)
        used += [row[column] for row in some for column in row if column.startswith("text")]
    assert len(set(used)) == len(used)  # no sentence serves twice, least of all on both sides
    assert not trained & {sentence.casefold() for sentence in used}
    assert len(rows(made, task, "train")) == pytest.approx(2 * len(rows(made, task, "dev")), abs=16)


def test_labels_are_true(made):
    for row in rows(made, "module", "train"):
        assert f"of package {row['label'].removeprefix('package')} before" in row["text"]
    pairs = rows(made, "order", "train") + rows(made, "order", "dev")
    for row in pairs:
        a, b = (int(row[key].split("number ")[1].split()[0]) for key in ("text_a", "text_b"))
        assert b - a == (1 if row["label"] == "in order" else -1)
    intact = [row["text"] for row in rows(made, "damage", "dev") if row["label"] == "as written"]
    assert all(text.startswith("The ") for text in intact)


def test_half_of_each_package_is_held_out_and_no_page_is_in_both_splits(library):
    pages = own.python_docs.collect_pages(library)
    train, held_out, packages = own.split_pages(pages, seed=0)
    assert {page.name for page in train} | {page.name for page in held_out} == {page.name for page in pages}
    assert not {page.name for page in train} & {page.name for page in held_out}
    for package in packages:
        assert {page.group for page in train} >= {package} <= {page.group for page in held_out}


def test_made_once_and_the_same_again(made, library, tmp_path):
    folder = Path(made["text"]).parent
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    stamps = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    own.builtin_data(folder, root=library)
    assert stamps == {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    again = own.builtin_data(tmp_path / "again", root=library)
    assert before == {file.name: file.read_bytes() for file in Path(again["text"]).parent.iterdir()}
    other = own.builtin_data(tmp_path / "other", seed=1, root=library)
    assert Path(other["text"]).read_bytes() != before["train.txt"]


def test_damaged_text_is_made_again_and_foreign_files_stay(library, tmp_path):
    folder = tmp_path / "own"
    whole = Path(own.builtin_data(folder, root=library)["text"]).read_bytes()
    (folder / "train.txt").write_text("cut off")
    assert Path(own.builtin_data(folder, root=library)["text"]).read_bytes() == whole
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("to keep")
    with pytest.raises(UserError, match="something else"):
        own.builtin_data(tmp_path / "mine", root=library)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "to keep"


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_library(library, monkeypatch) -> None:
    monkeypatch.setattr(module, "builtin_data", lambda folder: own.builtin_data(folder, root=library))


def test_a_claim_becomes_an_experiment_that_survives_the_disk(own_library, tmp_path):
    claim = find_claim("next_sentence")
    made = claim_experiment(claim, tokens=7, seeds=2, command="stemma claims run next_sentence")
    assert [one.name for one in made.variants] == ["neither", "next sentence", "sentence order"]
    assert (made.kind, made.allowance.amount, made.seeds) == ("claim", 7, (0, 1))
    assert [task.name for task in made.tasks] == ["pair", "classify"]
    assert made.measure is None  # the first task decides
    assert Path(made.text[0]).is_file() and Path(made.tasks[0].train).name == "order-train.tsv"
    made.write(tmp_path)
    stored = Experiment.read(tmp_path).details["claim"]
    assert claim_verdict(stored, results(0.1, 0.2, a="next sentence", b="sentence order"))["verdict"] == "seen"


def test_text_and_tasks_of_ones_own(text_file, monkeypatch):
    monkeypatch.setattr(module, "builtin_data", lambda folder: pytest.fail("the documentation of Python is not needed"))
    made = claim_experiment(find_claim("masks"), corpus=[str(text_file)])
    assert made.text == (str(text_file),) and made.tasks == () and made.measure == "pseudo_bits_per_byte"
    task = DownstreamTask("classify", "a.tsv", "b.tsv")
    made = claim_experiment(find_claim("chinese_words"), corpus=[str(text_file)], tasks=[task])
    assert made.tasks == (task,) and made.measure is None
    with pytest.raises(UserError, match="Chinese text, and none comes with"):
        claim_experiment(find_claim("chinese_words"))


# --- verbs ------------------------------------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    typer.main.get_command(claims_app).main([*map(str, arguments), "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_list_and_plan(capsys, tmp_path):
    listed = said(capsys)["claims"]
    assert [one["name"] for one in listed] == [claim.name for claim in all_claims()]
    assert listed[0]["total_tokens"] == listed[0]["cells"] * listed[0]["tokens"]
    plan = said(capsys, "show", "masks")
    assert {change["key"] for change in plan["between"]} == {"objective.masked_lm.dynamic",
                                                            "objective.masked_lm.duplicates"}
    assert said(capsys, "show", written(tmp_path, SMALL))["name"] == "layers"
    typer.main.get_command(claims_app).main([], standalone_mode=False)
    told = capsys.readouterr().out
    assert "positions  Are learned positions" in told and "needs --corpus" in told
    typer.main.get_command(claims_app).main(["show", "positions"], standalone_mode=False)
    assert "learned and waves differ by less than 0.05" in capsys.readouterr().out


@pytest.mark.slow
def test_a_claim_of_ones_own_is_run_to_its_verdict(capsys, tmp_path):
    (tmp_path / "text.txt").write_text(small_text())
    claim, out = written(tmp_path, SMALL), tmp_path / "lab"
    found = said(capsys, "run", claim, "--corpus", tmp_path / "text.txt", "--out", out)
    assert found["claim"]["name"] == "layers"
    assert found["claim"]["verdict"] in ("seen", "not seen at this size", "opposite", "inconclusive")
    low, high = found["claim"]["interval"]
    assert low <= high
    assert json.loads((out / "results.json").read_text())["claim"]["verdict"] == found["claim"]["verdict"]
