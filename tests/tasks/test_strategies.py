"""Fine-tuning strategies: layer-wise learning rates, frozen and reinitialized layers, early stopping, class weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import toy_tasks
from conftest import SEED
from safetensors.torch import load_file
from torch.nn import functional

import stemma
from stemma.errors import UserError
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.class_weights import class_weights
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.finetune_run import input_encoder_for, read_split


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return toy_tasks.save_model(tmp_path_factory.mktemp("start") / "model")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return toy_tasks.write_sets(tmp_path_factory.mktemp("sets"), "classify", train=64)


def tune(model, sets, out, *changes, kind="classify", values=None, **options):
    return finetune(TaskArguments(kind, sets, values=values or {}), model, out, changes=[*toy_tasks.FAST, *changes],
                    **{"epochs": 1, "seed": SEED, **options})


def moved(start, run):
    """The changed parameters of the encoder, by their names in transformers."""
    before, after = (load_file(folder / "model.safetensors") for folder in (start, run / "model"))
    return {name for name in before if name in after and not torch.equal(before[name], after[name])}


def layers_of(names):
    return {part for name in names for part in ("embeddings", "layer.0.", "layer.1.", "pooler") if part in name}


def test_frozen_layers_keep_every_bit(tmp_path, model, sets):
    tune(model, sets, tmp_path / "two", "training.frozen=2")
    assert layers_of(moved(model, tmp_path / "two")) == {"layer.1.", "pooler"}
    tune(model, sets, tmp_path / "all", "training.frozen=all")
    assert layers_of(moved(model, tmp_path / "all")) == {"pooler"}


@pytest.mark.parametrize("section", ["finetuning", "training"])
def test_muon_uses_the_learning_rate_of_each_layer(tmp_path, model, sets, section):
    """The spectral norm of the update of a hidden matrix is the learning rate of its layer."""
    tune(model, sets, tmp_path / "run", f"{section}.optimizer.kind=muon", "training.learning_rate=1e-3",
         f"{section}.optimizer.weight_decay=0", "training.layer_decay=0.5", "training.schedule.kind=constant",
         "training.warmup_steps=0", steps=1, epochs=None)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run" / "model"))
    name = next(name for name in before if "layer.1.attention.self.query.weight" in name)
    highest = torch.linalg.svdvals(after[name] - before[name]).max()
    assert 0.7 * 0.5e-3 < highest < 1.25 * 0.5e-3
    assert stemma.recipe(tmp_path / "run/recipe.toml").settings.training.optimizer.kind == "muon"


def test_layers_unfreeze_epoch_by_epoch(tmp_path, model, sets, caplog):
    tune(model, sets, tmp_path / "run", "training.unfreeze=epoch", epochs=2)
    assert layers_of(moved(model, tmp_path / "run")) == {"layer.1.", "pooler"}
    assert stemma.recipe(tmp_path / "run/recipe.toml").settings.training.unfreeze == 4  # the steps of an epoch
    assert any("the 2 lowest of 3 layers" in text for text in caplog.messages)


def test_lower_layers_have_smaller_updates(tmp_path, model, sets):
    """The first update of Adam has the size of the learning rate, whatever the gradient."""
    tune(model, sets, tmp_path / "run", "training.layer_decay=0.1", "training.warmup_steps=0",
         "training.optimizer.weight_decay=0.0", "training.schedule={kind='constant'}", "network.dropout=0.0",
         epochs=None, steps=1)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run/model"))
    steps = {part: max(float((before[name] - after[name]).abs().max()) for name in before
                       if name in after and part in name) for part in ("layer.0.", "layer.1.", "pooler", "word_emb")}
    assert steps == pytest.approx({"pooler": 3e-3, "layer.1.": 3e-4, "layer.0.": 3e-5, "word_emb": 3e-6}, rel=0.05)


def test_top_layers_are_reinitialized(tmp_path, model, sets):
    tune(model, sets, tmp_path / "run", "training.fresh=1", "training.learning_rate=1e-9", epochs=None, steps=1, seed=3)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run/model"))
    other = {name for name in before if name in after and (before[name] - after[name]).abs().max() > 1e-3}
    assert layers_of(other) == {"layer.1.", "pooler"}


def test_settings_of_one_fine_tuning_do_not_carry_over(tmp_path, model, sets):
    tune(model, sets, tmp_path / "first", "training.frozen=2", "training.patience=3", "training.layer_decay=0.5")
    tune(tmp_path / "first", sets, tmp_path / "second")
    training = stemma.recipe(tmp_path / "second/recipe.toml").settings.training
    assert (training.frozen, training.patience, training.layer_decay) == (0, None, None)


def test_early_stopping_uses_the_metric_and_keeps_the_best(tmp_path, model, sets):
    result = tune(model, sets, tmp_path / "run", "training.patience=2", "training.validate_every=2", epochs=40)
    scores = {entry["step"]: entry["score"] for line in (tmp_path / "run/log.jsonl").read_text().splitlines()
              if "score" in (entry := json.loads(line))}
    best = max(scores.values())
    assert result["best_step"] == next(step for step, score in scores.items() if score == best)
    assert result["steps"] == result["best_step"] + 4 < 160
    assert result["metrics"]["dev"]["accuracy"] == best  # the model that is kept is the one that was seen
    assert stemma.load(tmp_path / "run").task_config().kind == "classify"


# --- classes that weigh differently -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stated, expected", [("balanced", [100 / 180, 100 / 30, 1.0, 100 / 90]),
                                              ("1,2,3,0.5", [1.0, 2.0, 3.0, 0.5])])
def test_class_weights_are_balanced_or_given_by_label(stated, expected):
    assert class_weights(stated, "classify", ["a", "b", "c", "d"], [60, 10, 0, 30]) == pytest.approx(expected)


@pytest.mark.parametrize("stated, kind, expected", [
    ("1,2", "classify", "has 2 numbers, and there are 3 classes: a, b, c"), ("often", "pair", "write balanced, or a"),
    ("1,-1,2", "tag", "weights are 0 or more"), ("0,0,0", "tag", "not all of them 0"),
    ("balanced", "regress", "regress has none")])
def test_invalid_class_weights_are_rejected(stated, kind, expected):
    with pytest.raises(UserError, match=expected):
        class_weights(stated, kind, ["a", "b", "c"], [1, 1, 1])


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_class_weights_scale_the_loss(tmp_path, model, kind):
    """Compared with torch's weighted mean, for a batch at once and in slices."""
    sets = toy_tasks.write_sets(tmp_path, kind, train=32, dev=12)
    tune(model, sets, tmp_path / "run", kind=kind, values={"balance": "balanced"})
    tuned = stemma.load(tmp_path / "run")
    config = tuned.task_config()
    assert len(config.values.balance) == len(config.labels)
    learner = build_task_objective(config, input_encoder_for(config, tuned.require_tokenizer()))
    examples = read_split(tmp_path / "run", "dev", config)
    batch = learner.collate(tuned, learner.encode(examples))
    with torch.no_grad():
        hidden = tuned.network(batch.streams)
        batch_loss = learner.loss(tuned.network, hidden, batch)["task"]
        parts = sum(learner.loss(tuned.network, tuned.network(piece.streams), piece)["task"]
                    for piece in batch.slices(5))
        answers = torch.from_numpy(np.stack(learner.outputs(tuned.network, hidden, batch)))
    if kind == "tag":
        target = batch.token_targets["task"]
        answers = answers.flatten(0, 1)[target.index]
    else:
        target = batch.row_targets["task"]
    expected = functional.cross_entropy(answers, target.labels, torch.tensor(config.values.balance))
    assert float(batch_loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(parts) == pytest.approx(float(expected), rel=1e-5)


def test_a_higher_class_weight_raises_the_recall_of_a_rare_class(tmp_path, model):
    """One in eight is good; after a few steps a model predicts bad for all, unless errors on good weigh more."""
    rows = toy_tasks.rows("classify", 700)
    good, bad = ([row for row in rows if row["label"] == label] for label in ("good", "bad"))
    sets = {"train": toy_tasks.write_rows(tmp_path / "train.jsonl", good[:20] + bad[:140]),
            "dev": toy_tasks.write_rows(tmp_path / "dev.jsonl", good[20:50] + bad[140:170])}
    recalls = {}
    for name, values in (("plain", {}), ("weighed", {"balance": "1,40"})):
        tune(model, sets, tmp_path / name, values=values, epochs=2)
        lines = [json.loads(line) for line in (tmp_path / name / "dev.jsonl").read_text().splitlines()]
        recalls[name] = sum(line["prediction"]["label"] == "good" for line in lines if line["label"] == "good") / 30
    assert recalls["weighed"] > recalls["plain"] + 0.3, recalls
