"""Tables of counts beside networks in `compare` and `ablate`: no fine-tuning, no warm-up, one pass over the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from stemma.errors import UserError
from stemma.lab.comparison import compare

SMALL = ["corpus.sequence_length=32", "training.batch_size=8", "tokenizer.vocab_size=300", "training.threads=1"]
RECIPES = ["gpt2@tiny", "ngram@bigram", "ngram@trigram"]


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("task")
    for part in ("train", "dev"):
        (folder / f"{part}.tsv").write_text("text\tlabel\n" + "the old clerk\tyes\na young reader\tno\n" * 4)
    return {"task": ["classify"], "train": [str(folder / "train.tsv")], "dev": [str(folder / "dev.tsv")]}


@pytest.fixture(scope="module")
def lab(tmp_path_factory, text_file, task) -> Path:
    out = tmp_path_factory.mktemp("counts") / "lab"
    compare(RECIPES, str(text_file), out, tokens=30_000, seeds=1, changes=SMALL, epochs=1.0, **task)
    return out


@pytest.fixture(scope="module")
def results(lab, text_file, task):
    """The results of the finished lab, by the same command."""
    return compare(RECIPES, str(text_file), lab, tokens=30_000, seeds=1, changes=SMALL, epochs=1.0, **task)


def test_counts_are_not_fine_tuned_and_the_report_says_why(lab, results):
    scores = {row["variant"]: set(row["scores"]) for row in results["table"]}
    assert results["measures"][0]["key"] == "classify.accuracy"
    assert "classify.accuracy" in scores["gpt2@tiny"] and "bits_per_byte" in scores["gpt2@tiny"]
    for name in ("ngram@bigram", "ngram@trigram"):
        assert "classify.accuracy" not in scores[name] and "bits_per_byte" in scores[name]
        note = f"{name} is not fine-tuned: it is a table of counts, which has no weights."
        assert note in results["notes"] and note in (lab / "report.md").read_text()
    assert all(cell["state"] == "done" for cell in results["cells"])
    assert {(entry["a"], entry["b"]) for entry in results["differences"] if entry["measure"] == "bits_per_byte"} == {
        ("gpt2@tiny", "ngram@bigram"), ("gpt2@tiny", "ngram@trigram"), ("ngram@bigram", "ngram@trigram")}


def test_a_dry_run_with_a_task_estimates_counts_without_fine_tuning(text_file, task, tmp_path):
    plan = compare(["ngram@bigram", "gpt2@tiny"], str(text_file), tmp_path / "lab", tokens=30_000, seeds=1,
                   changes=SMALL, epochs=1.0, dry_run=True, **task)
    assert len(plan["variants"]) == 2


def test_a_task_for_counts_alone_is_refused(text_file, task, tmp_path):
    with pytest.raises(UserError, match="none of these recipes can be fine-tuned"):
        compare(["ngram@bigram", "ngram@trigram"], str(text_file), tmp_path / "lab", tokens=2000, seeds=1, **task)
    assert not (tmp_path / "lab").exists()
