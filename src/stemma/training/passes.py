"""Through the network and back: losses and gradients of one step, in slices that fit the machine, with the memory that
some networks carry from one step to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stemma.network.network import Network
from stemma.network.state import Memory, State
from stemma.objectives.base import Scoring
from stemma.objectives.batch import Batch
from stemma.schema.training import TrainingSettings
from stemma.training.batches import Prepared
from stemma.training.embedding_gradient import EmbeddingGradient
from stemma.training.step import StepOutput, TrainingStep

CPU_SLICE_TOKENS = 4096  # tokens computed at once on a CPU: the activations stay near the cache


@dataclass(frozen=True)
class Outcome:
    losses: dict[str, float]  # by objective, and what parts of the network cost by themselves
    total: float  # what was minimised
    measures: dict[str, float]  # what the network tells of itself: the mean number of steps
    memory: Memory | None


class Passes:
    def __init__(self, network: Network, objectives: Sequence[Scoring], settings: TrainingSettings,
                 device: torch.device, precision: torch.dtype):
        self.settings, self.device = settings, device
        self.step = TrainingStep(network, objectives, precision)
        self.memories: dict[str, Memory] = {}  # what each feed's rows read last, in networks that remember it
        self.embedding = EmbeddingGradient(network.embedding.tokens)

    def train(self, prepared: Prepared) -> Outcome:
        """Forward and backward. The new memory is only given back: it is `remember`ed once the step is found to be
        sound."""
        batch = prepared.batch
        memory = self.memories.get(prepared.feed) if batch.continues else None
        losses: dict[str, Tensor] = {}
        measures: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}  # (2,) so many of so many
        minimised = torch.zeros((), device=self.device)
        remembered: list[Memory] = []
        first = 0
        for piece in batch.slices(self._slice_rows(batch)):
            rows = slice(first, first + piece.rows)
            first += piece.rows
            found = self.losses(prepared.objectives, piece, None if memory is None else memory.rows(rows))
            found.total.backward()
            minimised += found.total.detach().float()
            _add(losses, found.losses)
            _add(measures, found.measures)
            _add(counts, {name: torch.stack([part.to(self.device) for part in pair])
                          for name, pair in found.counts.items()})
            if isinstance(found.state, Memory):
                remembered.append(found.state)
        self.embedding.settle()
        measures |= {name: some / whole for name, (some, whole) in counts.items()}  # of none: not a number
        numbers = torch.stack([minimised, *losses.values(), *measures.values()]).tolist()  # one wait for the device
        told = dict(zip(measures, numbers[1 + len(losses):], strict=True))
        return Outcome(dict(zip(losses, numbers[1:], strict=False)), numbers[0],
                       {name: value for name, value in told.items() if not math.isnan(value)},
                       Memory.join(remembered) if remembered else None)

    def remember(self, feed: str, memory: Memory | None) -> None:
        if memory is not None:
            self.memories[feed] = memory

    def losses(self, objectives: Sequence[Scoring], batch: Batch, state: State | None) -> StepOutput:
        """What these of the objectives lose on a batch."""
        tasks = tuple(objective.name for objective in objectives)
        found: StepOutput = self.step(replace(batch.to(self.device), tasks=tasks), state)
        return found

    def _slice_rows(self, batch: Batch) -> int:
        if self.settings.micro_batch_size is not None:
            return self.settings.micro_batch_size
        if self.device.type != "cpu":
            return batch.rows
        length = max(stream.length for stream in batch.streams.values())
        return max(1, CPU_SLICE_TOKENS // length)


def _add(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        sums[name] = sums[name] + value.detach().float() if name in sums else value.detach().float()
