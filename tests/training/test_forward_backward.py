"""What one training step minimises, and when it reuses the memory, with artificial losses."""

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


class RecordingNetwork(nn.Module):
    """A network that records the states it gets. Its auxiliary loss is 7 x parameter."""

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


class LinearObjective:
    """An objective whose loss is slope x parameter x the fraction of the rows."""

    def __init__(self, name: str, slope: float, weight: float):
        self.name, self.slope, self.weight = name, slope, weight

    def loss(self, network, hidden, batch):
        return {self.name: self.slope * network.parameter * batch.num_rows / ROWS}


def forward_backward_of(*objectives: tuple[str, float, float], rows: int | None = None) -> ForwardBackward:
    return ForwardBackward(RecordingNetwork(), [LinearObjective(*spec) for spec in objectives],
                           SimpleNamespace(micro_batch_size=rows, z_loss=None), torch.device("cpu"), torch.float32)


def prepared(*objectives: tuple[str, float, float], continues: bool = False, feed: str = "0:6"):
    batch = Batch({"encoder": Stream(torch.zeros(ROWS, LENGTH, dtype=torch.int64), Causal())}, num_rows=ROWS,
                  continues_previous=continues)
    return SimpleNamespace(batch=batch, objectives=[LinearObjective(*spec) for spec in objectives], sampler_key=feed)


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_losses_are_weighted_in_the_total_and_reported_unweighted(rows):
    """As ELECTRA's discriminator, whose weight is 50."""
    tasks = ("generator", 2.0, 1.0), ("discriminator", 0.3, 50.0)
    forward_backward = forward_backward_of(*tasks, rows=rows)
    outcome = forward_backward.forward_backward(prepared(*tasks))
    assert forward_backward.training_step.network.parameter.grad.item() == pytest.approx(2 * 1 + 0.3 * 50 + 7)
    assert outcome.total == pytest.approx(2 * 1 + 0.3 * 50 + 7)
    assert outcome.losses == pytest.approx({"generator": 2.0, "discriminator": 0.3, "cost": 7.0})


@pytest.mark.parametrize("rows", [None, 2])
def test_memory_is_used_only_if_the_batch_continues_the_previous_one(rows):
    task = ("lm", 1.0, 1.0)
    forward_backward = forward_backward_of(task, rows=rows)
    states = forward_backward.training_step.network.states
    slices = 1 if rows is None else 2

    def step(**options) -> list[Memory | None]:
        states.clear()
        outcome = forward_backward.forward_backward(prepared(task, **options))
        forward_backward.store_memory(options.get("feed", "0:6"), outcome.memory)
        return states

    assert step(continues=True) == [None] * slices  # there is no memory yet
    used = step(continues=True)
    assert len(used) == slices and all(state is not None and state.length == 2 for state in used)
    assert [state.hidden_states[0][0, 0, 0].item() for state in used] == [1.0 + index for index in range(slices)]
    assert step(continues=False) == [None] * slices  # new text: the memory belongs to the old one
    assert step(continues=True, feed="1:6") == [None] * slices  # another sampler has its own memory
    assert all(state is not None for state in step(continues=True))
