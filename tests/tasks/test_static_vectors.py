"""Tasks over static word vectors: vocabulary, frozen and tuned vectors, resume, sweeps, and bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toy_tasks
from commands import stemma as command
from conftest import SEED, captured_log_messages

import stemma
from stemma.errors import UserError
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.sweep import Sweep

WIDTH = 10
SMALL = ["network.width=40", "network.output_dropout=0.1", "network.dropout=0.1", "training.batch_size=16",
         "training.learning_rate=0.01"]
MISSING = {"clerk", "forgets"}  # words of the data that the file lacks


def data_words() -> list[str]:
    rows = toy_tasks.rows("classify", 300) + toy_tasks.rows("pair", 100)
    texts = [text for row in rows for key, text in row.items() if key != "label"]
    return sorted({word for text in texts for word in text.replace(".", " .").lower().split()})


def write_vectors(file, words, width=WIDTH, seed=0):
    rng = np.random.default_rng(seed)
    file.write_text("".join(f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=width))}\n" for word in words))
    return file


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    words = [word for word in data_words() if word not in MISSING]
    return write_vectors(tmp_path_factory.mktemp("vectors") / "vectors.txt", [*words, "zeppelin"])


@pytest.fixture(scope="module")
def classified(tmp_path_factory, vectors):
    folder = tmp_path_factory.mktemp("classified")
    sets = toy_tasks.write_sets(folder, "classify", 160, 40)
    with captured_log_messages() as messages:
        result = finetune(TaskArguments("classify", sets, vectors=vectors), None, folder / "run", epochs=10, seed=SEED,
                          changes=SMALL)
    return folder / "run", result, messages


def table(run, path):
    """word -> its vector in the embedding of a stored model."""
    model = stemma.load(run / path)
    weight = model.network.embedding.tokens.weight.detach().numpy()
    return {word: weight[index] for word, index in model.require_tokenizer().backend.get_vocab().items()}


def from_file(vectors):
    return {line.split()[0]: np.array(line.split()[1:], np.float32) for line in vectors.read_text().splitlines()}


def test_a_classifier_learns_over_frozen_vectors(classified, vectors):
    run, result, messages = classified
    assert result["metrics"]["dev"]["accuracy"] >= 0.9 and result["recipe"] == "bilstm@base"
    before, after, given = table(run, "start"), table(run, "model"), from_file(vectors)
    assert before.keys() == after.keys() >= {*given, *MISSING}
    assert "zeppelin" in after  # words of the file alone are known, too
    for word, vector in given.items():
        np.testing.assert_allclose(after[word], vector, atol=1e-6)
    for word in MISSING:
        np.testing.assert_array_equal(after[word], before[word])
        assert 0.1 < np.abs(after[word]).mean() < 3
    assert any("different words of the training data have a vector" in message for message in messages)


def test_prediction_evaluation_and_resume_need_the_run_alone(classified, tmp_path, vectors):
    run, result, _ = classified
    rows = toy_tasks.rows("classify", 30, 7)
    file = toy_tasks.write_rows(tmp_path / "new.jsonl", rows)
    predicted = command("predict", run, file, "--json")
    assert predicted.code == 0, predicted.err
    evaluated = command("evaluate", run, "--data", file, "--json")
    assert evaluated.code == 0 and evaluated.json["metrics"]["test"]["accuracy"] >= 0.8, evaluated.err
    resumed = command("resume", run, "--json")
    assert resumed.code == 0 and resumed.json == json.loads((run / "result.json").read_text())


def test_tuned_vectors_change_and_pairs_and_numbers_are_learnt(tmp_path, vectors):
    for kind, task in (("pair", {}), ("regress", {})):
        sets = toy_tasks.write_sets(tmp_path, kind, 96, 24)
        result = finetune(TaskArguments(kind, sets, vectors=vectors, tune_vectors=True, **task), "bilstm@tiny",
                          tmp_path / kind, epochs=6, seed=SEED, changes=["training.learning_rate=0.01"])
        assert result["validation_loss"] < result["unigram_loss"]
    after, given = table(tmp_path / "regress", "model"), from_file(vectors)
    assert max(np.abs(after[word] - given[word]).max() for word in ("reads", "repairs")) > 1e-3


def test_a_tagger_reads_whole_words(tmp_path, vectors):
    rows = [{"words": ["U.S.", *row["words"]], "tags": ["O", *row["tags"]]} for row in toy_tasks.rows("tag", 100)]
    sets = {"train": toy_tasks.write_rows(tmp_path / "train.jsonl", rows[:80]),
            "dev": toy_tasks.write_rows(tmp_path / "dev.jsonl", rows[80:])}
    done = command("finetune", "tag", "--vectors", vectors, "--train", sets["train"], "--dev", sets["dev"], "--out",
                   tmp_path / "run", "--epochs", "12", "--json", *SMALL)
    assert done.code == 0, done.err
    assert done.json["metrics"]["dev"]["f1"] > 0.8
    model = stemma.load(tmp_path / "run")
    assert model.require_tokenizer().token_to_id("u.s.") is not None
    assert "task_crf" in model.network.heads  # the recipe's default


@pytest.mark.parametrize("kind", ["choice", "qa", "rank"])
def test_the_other_kinds_of_tasks_take_vectors(tmp_path, vectors, kind):
    sets = toy_tasks.write_sets(tmp_path, kind, 24, 12)
    result = finetune(TaskArguments(kind, sets, vectors=vectors), None, tmp_path / "run", steps=2, seed=SEED,
                      changes=SMALL)
    assert np.isfinite(result["validation_loss"])
    assert command("predict", tmp_path / "run", sets["dev"], "--json").code == 0


def test_a_sweep_starts_from_other_weights_with_each_seed(tmp_path, vectors):
    sets = toy_tasks.write_sets(tmp_path, "classify", 48, 16)
    finetune(TaskArguments("classify", sets, vectors=vectors), None, tmp_path / "run", steps=1, seed=SEED,
             changes=[*SMALL, "training.learning_rate=1e-9"], trials=Sweep((), 2))
    weights = [stemma.load(trial).network.encoder.layers[0].directions[0].input.detach().numpy()
               for trial in sorted((tmp_path / "run" / "trials").iterdir())]
    assert np.abs(weights[0] - weights[1]).max() > 0.01


def test_any_recipe_takes_vectors(tmp_path, vectors):
    sets = toy_tasks.write_sets(tmp_path, "classify", 32, 16)
    result = finetune(TaskArguments("classify", sets, vectors=vectors), "bert@tiny", tmp_path / "run", steps=2,
                      seed=SEED, changes=toy_tasks.SMALL[:4])
    model = stemma.load(tmp_path / "run")
    assert result["recipe"] == "bert@tiny" and model.network.embedding.tokens.embedding_dim == WIDTH


@pytest.mark.parametrize(("start", "options", "changes", "message"), [
    (None, {}, ["network.embedding.width=7"], "have 10 numbers and network.embedding.width is 7"),
    ("no-such-recipe", {}, [], "--model is no-such-recipe; name a recipe"),
    ("ngram", {}, [], "table of counts"),
    (None, {"features": "all"}, [], "--features is for a trained model")])
def test_what_does_not_fit_is_refused_before_training(tmp_path, vectors, start, options, changes, message):
    sets = toy_tasks.write_sets(tmp_path, "classify", 20, 10)
    with pytest.raises(UserError) as caught:
        finetune(TaskArguments("classify", sets, vectors=vectors, **options), start, tmp_path / "run", changes=changes)
    assert message in str(caught.value) and not (tmp_path / "run").exists()


def test_a_trained_model_and_a_file_of_another_language_are_refused(tmp_path, classified):
    sets = toy_tasks.write_sets(tmp_path, "classify", 20, 10)
    other = write_vectors(tmp_path / "other.txt", ["xyzzy", "plugh"])
    for start, file, message in ((classified[0], other, "a trained model has vectors of its own"),
                                 (None, other, "no word of the training data has a vector")):
        with pytest.raises(UserError, match=message):
            finetune(TaskArguments("classify", sets, vectors=file), start, tmp_path / "run")
    with pytest.raises(UserError, match="--model is missing"):
        finetune(TaskArguments("classify", sets), None, tmp_path / "run")
    with pytest.raises(UserError, match="--tune-vectors trains the vectors"):
        finetune(TaskArguments("classify", sets, tune_vectors=True), classified[0], tmp_path / "run")
