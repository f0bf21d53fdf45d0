"""Losses and outputs of batches equal a slow reference: one sequence at a time, no padding, one head by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import toy_tasks
from torch.nn import functional

import stemma
from stemma.exchange.default_heads import default_task_heads
from stemma.exchange.input_templates import input_templates
from stemma.network.network import Network
from stemma.schema.task_options import parse_task_options
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import ChoiceExample, TextExample
from stemma.tasks.objectives.base import TaskObjective
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune_run import task_head_specs

TEXTS = ["the old clerk reads a letter", "our neighbour", "every scribe repairs the margin notes by the window",
         "the printer forgets seven pages before noon", "a", "an older manuscript for the archive"]


@pytest.fixture(scope="module", params=["bert@tiny", "roberta@tiny", "electra@tiny", "gpt2@tiny", "xlnet@tiny",
                                        "bart@tiny", "t5@tiny"])
def body(request, tmp_path_factory):
    two = ["network.decoder.layers=2"] if request.param in ("bart@tiny", "t5@tiny") else []
    return stemma.load(toy_tasks.save_model(tmp_path_factory.mktemp("body") / "model", request.param, *two))


def taught(body, kind: str, labels: tuple[str, ...] = (), **values) -> tuple[stemma.Model, TaskObjective]:
    """The model with a random head, and the task objective."""
    single, pair = input_templates(body.recipe.settings.corpus, body.tokenizer)
    values |= {"stack": "decoder"} if body.is_encoder_decoder else {}
    config = TaskConfig("task", kind, labels, default_task_heads(body, kind, len(labels) or 1, "task"), single, pair,
                        40, (), parse_task_options(kind, values))
    torch.manual_seed(3)
    network = Network(body.recipe.settings.network, body.network.vocab_size, task_head_specs({"task": config})).eval()
    network.load_state_dict(body.network.state_dict(), strict=False)
    model = replace(body, network=network, task_configs={"task": config})
    return model, build_task_objective(config, InputEncoder(model.require_tokenizer(), config.single, config.pair,
                                                            config.longest))


@torch.no_grad()
def score_alone(model, row) -> torch.Tensor:
    """(outputs,) of one row, with all positions computed."""
    parted = model.recipe.settings.network.embedding.segments > 1 or model.recipe.settings.network.attention.segments
    shifted = None
    if model.is_encoder_decoder:  # BART's decoder begins with the end token, T5's with padding
        start = {"BART": "end", "T5": "padding"}[model.recipe.title]
        shifted = torch.tensor([[model.tokenizer.special_token_ids[start], *row.input_ids[:-1]]])
    hidden = model.hidden(torch.from_numpy(row.input_ids)[None], None,
                          torch.from_numpy(row.segment_ids)[None] if parted else None, shifted)
    head = model.network.heads["task"]
    if "pooler" in model.task_configs["task"].heads:
        return head(model.network.pool(hidden))[0]
    return head(hidden, torch.tensor([len(row.input_ids)]))[0]


@torch.no_grad()
def loss_and_answers(model, learner, items):
    batch = learner.collate(model, items)
    hidden = model.network(batch.streams)
    batch_loss = learner.loss(model.network, hidden, batch)["task"]
    sliced = sum(float(learner.loss(model.network, model.network(part.streams), part)["task"])
                 for part in batch.slices(2))
    assert sliced == pytest.approx(float(batch_loss), abs=1e-5)  # a step in slices is the same step
    return float(batch_loss), learner.outputs(model.network, hidden, batch), batch


def test_classification_loss_and_probabilities_equal_the_reference(body):
    labels = ("a", "b", "c")
    model, learner = taught(body, "classify", labels, counts=[3, 1, 2])
    examples = [TextExample("", (text,), label) for text, label in zip(TEXTS, "abcab", strict=False)]
    examples.append(TextExample("", (TEXTS[5],), None))  # its answer is unknown, so it is not scored
    items = learner.encode(examples)
    alone = torch.stack([score_alone(model, item.sequences[0]) for item in items])
    loss, answers, batch = loss_and_answers(model, learner, items)
    np.testing.assert_allclose(np.stack(answers), alone.numpy(), atol=1e-5)
    assert loss == pytest.approx(float(functional.cross_entropy(alone[:5], torch.tensor([0, 1, 2, 0, 1]))), abs=1e-5)
    predictions = learner.postprocess(items, answers, examples)
    assert [one["label"] for one in predictions] == [labels[int(one.argmax())] for one in alone]
    for one, row in zip(predictions, alone.softmax(-1), strict=True):
        assert list(one["scores"]) == list(labels) and list(one["scores"].values()) == pytest.approx(row.tolist(),
                                                                                                     abs=1e-5)
    prior = np.log(np.array([4, 2, 3]) / 9)
    assert learner.baseline(batch, np.zeros(0))["task"] == pytest.approx(-prior[[0, 1, 2, 0, 1]].mean())


def test_class_weighted_loss_equals_the_reference(body):
    model, learner = taught(body, "classify", ("a", "b"), counts=[4, 1], balance=[0.5, 3.0])
    examples = [TextExample("", (text,), label) for text, label in zip(TEXTS, "aaaab", strict=False)]
    items = learner.encode(examples)
    alone = torch.stack([score_alone(model, item.sequences[0]) for item in items])
    expected = functional.cross_entropy(alone, torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0.5, 3.0]))
    assert loss_and_answers(model, learner, items)[0] == pytest.approx(float(expected), abs=1e-5)


def test_regression_on_pairs_equals_the_reference(body):
    model, learner = taught(body, "regress", spread=2.0)
    examples = [TextExample("", (TEXTS[index], TEXTS[index - 1]), float(index)) for index in range(6)]
    items = learner.encode(examples)
    alone = torch.stack([score_alone(model, item.sequences[0]) for item in items])[:, 0]
    loss, answers, batch = loss_and_answers(model, learner, items)
    assert loss == pytest.approx(float(((alone - torch.arange(6.0)) ** 2).mean()), abs=1e-4)
    assert [one["score"] for one in learner.postprocess(items, answers, examples)] == pytest.approx(alone.tolist(),
                                                                                                    abs=1e-5)
    assert learner.baseline(batch, np.zeros(0))["task"] == 4.0


def test_multiple_choice_equals_the_reference(body):
    model, learner = taught(body, "choice")
    examples = [ChoiceExample("", "the old clerk reads", "what then?", (TEXTS[1], TEXTS[3], TEXTS[2]), 2),
                ChoiceExample("", "", "who?", (TEXTS[1], TEXTS[4], TEXTS[0]), 0)]
    items = learner.encode(examples)
    spell = model.require_tokenizer().decode
    assert "what then" in spell(items[0].sequences[1].input_ids).lower()
    assert "what then" not in spell(items[1].sequences[0].input_ids).lower()
    alone = torch.stack([torch.cat([score_alone(model, row) for row in item.sequences]) for item in items])
    loss, answers, batch = loss_and_answers(model, learner, items)
    assert loss == pytest.approx(float(functional.cross_entropy(alone, torch.tensor([2, 0]))), abs=1e-5)
    assert [one["label"] for one in learner.postprocess(items, answers, examples)] == alone.argmax(1).tolist()
    assert learner.baseline(batch, np.zeros(0))["task"] == pytest.approx(math.log(3))


def test_ranking_with_negatives_of_the_same_query_equals_the_reference(body):
    model, learner = taught(body, "rank", others=2)
    candidates = [("leaf", 0, 1), ("leaf", 1, 0), ("leaf", 2, 0), ("leaf", 3, 0), ("noon", 4, 1), ("river", 5, 0),
            ("lamp", 0, 1), ("lamp", 1, 0)]
    examples = [TextExample("", (query, TEXTS[text]), str(label)) for query, text, label in candidates]
    lessons = learner.encode_training(examples)
    assert [item.example_index for item in lessons] == [0, 6]  # "noon" has no other, "river" nothing good
    single = learner.encode(examples)
    rows = {tuple(item.sequences[0].input_ids.tolist()): index for index, item in enumerate(single)}
    drawn = [[rows[tuple(row.input_ids.tolist())] for row in item.sequences] for item in lessons]
    assert drawn[0][0] == 0 and set(drawn[0][1:]) < {1, 2, 3} and len(set(drawn[0])) == 3
    assert drawn[1] == [6, 7, 7]  # fewer than asked for: they come twice
    alone = torch.stack([torch.cat([score_alone(model, row) for row in item.sequences]) for item in lessons])
    loss, _, _ = loss_and_answers(model, learner, lessons)
    assert loss == pytest.approx(float(-alone.log_softmax(1)[:, 0].mean()), abs=1e-5)


def test_a_long_text_is_truncated_and_an_empty_one_encoded(body):
    model, learner = taught(body, "classify", ("a", "b"), counts=[1, 1])
    items = learner.encode([TextExample("", ("clerk " * 30_000,), "a"), TextExample("", ("",), None)])
    assert len(items[0].sequences[0].input_ids) == 40 and learner.input_encoder.num_truncated == 1
    answers = loss_and_answers(model, learner, items)[1]
    assert np.isfinite(np.stack(answers)).all()
