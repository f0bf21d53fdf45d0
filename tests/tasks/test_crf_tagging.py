"""Tagging with a CRF, on any model: loss and predictions against enumeration, and runs up to an ensemble."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import toy_tasks
from closeness import assert_close
from conftest import SEED
from literal import crf as literal

import stemma
from stemma.errors import UserError
from stemma.network.crf import TagTransitions
from stemma.tasks.data.examples import TaggedExample
from stemma.tasks.objectives.crf_tagging import CRFTaggingObjective
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.finetune_run import input_encoder_for, predict_examples, read_split
from stemma.tasks.runs.sweep import Sweep

CRF = "finetuning.crf=true"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return toy_tasks.save_model(tmp_path_factory.mktemp("start") / "model", vocabulary=320)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, start):
    folder = tmp_path_factory.mktemp("tuned")
    sets = toy_tasks.write_sets(folder, "tag", 120, 30)
    return folder / "run", finetune(TaskArguments("tag", sets), start, folder / "run", epochs=5, seed=SEED,
                                    changes=[*toy_tasks.FAST, CRF])


def test_a_tagger_with_a_crf_learns_and_is_stored(tuned):
    run, result = tuned
    assert result["metrics"]["dev"]["f1"] >= 0.8 and result["validation_loss"] < result["unigram_loss"]
    model = stemma.load(run)
    config = model.task_config()
    assert isinstance(config.heads["task_crf"], TagTransitions)
    assert model.network.head("task_crf").pairs.abs().max() > 1e-3  # the transitions are trained
    objective = build_task_objective(config, input_encoder_for(config, model.require_tokenizer()))
    stored = [json.loads(line)["prediction"] for line in (run / "dev.jsonl").open()]
    assert_close(json.loads(json.dumps(predict_examples(model, objective, read_split(run, "dev", config)))), stored)


def test_loss_and_predictions_equal_enumeration(tuned):
    model = stemma.load(tuned[0])
    config = replace(model.task_config(), longest=12)
    objective = build_task_objective(config, input_encoder_for(config, model.require_tokenizer()))
    assert isinstance(objective, CRFTaggingObjective)
    head, transitions = model.network.head("task"), model.network.head("task_crf")
    with torch.no_grad():  # so that neighbouring tags matter
        transitions.pairs.copy_(2 * torch.randn(transitions.pairs.shape, generator=torch.Generator().manual_seed(3)))
    sentences = [("the", "old", "clerk"), ("\u200b", "a", "librarian"), ("noon",)]
    examples = [TaggedExample("", words, tuple(config.labels[index % 3] for index in range(len(words))))
                for words in sentences]
    items = objective.encode(examples)
    batch = objective.collate(model, items)
    total, predictions = 0.0, predict_examples(model, objective, examples)
    for item, prediction in zip(items, predictions, strict=True):
        ids = torch.from_numpy(item.sequences[0].input_ids)[None]
        emissions = head(model.hidden(ids))[0, item.decode_info[0]].detach().double()
        arguments = (emissions, *(tensor.detach().double() for tensor in
                                  (transitions.pairs, transitions.first, transitions.last)))
        total += float(literal.loss(*arguments, tuple(item.target)))
        best, probabilities = literal.best(*arguments), literal.tag_probabilities(*arguments)
        words = item.decode_info[1]
        assert [prediction["tags"][word] for word in words] == [config.labels[tag] for tag in best]
        scores = [prediction["scores"][word] for word in words]
        assert scores == pytest.approx([row[tag] for row, tag in zip(probabilities, best, strict=True)], abs=1e-4)
    for parts in ([batch], batch.slices(1)):
        result = sum(float(objective.loss(model.network, model.network(part.streams), part)["task"].detach())
                     for part in parts)
        assert result == pytest.approx(total / sum(len(item.target) for item in items), abs=1e-4)


def test_an_ensemble_and_frozen_features_take_a_crf(tmp_path, start):
    sets = toy_tasks.write_sets(tmp_path, "tag", 40, 12)
    result = finetune(TaskArguments("tag", sets, features="all"), start, tmp_path / "run", steps=3, seed=SEED,
                      changes=[CRF], trials=Sweep((), 2, ensemble=True))
    assert 0 <= result["ensemble"]["dev"]["f1"] <= 1


def test_tags_of_another_task_have_other_transitions(tmp_path, tuned):
    rows = [{"words": row["words"], "tags": ["X" if tag == "O" else "Y" for tag in row["tags"]]}
            for row in toy_tasks.rows("tag", 40)]
    sets = {split: toy_tasks.write_rows(tmp_path / f"{split}.jsonl", rows) for split in ("train", "dev")}
    result = finetune(TaskArguments("tag", sets), tuned[0], tmp_path / "run", steps=1, seed=SEED, changes=[CRF])
    assert result["metrics"]["dev"]["accuracy"] >= 0


def test_class_weights_are_refused(tmp_path, start):
    sets = toy_tasks.write_sets(tmp_path, "tag", 20, 10)
    with pytest.raises(UserError, match=r"finetuning\.crf=false"):
        finetune(TaskArguments("tag", sets, values={"balance": "balanced"}), start, tmp_path / "run", changes=[CRF])
