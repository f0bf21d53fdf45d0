"""The fine-tuning loader: every example once per epoch, of any length, and the same order after resume."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toy_tasks

import stemma
from stemma.objectives.batch import Batch, Target
from stemma.tasks.objectives.base import EncodedExample
from stemma.tasks.objectives.input_encoder import EncodedSequence
from stemma.tasks.runs.finetune_loader import (
    FinetuneLoader,
    TaskDataset,
    batch_indices,
    equalize_totals,
    inference_batches,
)


def item(length: int, number: int, rows: int = 1, answer: int | None = 0) -> EncodedExample:
    row = EncodedSequence(np.full(length, 5), np.zeros(length, np.int64), ((0, length),))
    return EncodedExample((row,) * rows, answer, number)


class Reader:
    """A learner whose batches only note which items it was given."""

    name, weight = "task", 1.0

    def collate(self, model, items):
        return Batch({}, {}, {}, 1, len(items), lengths=torch.tensor([one.example_index for one in items]))


HERE = SimpleNamespace(device=torch.device("cpu"))


def numbers_in(batch: Batch) -> list[int]:
    return batch.lengths.tolist()


def items_of(count: int, seed: int = 0) -> list[EncodedExample]:
    rng = np.random.default_rng(seed)
    return [item(int(rng.integers(3, 200)), number, rows=int(rng.choice([1, 1, 1, 3]))) for number in range(count)]


def test_an_epoch_has_every_example_once():
    items = items_of(3000)
    batches = batch_indices(items, 16, np.random.default_rng(0))
    assert sorted(np.concatenate(batches).tolist()) == list(range(3000))
    assert all(len({len(items[number].sequences) for number in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == 16 and np.mean([len(batch) for batch in batches]) > 15.5
    assert len(batches) == len(batch_indices(items, 16, None)) == sum(
        -(-count // 16) for count in np.unique([len(one.sequences) for one in items], return_counts=True)[1])


def test_batches_are_not_bucketed_by_length():
    """Where the answer goes with the length, a batch of like rows would have one answer only."""
    items = items_of(3000)
    means = [np.mean([items[number].length for number in batch])
             for batch in batch_indices(items, 32, np.random.default_rng(0))]
    chance = np.std([one.length for one in items]) / np.sqrt(32)
    assert len(means) > 60 and np.std(means) < 1.3 * chance


def test_the_order_depends_only_on_epoch_and_seed():
    items = items_of(200)
    lesson = TaskDataset(Reader(), items, [], 8)

    def taken(seed: int, steps: int, source: FinetuneLoader | None = None) -> list[list[int]]:
        source = source or FinetuneLoader(HERE, [lesson], seed, 200)
        return [numbers_in(source.get_batch(step, 0, 0.0).batch) for step in range(steps)]

    steps = FinetuneLoader(HERE, [lesson], 0, 200).steps_in_epoch()
    first = taken(0, 2 * steps)
    assert first == taken(0, 2 * steps) != taken(1, 2 * steps)
    assert sorted(sum(first[:steps], [])) == sorted(sum(first[steps:], [])) == list(range(200))
    assert first[:steps] != first[steps:]
    for stop in (1, steps - 1, steps, steps + 3):
        before = FinetuneLoader(HERE, [lesson], 0, 200)
        for step in range(stop):
            positions = before.get_batch(step, 0, 0.0).cursors
        after = FinetuneLoader(HERE, [lesson], 0, 200)
        after.restore(positions)
        assert taken(0, 2 * steps - stop, after) == first[stop:]


def test_batches_of_several_tasks_are_mixed():
    lessons = [TaskDataset(Reader(), items_of(count, count), [], 4) for count in (40, 80)]
    source = FinetuneLoader(HERE, lessons, 0, 200)
    order = [source.get_batch(step, 0, 0.0).objectives[0] for step in range(source.steps_in_epoch())]
    places = [place for place, learner in enumerate(order) if learner is lessons[0].objective]
    assert 8 <= len(places) <= 14 and max(places) - min(places) > len(order) / 2


def test_inference_covers_every_example_in_bounded_batches():
    items = items_of(500, 3)
    seen = []
    for numbers, given in inference_batches(None, Reader(), items):
        assert numbers_in(given) == numbers and given.held_out
        chosen = [items[number] for number in numbers]
        assert len({len(one.sequences) for one in chosen}) == 1
        places = max(one.length for one in chosen) * sum(len(one.sequences) for one in chosen)
        assert places <= 8192
        seen += numbers
    assert sorted(seen) == list(range(500))


def test_the_mean_over_uneven_batches_is_that_over_examples():
    values = np.random.default_rng(0).random(10)
    parts = [values[:1], values[1:8], values[8:]]
    batches = [Batch({}, {}, {"task": Target(None, part, float(len(part)))}) for part in parts]
    losses = [batch.row_targets["task"].labels.sum() / batch.row_targets["task"].denominator
              for batch in equalize_totals(batches)]
    assert np.mean(losses) == pytest.approx(values.mean())
    assert equalize_totals([]) == []


def test_held_out_loss_is_that_of_each_example_alone(tmp_path):
    """Through the loop: long and short texts in batches of very different sizes."""
    from stemma.tasks.runs import finetune_loader
    from stemma.tasks.runs.build_objective import build_task_objective
    from stemma.tasks.runs.finetune import TaskArguments, finetune
    from stemma.tasks.runs.finetune_run import input_encoder_for, read_split

    folder = toy_tasks.save_model(tmp_path / "model")
    train, dev = toy_tasks.rows("classify", 20), toy_tasks.rows("classify", 9, 1)
    dev[0]["text"] += " and the old clerk reads" * 6
    files = {"train": toy_tasks.write_rows(tmp_path / "train.jsonl", train),
             "dev": toy_tasks.write_rows(tmp_path / "dev.jsonl", dev)}
    limit, finetune_loader.INFERENCE_TOKENS = finetune_loader.INFERENCE_TOKENS, 120
    try:
        result = finetune(TaskArguments("classify", files), folder, tmp_path / "run", steps=2, changes=toy_tasks.FAST)
    finally:
        finetune_loader.INFERENCE_TOKENS = limit
    model = stemma.load(tmp_path / "run")
    card = model.task_config()
    learner = build_task_objective(card, input_encoder_for(card, model.require_tokenizer()))
    losses = []
    for one in learner.encode(read_split(tmp_path / "run", "dev", card)):
        batch = learner.collate(model, [one])
        with torch.no_grad():
            losses.append(float(learner.loss(model.network, model.network(batch.streams), batch)["task"]))
    assert result["validation_loss"] == pytest.approx(np.mean(losses), abs=1e-3)


@pytest.mark.parametrize("name", ["xlnet@tiny", "gpt2@tiny"])
def test_sequences_of_different_lengths_work_with_recurrent_memory(tmp_path, name):
    """A memory is for text that goes on; examples do not."""
    from stemma.tasks.runs.finetune import TaskArguments, finetune

    train = toy_tasks.rows("classify", 32)
    for number, row in enumerate(train):
        row["text"] += " and the old clerk reads" * (number % 4)
    files = {"train": toy_tasks.write_rows(tmp_path / "train.jsonl", train),
             "dev": toy_tasks.write_rows(tmp_path / "dev.jsonl", train[:4])}
    folder = toy_tasks.save_model(tmp_path / "model", name)
    result = finetune(TaskArguments("classify", files), folder, tmp_path / "run", steps=2,
                      changes=["training.batch_size=16", "training.threads=1"])
    assert result["steps"] == 2 and np.isfinite(result["loss"])
