"""What one step minimises, and what it remembers, with losses that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from stemma.network.state import Memory
from stemma.network.streams import Stream
from stemma.objectives import Batch
from stemma.training.passes import Passes
from stemma.visibility import Causal

ROWS, LENGTH = 4, 6


class Told(Passes):
    """Passes whose network only notes what it is handed."""

    def __init__(self, rows: int | None = None):
        network = SimpleNamespace(embedding=SimpleNamespace(tokens=None), generator=None)
        super().__init__(network, SimpleNamespace(micro_batch_size=rows), torch.device("cpu"), torch.float32)
        self.parameter = torch.ones((), requires_grad=True)
        self.states: list[Memory | None] = []

    def losses(self, objectives, batch, state):
        """Of a task with the slope s: s x parameter x its share of the rows; and 7 x parameter, a mean over places."""
        self.states.append(state)
        share = batch.rows / ROWS
        hidden = SimpleNamespace(auxiliary={"cost": 7 * self.parameter}, measures={}, shares={},
                                 state=Memory((torch.full((batch.rows, 2, 3), float(len(self.states))),)))
        return {one.name: one.slope * self.parameter * share for one in objectives}, hidden


def prepared(*objectives: tuple[str, float, float], continues: bool = False, feed: str = "0:6"):
    batch = Batch({"encoder": Stream(torch.zeros(ROWS, LENGTH, dtype=torch.int64), Causal())}, rows=ROWS,
                  continues=continues)
    tasks = tuple(SimpleNamespace(name=name, slope=slope, weight=weight) for name, slope, weight in objectives)
    return SimpleNamespace(batch=batch, objectives=tasks, feed=feed)


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_a_loss_counts_as_often_as_its_weight_says(rows):
    """ELECTRA's discriminator: 50 times. What is told of a loss is the loss itself."""
    passes = Told(rows)
    outcome = passes.train(prepared(("generator", 2.0, 1.0), ("discriminator", 0.3, 50.0)))
    assert passes.parameter.grad.item() == pytest.approx(2 * 1 + 0.3 * 50 + 7)
    assert outcome.total == pytest.approx(2 * 1 + 0.3 * 50 + 7)
    assert outcome.losses == pytest.approx({"generator": 2.0, "discriminator": 0.3, "cost": 7.0})


@pytest.mark.parametrize("rows", [None, 2])
def test_a_memory_is_kept_only_where_the_batch_goes_on(rows):
    passes, task = Told(rows), ("lm", 1.0, 1.0)
    slices = 1 if rows is None else 2

    def step(**options) -> list[Memory | None]:
        passes.states.clear()
        passes.remember(options.get("feed", "0:6"), passes.train(prepared(task, **options)).memory)
        return passes.states

    assert step(continues=True) == [None] * slices  # nothing was read before
    seen = step(continues=True)
    assert len(seen) == slices and all(state is not None and state.length == 2 for state in seen)
    assert [state.layers[0][0, 0, 0].item() for state in seen] == [1.0 + number for number in range(slices)]
    assert step(continues=False) == [None] * slices  # a new text: what was read before is another one
    assert step(continues=True, feed="1:6") == [None] * slices  # and another feed has its own
    assert all(state is not None for state in step(continues=True))
