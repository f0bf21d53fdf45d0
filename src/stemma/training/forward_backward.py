"""Forward and backward pass of one step: losses and gradients, in micro-batches, with the memory that some networks
carry from step to step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stemma.errors import UserError
from stemma.network.cache import Memory, State
from stemma.network.heads import LMHead
from stemma.network.network import Network
from stemma.objectives.base import TrainableObjective
from stemma.objectives.batch import Batch
from stemma.schema.training import TrainingSettings
from stemma.training.embedding_gradient import EmbeddingGradient
from stemma.training.loader import PreparedBatch
from stemma.training.training_step import StepOutput, TrainingStep

CPU_SLICE_TOKENS = 4096  # tokens per slice on a CPU: the activations stay in or near the cache


@dataclass(frozen=True)
class StepResult:
    losses: dict[str, float]  # by objective, with the auxiliary losses of the network
    total: float  # the minimized loss
    metrics: dict[str, float]  # metrics of the network, e.g. mean number of recurrent steps
    memory: Memory | None


class ForwardBackward:
    def __init__(self, network: Network, objectives: Sequence[TrainableObjective], settings: TrainingSettings,
                 device: torch.device, precision: torch.dtype):
        self.settings, self.device = settings, device
        if settings.z_loss is not None:
            _set_z_loss(network, settings.z_loss)
        self.training_step = TrainingStep(network, objectives, precision)
        self.memories: dict[str, Memory] = {}  # by sampler: the last hidden states of its rows
        self.embedding_gradient = EmbeddingGradient(network.embedding.tokens)

    def forward_backward(self, prepared: PreparedBatch) -> StepResult:
        """Compute losses and gradients. The new memory is returned only; `store_memory` keeps it once the step is known
        to be valid."""
        batch = prepared.batch
        memory = self.memories.get(prepared.sampler_key) if batch.continues_previous else None
        losses: dict[str, Tensor] = {}
        metrics: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}  # (2,) numerator and denominator
        total = torch.zeros((), device=self.device)
        new_memories: list[Memory] = []
        first_row = 0
        for micro_batch in batch.slices(self._slice_rows(batch)):
            rows = slice(first_row, first_row + micro_batch.num_rows)
            first_row += micro_batch.num_rows
            row_memory = None if memory is None else memory.rows(rows)
            output = self.compute_losses(prepared.objectives, micro_batch, row_memory)
            output.total.backward()
            total += output.total.detach().float()
            _accumulate(losses, output.losses)
            _accumulate(metrics, output.metrics)
            _accumulate(counts, {name: torch.stack([part.to(self.device) for part in pair])
                                 for name, pair in output.ratio_metrics.items()})
            if isinstance(output.state, Memory):
                new_memories.append(output.state)
        self.embedding_gradient.densify()
        metrics |= {name: numerator / denominator for name, (numerator, denominator) in counts.items()}  # 0 / 0: NaN
        values = torch.stack([total, *losses.values(), *metrics.values()]).tolist()  # one synchronization
        metric_values = dict(zip(metrics, values[1 + len(losses):], strict=True))
        return StepResult(dict(zip(losses, values[1:], strict=False)), values[0],
                          {name: value for name, value in metric_values.items() if not math.isnan(value)},
                          Memory.concatenate(new_memories) if new_memories else None)

    def store_memory(self, sampler_key: str, memory: Memory | None) -> None:
        if memory is not None:
            self.memories[sampler_key] = memory

    def compute_losses(self, objectives: Sequence[TrainableObjective], batch: Batch, state: State | None) -> StepOutput:
        """Losses of these objectives on a batch."""
        names = tuple(objective.name for objective in objectives)
        output: StepOutput = self.training_step(replace(batch.to(self.device), objectives=names), state)
        return output

    def _slice_rows(self, batch: Batch) -> int:
        if self.settings.micro_batch_size is not None:
            return self.settings.micro_batch_size
        if self.device.type != "cpu":
            return batch.num_rows
        length = max(stream.length for stream in batch.streams.values())
        return max(1, CPU_SLICE_TOKENS // length)


def _set_z_loss(network: Network, coefficient: float) -> None:
    heads = [module for module in network.modules() if isinstance(module, LMHead)]
    if not heads:
        raise UserError("training.z_loss is about the softmax over a vocabulary, and this network has none; leave it "
                        "out.")
    for head in heads:
        head.z_loss = coefficient


def _accumulate(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        sums[name] = sums[name] + value.detach().float() if name in sums else value.detach().float()
