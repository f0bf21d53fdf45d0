"""The number of epochs that all models of an experiment are fine-tuned for, and the check of their examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from stemma.errors import UserError
from stemma.lab.comparison import ablate, compare, parse_tasks

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=24",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=1", "tokenizer.vocab_size=300",
         "training.threads=1"]


def write_examples(folder: Path, rows: int, name: str = "train") -> str:
    file = folder / f"{name}.tsv"
    file.write_text("text\tlabel\n" + "".join(f"the old clerk {row}\t{'yes' if row % 2 else 'no'}\n"
                                              for row in range(rows)))
    return str(file)


@pytest.mark.parametrize(("rows", "epochs"), [(40, 20), (300, 20), (640, 10), (1000, 7), (2112, 4), (2113, 3),
                                              (9000, 3)])
def test_the_epochs_suffice_for_200_steps(tmp_path, rows, epochs):
    """Batches of 32 examples, 3 to 20 epochs: as `stemma finetune` after a brief pre-training."""
    files = [write_examples(tmp_path, rows)], [write_examples(tmp_path, 8, "dev")]
    assert parse_tasks(["classify"], *files)[0].epochs == epochs
    assert parse_tasks(["classify"], *files, 2.5)[0].epochs == 2.5


def test_pairs_of_texts_are_read_in_smaller_batches(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("source\ttarget\n" + "ban dan\tgan\n" * 640)
    task, = parse_tasks(["seq2seq"], [str(tmp_path / "train.tsv")], [str(tmp_path / "dev.tsv")])
    assert task.epochs == 5


def test_all_models_have_the_same_epochs_and_the_report_lists_them(tmp_path, text_file, caplog):
    """RoBERTa has ten epochs in its paper, BERT three; here the examples decide."""
    train, dev = write_examples(tmp_path, 900), write_examples(tmp_path, 16, "dev")
    results = compare(["bert@tiny", "roberta@tiny"], str(text_file), tmp_path / "lab", tokens=1500, seeds=1,
                      changes=SMALL, task=["classify"], train=[train], dev=[dev])
    assert results["tasks"] == {"classify": 7.0}
    assert "classify: every model is fine-tuned for 7 epochs of 900 examples; --epochs sets another number." in \
        caplog.messages
    assert "| fine-tuning on classify | 7 epochs |" in (tmp_path / "lab" / "report.md").read_text()
    assert all("classify.accuracy" in row["scores"] for row in results["table"])


def test_bad_examples_are_refused_before_anything_is_trained(tmp_path, text_file):
    train, dev = write_examples(tmp_path, 8), write_examples(tmp_path, 8, "dev")
    Path(dev).write_text("text\tlabel\nthe old clerk\tperhaps\n")
    with pytest.raises(UserError, match="perhaps"):
        compare(["bert@tiny", "gpt2@tiny"], str(text_file), tmp_path / "lab", tokens=1500, task=["classify"],
                train=[train], dev=[dev])
    with pytest.raises(UserError, match="--epochs must be a number greater than 0, not 0"):
        parse_tasks(["classify"], [train], [train], 0.0)
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize("command", [lambda *args, **options: compare(["bert@tiny", "gpt2@tiny"], *args, **options),
                                     lambda *args, **options: ablate("roberta@tiny", *args, **options)])
def test_a_change_of_the_epochs_is_refused(tmp_path, text_file, command):
    train = write_examples(tmp_path, 8)
    with pytest.raises(UserError, match=r"finetuning.epochs=5 has no effect: .* give --epochs 5\."):
        command(str(text_file), tmp_path / "lab", tokens=1500, changes=["finetuning.epochs=5"], task=["classify"],
                train=[train], dev=[train])
