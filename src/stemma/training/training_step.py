"""One training step as one module: network, heads and objectives, from a batch to its losses.

Whatever wraps a module can wrap this: DistributedDataParallel, FSDP, torch.compile. Some steps use some heads only
(tasks in turn, a batch of one task among several), so DistributedDataParallel takes `find_unused_parameters=True`, the
same for all recipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stemma.network.cache import State
from stemma.network.network import Network
from stemma.objectives.base import LossOutput, TrainableObjective
from stemma.objectives.batch import Batch
from stemma.training.hardware import autocast


class StepOutput(NamedTuple):
    """Of a batch, or of a slice of one: targets carry the whole step's total, so that slices add up."""

    total: Tensor  # (): what is minimised
    losses: dict[str, Tensor]  # by objective, and what parts of the network cost by themselves
    metrics: dict[str, Tensor]  # what the network tells of itself; of a slice, its share of the mean
    ratio_metrics: dict[str, tuple[Tensor, Tensor]]  # so many of so many, to be added up before one is divided by the
    #                                                  other
    state: State | None  # what the next batch goes on from


class TrainingStep(nn.Module):
    """`objectives`: all that are ever scored; a batch names those of its own (`TextBatch.objectives`)."""

    def __init__(self, network: Network, objectives: Sequence[TrainableObjective],
                 precision: torch.dtype = torch.float32):
        super().__init__()
        self.network, self.precision = network, precision
        self.objectives = {objective.name: objective for objective in objectives}

    def forward(self, batch: Batch, state: State | None = None) -> StepOutput:
        scored = LossOutput({})
        with autocast(next(iter(batch.streams.values())).device, self.precision):
            hidden = self.network.input_network(batch.streams, state)
            for name in batch.objectives:
                found = LossOutput.from_losses(self.objectives[name].loss(self.network, hidden, batch))
                scored = scored.merge(found)
                hidden = hidden if found.generator_samples is None else replace(hidden,
                    generator_samples=found.generator_samples)
        # a part's own cost is a mean over positions, of which a slice has its share of the rows
        costs = {name: cost * batch.row_fraction for name, cost in hidden.auxiliary_losses.items()}
        weighted = (scored.losses[name] * self.objectives[name].weight for name in batch.objectives)
        total = torch.stack([*weighted, *costs.values()]).sum()
        measures = {name: measure.float().nanmean() * batch.row_fraction for name, measure in hidden.metrics.items()}
        return StepOutput(total, {**scored.losses, **costs}, measures, scored.ratio_metrics, hidden.state)
