"""`compare --blimp`: scores of every variant, the report's table, models without a likelihood, resume."""

from __future__ import annotations

import json
import shutil

import pytest

import stemma
from stemma.errors import UserError
from stemma.lab import cell_runner
from stemma.lab.comparison import compare
from stemma.lab.run_experiment import resume_lab

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=24",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=1", "tokenizer.vocab_size=300",
         "training.threads=1"]
PAIRS = {"agreement": [("the old clerk reads a letter.", "the old clerk letter a reads."),
                       ("every scribe forgets seven pages.", "seven forgets pages scribe every."),
                       ("the printer collects a letter.", "the printer a letter collects.")],
         "order": [("a young reader numbers the margin notes.", "young a notes reader margin the numbers.")]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two phenomena of different size; one has a field."""
    path = tmp_path_factory.mktemp("pairs") / "toy-blimp"
    path.mkdir()
    for name, pairs in PAIRS.items():
        field = {"field": "syntax"} if name == "order" else {"field": "morphology"}
        (path / f"{name}.jsonl").write_text("".join(
            json.dumps({"sentence_good": good, "sentence_bad": bad, **field}) + "\n" for good, bad in pairs))
    return path


@pytest.fixture(scope="module")
def lab(shared, text_file, folder):
    """Two masked models with two seeds, and one without a likelihood."""
    def make(out):
        compare(["bert@tiny", "roberta@tiny", "electra@tiny"], str(text_file), out, tokens=2000, seeds=2, changes=SMALL,
                blimp=folder)

    return shared("blimp-lab", make)


def test_the_results_have_the_scores_of_every_model(lab, folder):
    results = json.loads((lab / "results.json").read_text())
    measure = next(measure for measure in results["measures"] if measure["key"] == "blimp")
    assert measure["title"] == "minimal pairs" and measure["higher"] and "chance level 0.5" in measure["about"]
    blimp = results["blimp"]
    assert blimp["folder"] == "toy-blimp" and blimp["scoring"] == {"bert@tiny": "masked", "roberta@tiny": "masked"}
    assert blimp["without"].keys() == {"electra@tiny"} and "discriminator, which has no likelihood" in \
        blimp["without"]["electra@tiny"]
    for row in results["table"][:2]:
        runs = [lab / "cells" / cell["hash"] / "run" for cell in results["cells"] if cell["variant"] == row["variant"]]
        alone = [stemma.pairs(run, folder) for run in runs]
        assert row["scores"]["blimp"]["values"] == pytest.approx([result["accuracy"] for result in alone])
        for key, table in (("phenomena", [result["phenomena"] for result in alone]),
                           ("fields", [{name: group["accuracy"] for name, group in result["fields"].items()}
                                       for result in alone])):
            assert blimp[key][row["variant"]] == pytest.approx(
                {name: sum(part[name] for part in table) / 2 for name in table[0]})
    assert "blimp" not in results["table"][2]["scores"]
    differences = [entry for entry in results["differences"] if entry["measure"] == "blimp"]
    assert [(entry["a"], entry["b"]) for entry in differences] == [("bert@tiny", "roberta@tiny")]
    scores = {row["variant"]: row["scores"]["blimp"]["mean"] for row in results["table"][:2]}
    assert differences[0]["mean"] == pytest.approx(scores["roberta@tiny"] - scores["bert@tiny"])


def test_the_report_has_the_table_and_says_why_a_model_is_not_in_it(lab):
    results = json.loads((lab / "results.json").read_text())
    text, page = (lab / "report.md").read_text(), (lab / "report.html").read_text()
    section = text[text.index("## Minimal pairs"):]
    section = section[:section.index("\n## ")]
    assert "Accuracy on the pairs of toy-blimp: how often the acceptable sentence is more probable." in section
    assert "a tie counts as half. Scoring: bert@tiny: masked, roberta@tiny: masked." in section
    assert "electra@tiny has no score: this ELECTRA model is a discriminator, which has no likelihood" in section
    for title, names in (("field", ["morphology", "syntax"]), ("phenomenon", ["agreement", "order"])):
        assert f"| {title} | bert@tiny | roberta@tiny |" in section
        for name in names:
            values = [results["blimp"]["phenomena" if title == "phenomenon" else "fields"][variant][name]
                      for variant in ("bert@tiny", "roberta@tiny")]
            assert f"| {name} | {values[0]:.1%} | {values[1]:.1%} |" in section
    assert "Minimal pairs" in page and "toy-blimp" in page and "electra@tiny has no score" in page
    assert "minimal pairs (accuracy)" in text or "minimal pairs" in text.split("## Minimal pairs")[0]


def test_a_resumed_lab_scores_only_what_is_missing(lab, tmp_path, monkeypatch):
    expected = json.loads((lab / "results.json").read_text())
    copy = tmp_path / "lab"
    shutil.copytree(lab, copy)
    scored = []
    score_blimp = cell_runner.score_blimp

    def count(model, folder):
        scored.append(model.recipe.label)
        return score_blimp(model, folder)

    monkeypatch.setattr(cell_runner, "score_blimp", count)
    resume_lab(copy)
    assert not scored
    missing = next(copy / "cells" / cell["hash"] for cell in expected["cells"] if cell["variant"] == "roberta@tiny")
    shutil.rmtree(missing / "pairs")
    results = resume_lab(copy)
    assert scored == ["roberta@tiny"]
    assert results["blimp"] == expected["blimp"]
    assert [row["scores"].get("blimp") for row in results["table"]] == \
        [row["scores"].get("blimp") for row in expected["table"]]


def test_a_comparison_of_models_without_likelihood_says_so(text_file, folder, tmp_path):
    compare(["electra@tiny", "electra@mini"], str(text_file), tmp_path / "lab", tokens=300, seeds=1, blimp=folder,
            changes=[*SMALL, "corpus.sequence_length=16", "training.batch_size=4"])
    section = (tmp_path / "lab/report.md").read_text().split("## Minimal pairs")[1].split("\n## ")[0]
    assert "electra@tiny has no score" in section and "electra@mini has no score" in section
    assert "Scoring:" not in section and "| field" not in section


def test_a_bad_folder_is_refused_before_anything_is_trained(text_file, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    for path, message in ((tmp_path / "nothing", "no such file or folder"),
                          (tmp_path / "bad.jsonl", "1 line that cannot be read as minimal pairs")):
        with pytest.raises(UserError, match=message):
            compare(["bert@tiny", "gpt2@tiny"], str(text_file), tmp_path / "lab", tokens=1000, blimp=path)
    assert not (tmp_path / "lab").exists()


def test_a_model_whose_context_is_too_short_for_a_sentence_has_no_score(text_file, folder, tmp_path):
    long = tmp_path / "long-pairs"
    shutil.copytree(folder, long)
    text = "the old clerk reads a letter " * 20
    with (long / "order.jsonl").open("a") as file:
        file.write(json.dumps({"sentence_good": f"{text}.", "sentence_bad": f"{text}!"}) + "\n")
    results = compare(["bert@tiny", "gpt2@tiny"], str(text_file), tmp_path / "lab", tokens=1500, seeds=1, blimp=long,
                      changes=[*SMALL, "network.position.maximum=32"])
    states = [(cell["state"], "blimp" in cell["scores"]) for cell in results["cells"]]
    assert states == [("done", False), ("done", True)]
    assert list(results["blimp"]["phenomena"]) == ["gpt2@tiny"]  # a causal model reads long texts in windows
    assert "tokens long, and bert@tiny reads" in results["blimp"]["without"]["bert@tiny"]
    assert "bert@tiny has no score: \"the old clerk" in (tmp_path / "lab/report.md").read_text()
