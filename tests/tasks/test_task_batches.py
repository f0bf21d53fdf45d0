"""Batches of examples: every one once an epoch, of any length, the same whenever the run is taken up again."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toy_tasks

import stemma
from stemma.objectives.batch import Batch, Target
from stemma.tasks.batches import Lesson, Lessons, batches_of, evened, reading_batches
from stemma.tasks.layout import Row
from stemma.tasks.learner import Item


def item(length: int, number: int, rows: int = 1, answer: int | None = 0) -> Item:
    row = Row(np.full(length, 5), np.zeros(length, np.int64), ((0, length),))
    return Item((row,) * rows, answer, number)


class Reader:
    """A learner whose batches only note which items it was given."""

    name, weight = "task", 1.0

    def batch(self, model, items):
        return Batch({}, {}, {}, 1, len(items), lengths=torch.tensor([one.number for one in items]))


HERE = SimpleNamespace(device=torch.device("cpu"))


def numbers_in(batch: Batch) -> list[int]:
    return batch.lengths.tolist()


def items_of(count: int, seed: int = 0) -> list[Item]:
    rng = np.random.default_rng(seed)
    return [item(int(rng.integers(3, 200)), number, rows=int(rng.choice([1, 1, 1, 3]))) for number in range(count)]


def test_an_epoch_has_every_example_once():
    items = items_of(3000)
    batches = batches_of(items, 16, np.random.default_rng(0))
    assert sorted(np.concatenate(batches).tolist()) == list(range(3000))
    assert all(len({len(items[number].rows) for number in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == 16 and np.mean([len(batch) for batch in batches]) > 15.5
    assert len(batches) == len(batches_of(items, 16, None)) == sum(
        -(-count // 16) for count in np.unique([len(one.rows) for one in items], return_counts=True)[1])


def test_batches_are_not_chosen_by_length():
    """Where the answer goes with the length, a batch of like rows would have one answer only."""
    items = items_of(3000)
    means = [np.mean([items[number].length for number in batch])
             for batch in batches_of(items, 32, np.random.default_rng(0))]
    chance = np.std([one.length for one in items]) / np.sqrt(32)
    assert len(means) > 60 and np.std(means) < 1.3 * chance


def test_orders_differ_by_epoch_and_seed_and_by_nothing_else():
    items = items_of(200)
    lesson = Lesson(Reader(), items, [], 8)

    def taken(seed: int, steps: int, source: Lessons | None = None) -> list[list[int]]:
        source = source or Lessons(HERE, [lesson], seed, 200)
        return [numbers_in(source.take(step, 0, 0.0).batch) for step in range(steps)]

    steps = Lessons(HERE, [lesson], 0, 200).steps_in_epoch()
    first = taken(0, 2 * steps)
    assert first == taken(0, 2 * steps) != taken(1, 2 * steps)
    assert sorted(sum(first[:steps], [])) == sorted(sum(first[steps:], [])) == list(range(200))
    assert first[:steps] != first[steps:]
    for stop in (1, steps - 1, steps, steps + 3):
        before = Lessons(HERE, [lesson], 0, 200)
        for step in range(stop):
            positions = before.take(step, 0, 0.0).positions
        after = Lessons(HERE, [lesson], 0, 200)
        after.restore(positions)
        assert taken(0, 2 * steps - stop, after) == first[stop:]


def test_batches_of_several_tasks_come_mixed():
    lessons = [Lesson(Reader(), items_of(count, count), [], 4) for count in (40, 80)]
    source = Lessons(HERE, lessons, 0, 200)
    order = [source.take(step, 0, 0.0).objectives[0] for step in range(source.steps_in_epoch())]
    places = [place for place, learner in enumerate(order) if learner is lessons[0].learner]
    assert 8 <= len(places) <= 14 and max(places) - min(places) > len(order) / 2


def test_reading_takes_everything_in_bounded_batches():
    items = items_of(500, 3)
    seen = []
    for numbers, given in reading_batches(None, Reader(), items):
        assert numbers_in(given) == numbers and given.held_out
        chosen = [items[number] for number in numbers]
        assert len({len(one.rows) for one in chosen}) == 1
        places = max(one.length for one in chosen) * sum(len(one.rows) for one in chosen)
        assert places <= 8192
        seen += numbers
    assert sorted(seen) == list(range(500))


def test_the_mean_over_uneven_batches_is_that_over_examples():
    values = np.random.default_rng(0).random(10)
    parts = [values[:1], values[1:8], values[8:]]
    batches = [Batch({}, {}, {"task": Target(None, part, float(len(part)))}) for part in parts]
    losses = [batch.labels["task"].labels.sum() / batch.labels["task"].total for batch in evened(batches)]
    assert np.mean(losses) == pytest.approx(values.mean())
    assert evened([]) == []


def test_held_out_loss_is_that_of_each_example_alone(tmp_path):
    """Through the loop: long and short texts in batches of very different sizes."""
    from stemma.tasks import batches
    from stemma.tasks.learners import build_learner
    from stemma.tasks.learning import layout_of, read_lines
    from stemma.tasks.prepare import Task, finetune

    folder = toy_tasks.save_model(tmp_path / "model")
    train, dev = toy_tasks.rows("classify", 20), toy_tasks.rows("classify", 9, 1)
    dev[0]["text"] += " and the old clerk reads" * 6
    files = {"train": toy_tasks.write_rows(tmp_path / "train.jsonl", train),
             "dev": toy_tasks.write_rows(tmp_path / "dev.jsonl", dev)}
    limit, batches.READING = batches.READING, 120
    try:
        result = finetune(Task("classify", files), folder, tmp_path / "run", steps=2, changes=toy_tasks.FAST)
    finally:
        batches.READING = limit
    model = stemma.load(tmp_path / "run")
    card = model.card()
    learner = build_learner(card, layout_of(card, model.needs_tokenizer()))
    losses = []
    for one in learner.items(read_lines(tmp_path / "run", "dev", card)):
        batch = learner.batch(model, [one])
        with torch.no_grad():
            losses.append(float(learner.loss(model.network, model.network(batch.streams), batch)["task"]))
    assert result["validation_loss"] == pytest.approx(np.mean(losses), abs=1e-3)


@pytest.mark.parametrize("name", ["xlnet@tiny", "gpt2@tiny"])
def test_rows_of_different_lengths_suit_networks_that_remember(tmp_path, name):
    """A memory is for text that goes on; examples do not."""
    from stemma.tasks.prepare import Task, finetune

    train = toy_tasks.rows("classify", 32)
    for number, row in enumerate(train):
        row["text"] += " and the old clerk reads" * (number % 4)
    files = {"train": toy_tasks.write_rows(tmp_path / "train.jsonl", train),
             "dev": toy_tasks.write_rows(tmp_path / "dev.jsonl", train[:4])}
    folder = toy_tasks.save_model(tmp_path / "model", name)
    result = finetune(Task("classify", files), folder, tmp_path / "run", steps=2,
                      changes=["training.batch_size=16", "training.threads=1"])
    assert result["steps"] == 2 and np.isfinite(result["loss"])
