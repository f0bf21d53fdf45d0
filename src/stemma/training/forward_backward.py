"""Through the network and back: losses and gradients of one step, in slices that fit the machine, with the memory that
some networks carry from one step to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stemma.network.cache import Memory, State
from stemma.network.network import Network
from stemma.objectives.base import TrainableObjective
from stemma.objectives.batch import Batch
from stemma.schema.training import TrainingSettings
from stemma.training.embedding_gradient import EmbeddingGradient
from stemma.training.loader import PreparedBatch
from stemma.training.training_step import StepOutput, TrainingStep

CPU_SLICE_TOKENS = 4096  # tokens computed at once on a CPU: the activations stay near the cache


@dataclass(frozen=True)
class StepResult:
    losses: dict[str, float]  # by objective, and what parts of the network cost by themselves
    total: float  # what was minimised
    metrics: dict[str, float]  # what the network tells of itself: the mean number of steps
    memory: Memory | None


class ForwardBackward:
    def __init__(self, network: Network, objectives: Sequence[TrainableObjective], settings: TrainingSettings,
                 device: torch.device, precision: torch.dtype):
        self.settings, self.device = settings, device
        self.training_step = TrainingStep(network, objectives, precision)
        self.memories: dict[str, Memory] = {}  # what each feed's rows read last, in networks that remember it
        self.embedding_gradient = EmbeddingGradient(network.embedding.tokens)

    def forward_backward(self, prepared: PreparedBatch) -> StepResult:
        """Forward and backward. The new memory is only given back: it is `remember`ed once the step is found to be
        sound."""
        batch = prepared.batch
        memory = self.memories.get(prepared.sampler_key) if batch.continues_previous else None
        losses: dict[str, Tensor] = {}
        measures: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}  # (2,) so many of so many
        minimised = torch.zeros((), device=self.device)
        remembered: list[Memory] = []
        first = 0
        for piece in batch.slices(self._slice_rows(batch)):
            rows = slice(first, first + piece.num_rows)
            first += piece.num_rows
            found = self.compute_losses(prepared.objectives, piece, None if memory is None else memory.rows(rows))
            found.total.backward()
            minimised += found.total.detach().float()
            _accumulate(losses, found.losses)
            _accumulate(measures, found.metrics)
            _accumulate(counts, {name: torch.stack([part.to(self.device) for part in pair])
                          for name, pair in found.ratio_metrics.items()})
            if isinstance(found.state, Memory):
                remembered.append(found.state)
        self.embedding_gradient.densify()
        measures |= {name: some / whole for name, (some, whole) in counts.items()}  # of none: not a number
        numbers = torch.stack([minimised, *losses.values(), *measures.values()]).tolist()  # one wait for the device
        told = dict(zip(measures, numbers[1 + len(losses):], strict=True))
        return StepResult(dict(zip(losses, numbers[1:], strict=False)), numbers[0],
                       {name: value for name, value in told.items() if not math.isnan(value)},
                       Memory.concatenate(remembered) if remembered else None)

    def store_memory(self, sampler_key: str, memory: Memory | None) -> None:
        if memory is not None:
            self.memories[sampler_key] = memory

    def compute_losses(self, objectives: Sequence[TrainableObjective], batch: Batch, state: State | None) -> StepOutput:
        """What these of the objectives lose on a batch."""
        tasks = tuple(objective.name for objective in objectives)
        found: StepOutput = self.training_step(replace(batch.to(self.device), objectives=tasks), state)
        return found

    def _slice_rows(self, batch: Batch) -> int:
        if self.settings.micro_batch_size is not None:
            return self.settings.micro_batch_size
        if self.device.type != "cpu":
            return batch.num_rows
        length = max(stream.length for stream in batch.streams.values())
        return max(1, CPU_SLICE_TOKENS // length)


def _accumulate(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        sums[name] = sums[name] + value.detach().float() if name in sums else value.detach().float()
