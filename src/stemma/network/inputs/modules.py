"""The modules of the built-in inputs, and of the ways to combine them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.initialization import Linear, LookupEmbedding, default_initializer
from stemma.network.kinds import build_norm
from stemma.schema.network import TOKENS, NetworkSettings


class Segments(LookupEmbedding):
    def forward(self, given: Tensor | None) -> Tensor:
        """(B, L) -> (B, L, width); None: segment 0 throughout."""
        return self.weight[0] if given is None else super().forward(given)


class Tasks(LookupEmbedding):
    def forward(self, given: Tensor | None) -> Tensor:
        """(B,) -> (B, 1, width); None: task 0."""
        return self.weight[0] if given is None else super().forward(given)[:, None]


class Boxes(nn.Module):
    def __init__(self, size: int, edges: int, area: bool, norms: bool, network: NetworkSettings, width: int):
        super().__init__()
        self.sizes, self.area = (size, edges), area
        self.vector = Linear(size, width, True, default_initializer(network, size))
        self.box = Linear(edges + area, width, True, default_initializer(network, edges + area))
        self.norms = nn.ModuleList(build_norm(network.norm, width) for _ in range(2)) if norms else None

    def forward(self, given: Tensor) -> Tensor:
        """(B, L, size + 4) -> (B, L, width): nothing where all numbers are 0."""
        vector, box = given.split(self.sizes, -1)
        if self.area:
            box = torch.cat([box, (box[..., 2:4] - box[..., 0:2]).prod(-1, keepdim=True)], -1)
        mapped = [self.vector(vector), self.box(box)]
        if self.norms is not None:
            mapped = [norm(x) for norm, x in zip(self.norms, mapped, strict=True)]
        return (mapped[0] + mapped[1]) * (given != 0).any(-1, keepdim=True)


class Entities(nn.Module):
    vectors: Tensor

    def __init__(self, count: int, size: int, trained: bool, network: NetworkSettings, width: int):
        super().__init__()
        vectors = torch.empty(count, size)
        default_initializer(network)(vectors)
        if trained:
            self.vectors = nn.Parameter(vectors)
        else:
            self.register_buffer("vectors", vectors)
        self.project = Linear(size, width, False, default_initializer(network, size))

    def fill(self, vectors: np.ndarray) -> None:
        with torch.no_grad():
            self.vectors.copy_(torch.from_numpy(vectors))

    def forward(self, given: Tensor) -> Tensor:
        """(B, L) numbers of entities -> (B, L, width): nothing where it is 0."""
        mapped: Tensor = self.project(functional.embedding(given, self.vectors))
        return mapped * (given > 0)[..., None]


class Gate(nn.Module):
    def __init__(self, network: NetworkSettings, width: int, names: Sequence[str]):
        super().__init__()
        self.gates = nn.ModuleDict({name: Linear(2 * width, width, True, default_initializer(network, 2 * width))
                                    for name in names})

    def forward(self, read: Mapping[str, Tensor]) -> Tensor:
        """(B, L, width) each, by name -> (B, L, width)"""
        tokens = read.get(TOKENS)
        if tokens is None:
            tokens = torch.zeros_like(next(iter(read.values())))
        x = tokens
        for name, gate in self.gates.items():
            if name in read:
                x = x + torch.sigmoid(gate(torch.cat([tokens, read[name]], -1))) * read[name]
        return x


class Sum(nn.Module):
    def forward(self, read: Mapping[str, Tensor]) -> Tensor:
        """(B, L, width) each, by name -> (B, L, width)"""
        first, *others = read.values()
        for other in others:
            first = first + other
        return first
