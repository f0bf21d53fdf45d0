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


def item(length: int, index: int, rows: int = 1, answer: int | None = 0) -> EncodedExample:
    row = EncodedSequence(np.full(length, 5), np.zeros(length, np.int64), ((0, length),))
    return EncodedExample((row,) * rows, answer, index)


class Reader:
    """An objective whose batches only record the indices of their examples."""

    name, weight = "task", 1.0

    def collate(self, model, items):
        return Batch({}, {}, {}, 1, len(items), lengths=torch.tensor([item.example_index for item in items]))


HERE = SimpleNamespace(device=torch.device("cpu"))


def numbers_in(batch: Batch) -> list[int]:
    return batch.lengths.tolist()


def items_of(count: int, seed: int = 0) -> list[EncodedExample]:
    rng = np.random.default_rng(seed)
    return [item(int(rng.integers(3, 200)), index, rows=int(rng.choice([1, 1, 1, 3]))) for index in range(count)]


def test_an_epoch_has_every_example_once():
    items = items_of(3000)
    batches = batch_indices(items, 16, np.random.default_rng(0))
    assert sorted(np.concatenate(batches).tolist()) == list(range(3000))
    assert all(len({len(items[index].sequences) for index in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == 16 and np.mean([len(batch) for batch in batches]) > 15.5
    assert len(batches) == len(batch_indices(items, 16, None)) == sum(
        -(-count // 16) for count in np.unique([len(item.sequences) for item in items], return_counts=True)[1])


def test_batches_are_not_bucketed_by_length():
    """If the label depends on the length, a batch of equally long rows would have one label only."""
    items = items_of(3000)
    means = [np.mean([items[index].length for index in batch])
             for batch in batch_indices(items, 32, np.random.default_rng(0))]
    chance = np.std([item.length for item in items]) / np.sqrt(32)
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
    positions = [position for position, learner in enumerate(order) if learner is lessons[0].objective]
    assert 8 <= len(positions) <= 14 and max(positions) - min(positions) > len(order) / 2


def test_inference_covers_every_example_in_bounded_batches():
    items = items_of(500, 3)
    seen = []
    for indices, batch in inference_batches(None, Reader(), items):
        assert numbers_in(batch) == indices and batch.held_out
        batch_items = [items[index] for index in indices]
        assert len({len(item.sequences) for item in batch_items}) == 1
        positions = max(item.length for item in batch_items) * sum(len(item.sequences) for item in batch_items)
        assert positions <= 8192
        seen += indices
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
    """Long and short texts in batches of very different sizes."""
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
    config = model.task_config()
    learner = build_task_objective(config, input_encoder_for(config, model.require_tokenizer()))
    losses = []
    for item in learner.encode(read_split(tmp_path / "run", "dev", config)):
        batch = learner.collate(model, [item])
        with torch.no_grad():
            losses.append(float(learner.loss(model.network, model.network(batch.streams), batch)["task"]))
    assert result["validation_loss"] == pytest.approx(np.mean(losses), abs=1e-3)


@pytest.mark.parametrize("name", ["xlnet@tiny", "gpt2@tiny"])
def test_sequences_of_different_lengths_work_with_recurrent_memory(tmp_path, name):
    """Examples are independent, so the memory is not carried over."""
    from stemma.tasks.runs.finetune import TaskArguments, finetune

    train = toy_tasks.rows("classify", 32)
    for index, row in enumerate(train):
        row["text"] += " and the old clerk reads" * (index % 4)
    files = {"train": toy_tasks.write_rows(tmp_path / "train.jsonl", train),
             "dev": toy_tasks.write_rows(tmp_path / "dev.jsonl", train[:4])}
    folder = toy_tasks.save_model(tmp_path / "model", name)
    result = finetune(TaskArguments("classify", files), folder, tmp_path / "run", steps=2,
                      changes=["training.batch_size=16", "training.threads=1"])
    assert result["steps"] == 2 and np.isfinite(result["loss"])
