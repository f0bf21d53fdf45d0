"""One training step as one module: network, heads and objectives, from a batch to its losses.

DistributedDataParallel, FSDP and torch.compile can wrap it. Some steps use only some heads (alternating objectives or
tasks), so DistributedDataParallel needs `find_unused_parameters=True` for all recipes.
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
    """Losses of a batch or of a slice; targets carry the denominator of the whole step, so that slices add up."""

    total: Tensor  # (): the loss to minimize
    losses: dict[str, Tensor]  # by objective, with the auxiliary losses of the network
    metrics: dict[str, Tensor]  # metrics of the network; of a slice, its fraction of the mean
    ratio_metrics: dict[str, tuple[Tensor, Tensor]]  # numerator and denominator, summed before dividing
    state: State | None  # memory for the next batch


class TrainingStep(nn.Module):
    """`objectives`: all objectives of the run; a batch names its own (`Batch.objectives`)."""

    def __init__(self, network: Network, objectives: Sequence[TrainableObjective],
                 precision: torch.dtype = torch.float32):
        super().__init__()
        self.network, self.precision = network, precision
        self.objectives = {objective.name: objective for objective in objectives}

    def forward(self, batch: Batch, state: State | None = None) -> StepOutput:
        result = LossOutput({})
        with autocast(next(iter(batch.streams.values())).device, self.precision):
            network_output = self.network.input_network(batch.streams, state)
            for name in batch.objectives:
                output = LossOutput.from_losses(self.objectives[name].loss(self.network, network_output, batch))
                result = result.merge(output)
                if output.generator_samples is not None:
                    network_output = replace(network_output, generator_samples=output.generator_samples)
        # An auxiliary loss is a mean over positions; a slice contributes its fraction of the rows.
        auxiliary = {name: loss * batch.row_fraction for name, loss in network_output.auxiliary_losses.items()}
        weighted = (result.losses[name] * self.objectives[name].weight for name in batch.objectives)
        total = torch.stack([*weighted, *auxiliary.values()]).sum()
        metrics = {name: metric.float().nanmean() * batch.row_fraction
                   for name, metric in network_output.metrics.items()}
        return StepOutput(total, {**result.losses, **auxiliary}, metrics, result.ratio_metrics, network_output.state)
