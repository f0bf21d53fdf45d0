"""What one step minimises, and what it remembers, with losses that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stemma.network.cache import Memory
from stemma.network.inputs_outputs import NetworkOutput, Stream
from stemma.objectives import Batch
from stemma.training.forward_backward import ForwardBackward
from stemma.visibility import Causal

ROWS, LENGTH = 4, 6


class Noting(nn.Module):
    """A network that only notes what it is handed: 7 x parameter is its own cost, a mean over positions."""

    def __init__(self):
        super().__init__()
        self.embedding, self.input_network = SimpleNamespace(tokens=None), self.read
        self.parameter = nn.Parameter(torch.ones(()))
        self.states: list[Memory | None] = []

    def read(self, streams, state):
        self.states.append(state)
        rows = len(streams["encoder"].input_ids)
        return NetworkOutput({}, auxiliary_losses={"cost": 7 * self.parameter},
                      state=Memory((torch.full((rows, 2, 3), float(len(self.states))),)))


class Sloped:
    """A task that loses its slope x parameter x its share of the rows."""

    def __init__(self, name: str, slope: float, weight: float):
        self.name, self.slope, self.weight = name, slope, weight

    def loss(self, network, hidden, batch):
        return {self.name: self.slope * network.parameter * batch.num_rows / ROWS}


def passes_of(*objectives: tuple[str, float, float], rows: int | None = None) -> ForwardBackward:
    return ForwardBackward(Noting(), [Sloped(*one) for one in objectives], SimpleNamespace(micro_batch_size=rows),
                  torch.device("cpu"), torch.float32)


def prepared(*objectives: tuple[str, float, float], continues: bool = False, feed: str = "0:6"):
    batch = Batch({"encoder": Stream(torch.zeros(ROWS, LENGTH, dtype=torch.int64), Causal())}, num_rows=ROWS,
                  continues_previous=continues)
    return SimpleNamespace(batch=batch, objectives=[Sloped(*one) for one in objectives], sampler_key=feed)


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_a_loss_counts_as_often_as_its_weight_says(rows):
    """ELECTRA's discriminator: 50 times. What is told of a loss is the loss itself."""
    tasks = ("generator", 2.0, 1.0), ("discriminator", 0.3, 50.0)
    passes = passes_of(*tasks, rows=rows)
    outcome = passes.forward_backward(prepared(*tasks))
    assert passes.training_step.network.parameter.grad.item() == pytest.approx(2 * 1 + 0.3 * 50 + 7)
    assert outcome.total == pytest.approx(2 * 1 + 0.3 * 50 + 7)
    assert outcome.losses == pytest.approx({"generator": 2.0, "discriminator": 0.3, "cost": 7.0})


@pytest.mark.parametrize("rows", [None, 2])
def test_memory_is_used_only_if_the_batch_continues_the_previous_one(rows):
    task = ("lm", 1.0, 1.0)
    passes = passes_of(task, rows=rows)
    states = passes.training_step.network.states
    slices = 1 if rows is None else 2

    def step(**options) -> list[Memory | None]:
        states.clear()
        passes.store_memory(options.get("feed", "0:6"), passes.forward_backward(prepared(task, **options)).memory)
        return states

    assert step(continues=True) == [None] * slices  # nothing was read before
    seen = step(continues=True)
    assert len(seen) == slices and all(state is not None and state.length == 2 for state in seen)
    assert [state.hidden_states[0][0, 0, 0].item() for state in seen] == [1.0 + number for number in range(slices)]
    assert step(continues=False) == [None] * slices  # a new text: what was read before is another one
    assert step(continues=True, feed="1:6") == [None] * slices  # and another feed has its own
    assert all(state is not None for state in step(continues=True))
