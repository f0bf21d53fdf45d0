"""Files that a lab reads again: a finished lab needs them no more, an unfinished one refuses changed ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stemma.errors import UserError
from stemma.lab.comparison import compare
from stemma.lab.run_experiment import resume_lab

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=24",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=1", "tokenizer.vocab_size=300",
         "training.threads=1"]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Task examples, and a folder of minimal pairs."""
    folder = tmp_path_factory.mktemp("files")
    for part in ("train", "dev"):
        (folder / f"{part}.tsv").write_text("text\tlabel\n" + "the old clerk\tyes\na young reader\tno\n" * 4)
    (folder / "pairs").mkdir()
    (folder / "pairs" / "order.jsonl").write_text(json.dumps({
        "sentence_good": "the old clerk reads a letter.", "sentence_bad": "the old clerk letter a reads."}) + "\n")
    return folder


@pytest.fixture(scope="module")
def finished_lab(text_file, source, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "lab"
    shutil.copy(text_file, source / "text.txt")
    compare(["bert@tiny", "gpt2@tiny"], str(source / "text.txt"), out, tokens=1500, seeds=1, changes=SMALL,
            task=["classify"], train=[str(source / "train.tsv")], dev=[str(source / "dev.tsv")], epochs=1.0,
            blimp=source / "pairs")
    return out


@pytest.fixture
def lab(finished_lab, tmp_path) -> Path:
    """A copy of the finished lab."""
    return Path(shutil.copytree(finished_lab, tmp_path / "lab"))


@pytest.fixture
def without_files(source, lab):
    """The files are gone during the test."""
    away = source.parent / f"{source.name}-away"
    source.rename(away)
    yield
    away.rename(source)


def test_a_finished_lab_is_resumed_without_its_files(lab, without_files):
    expected = json.loads((lab / "results.json").read_text())
    results = resume_lab(lab)
    assert results["cells"] == expected["cells"] and results["blimp"] == expected["blimp"]
    assert results["baselines"] == expected["baselines"] and results["baselines"]["linear"]


def test_an_unfinished_lab_says_which_files_are_missing(lab, without_files, source):
    shutil.rmtree(next(lab.glob("cells/*/pairs")))
    with pytest.raises(UserError, match="made with other files") as error:
        resume_lab(lab)
    assert error.value.problems == [(str(source / name), "is missing") for name in ("pairs", "train.tsv", "dev.tsv")]


@pytest.mark.parametrize("name", ["dev.tsv", "pairs/order.jsonl"])
def test_an_unfinished_lab_refuses_changed_files(lab, source, name):
    shutil.rmtree(next(lab.glob("cells/*/tasks")))
    before = (source / name).read_text()
    (source / name).write_text(before.replace("old", "new"))
    try:
        with pytest.raises(UserError, match="made with other files") as error:
            resume_lab(lab)
    finally:
        (source / name).write_text(before)
    assert error.value.problems == [(str(source / name.partition("/")[0]), "has changed")]


def test_a_lab_without_digests_is_resumed(lab, source):
    """Labs that are older than the digests compute them from the files."""
    stored = json.loads((lab / "lab.json").read_text())
    del stored["blimp_digest"]
    for task in stored["tasks"]:
        assert set(task.pop("digests")) == {"train", "dev"}
    (lab / "lab.json").write_text(json.dumps(stored))
    (lab / "checksums.json").unlink()
    expected = json.loads((lab / "results.json").read_text())
    assert resume_lab(lab)["cells"] == expected["cells"]


def test_a_report_does_not_depend_on_the_linear_baseline(lab, without_files, source, caplog):
    shutil.rmtree(lab / "baselines")
    results = resume_lab(lab)
    assert results["baselines"] == {"linear": {}} and len(results["notes"]) == 1
    note = results["notes"][0]
    assert note.startswith("classify has no linear baseline: ") and f"{source / 'train.tsv'}: is missing" in note
    assert note in caplog.messages
    assert "has no linear baseline" in (lab / "report.md").read_text()
