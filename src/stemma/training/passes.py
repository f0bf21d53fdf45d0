"""Through the network and back: losses and gradients of one step, in slices that fit the machine, with the memory that
some networks carry from one step to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stemma.network.network import Network
from stemma.network.state import Memory, State
from stemma.network.streams import Hidden
from stemma.objectives import Batch
from stemma.objectives.base import Scoring
from stemma.schema.training import TrainingSettings
from stemma.training.batches import Prepared
from stemma.training.precision import autocast

CPU_SLICE_TOKENS = 4096  # tokens computed at once on a CPU: the activations stay near the cache


@dataclass(frozen=True)
class Outcome:
    losses: dict[str, float]  # by objective, and what parts of the network cost by themselves
    total: float  # what was minimised
    measures: dict[str, float]  # what the network tells of itself: the mean number of steps
    memory: Memory | None


class Passes:
    def __init__(self, network: Network, settings: TrainingSettings, device: torch.device, precision: torch.dtype):
        self.network, self.settings, self.device, self.precision = network, settings, device, precision
        self.memories: dict[str, Memory] = {}  # what each feed's rows read last, in networks that remember it
        self.table = TableGradient(network, device)

    def train(self, prepared: Prepared) -> Outcome:
        """Forward and backward. Targets carry the whole step's total, so that slices add up; what parts of the network
        cost by themselves is a mean over places, of which a slice has its share. The new memory is only given back:
        it is `remember`ed once the step is found to be sound."""
        batch = prepared.batch
        memory = self.memories.get(prepared.feed) if batch.continues else None
        losses: dict[str, Tensor] = {}
        measures: dict[str, Tensor] = {}
        shares: dict[str, Tensor] = {}  # (2,) so many of so many
        minimised = torch.zeros((), device=self.device)
        remembered: list[Memory] = []
        first = 0
        for piece in batch.slices(self._slice_rows(batch)):
            share, rows = piece.rows / batch.rows, slice(first, first + piece.rows)
            first += piece.rows
            found, hidden = self.losses(prepared.objectives, piece, None if memory is None else memory.rows(rows))
            costs = {name: cost * share for name, cost in hidden.auxiliary.items()}
            total = torch.stack([*(found[o.name] * o.weight for o in prepared.objectives), *costs.values()]).sum()
            total.backward()
            minimised += total.detach().float()
            _add(losses, {**found, **costs})
            _add(measures, {name: measure.float().mean() * share for name, measure in hidden.measures.items()})
            _add(shares, {name: torch.stack([part.to(self.device) for part in counts])
                          for name, counts in hidden.shares.items()})
            if isinstance(hidden.state, Memory):
                remembered.append(hidden.state)
        self.table.settle()
        measures |= {name: some / whole for name, (some, whole) in shares.items()}  # of none: not a number
        numbers = torch.stack([minimised, *losses.values(), *measures.values()]).tolist()  # one wait for the device
        told = dict(zip(measures, numbers[1 + len(losses):], strict=True))
        return Outcome(dict(zip(losses, numbers[1:], strict=False)), numbers[0],
                       {name: value for name, value in told.items() if not math.isnan(value)},
                       Memory.join(remembered) if remembered else None)

    def remember(self, feed: str, memory: Memory | None) -> None:
        if memory is not None:
            self.memories[feed] = memory

    def losses(self, objectives: tuple[Scoring, ...], batch: Batch,
               state: State | None) -> tuple[dict[str, Tensor], Hidden]:
        batch = batch.to(self.device)
        found: dict[str, Tensor] = {}
        with autocast(self.device, self.precision):
            reader = self.network if self.network.generator is None else self.network.generator
            hidden = reader(batch.streams, state)
            for objective in objectives:
                found |= objective.loss(self.network, hidden, batch)
        return found, hidden

    def _slice_rows(self, batch: Batch) -> int:
        if self.settings.micro_batch_size is not None:
            return self.settings.micro_batch_size
        if self.device.type != "cpu":
            return batch.rows
        length = max(stream.ids.shape[1] for stream in batch.streams.values())
        return max(1, CPU_SLICE_TOKENS // length)


class TableGradient:
    """The gradient of the table of tokens, of which a batch reads some rows only. torch would clear as many numbers as
    the table has, each time it is read; here the rows that were read are told apart (a sparse gradient), and what the
    optimizer is given is one tensor for all steps, in which only the rows of the step before are cleared."""

    def __init__(self, network: Network, device: torch.device):
        tokens = network.embedding.tokens
        self.tokens = tokens if isinstance(tokens, nn.Embedding) and device.type == "cpu" else None
        self.gradient: Tensor | None = None
        self.rows: Tensor | None = None  # those that are not zero
        if self.tokens is not None:
            self.tokens.sparse = True

    def settle(self) -> None:
        """Where the table also scores tokens, its gradient is dense, and there is nothing to be done."""
        if self.tokens is None or self.tokens.weight.grad is None or not self.tokens.weight.grad.is_sparse:
            return
        found = self.tokens.weight.grad
        if self.gradient is None or self.rows is None:
            self.gradient = torch.zeros_like(self.tokens.weight)
        else:
            self.gradient.index_fill_(0, self.rows, 0.0)
        self.rows = found._indices()[0]
        self.gradient.index_add_(0, self.rows, found._values())
        self.tokens.weight.grad = self.gradient


def _add(sums: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        sums[name] = sums[name] + value.detach().float() if name in sums else value.detach().float()
