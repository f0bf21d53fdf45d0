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

from stemma.network.network import Network
from stemma.network.state import State
from stemma.objectives.base import Scored, Scoring
from stemma.objectives.batch import Batch
from stemma.training.precision import autocast


class StepOutput(NamedTuple):
    """Of a batch, or of a slice of one: targets carry the whole step's total, so that slices add up."""

    total: Tensor  # (): what is minimised
    losses: dict[str, Tensor]  # by objective, and what parts of the network cost by themselves
    measures: dict[str, Tensor]  # what the network tells of itself; of a slice, its share of the mean
    counts: dict[str, tuple[Tensor, Tensor]]  # so many of so many, to be added up before one is divided by the other
    state: State | None  # what the next batch goes on from


class TrainingStep(nn.Module):
    """`objectives`: all that are ever scored; a batch names those of its own (`Batch.tasks`)."""

    def __init__(self, network: Network, objectives: Sequence[Scoring], precision: torch.dtype = torch.float32):
        super().__init__()
        self.network, self.precision = network, precision
        self.objectives = {objective.name: objective for objective in objectives}

    def forward(self, batch: Batch, state: State | None = None) -> StepOutput:
        scored = Scored({})
        with autocast(next(iter(batch.streams.values())).device, self.precision):
            hidden = self.network.reader(batch.streams, state)
            for name in batch.tasks:
                found = Scored.of(self.objectives[name].loss(self.network, hidden, batch))
                scored = scored.beside(found)
                hidden = hidden if found.sampled is None else replace(hidden, sampled=found.sampled)
        # a part's own cost is a mean over positions, of which a slice has its share of the rows
        costs = {name: cost * batch.share for name, cost in hidden.auxiliary.items()}
        weighted = (scored.losses[name] * self.objectives[name].weight for name in batch.tasks)
        total = torch.stack([*weighted, *costs.values()]).sum()
        measures = {name: measure.float().nanmean() * batch.share for name, measure in hidden.measures.items()}
        return StepOutput(total, {**scored.losses, **costs}, measures, scored.counts, hidden.state)
