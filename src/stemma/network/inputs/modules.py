"""Modules of the built-in inputs and fusions."""

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
    """Segment embedding."""

    def forward(self, segment_ids: Tensor | None) -> Tensor:
        """(B, L) -> (B, L, width); None: segment 0 everywhere."""
        return self.weight[0] if segment_ids is None else super().forward(segment_ids)


class Tasks(LookupEmbedding):
    """Task embedding (ERNIE 2.0)."""

    def forward(self, task_ids: Tensor | None) -> Tensor:
        """(B,) -> (B, 1, width); None: task 0."""
        return self.weight[0] if task_ids is None else super().forward(task_ids)[:, None]


class Boxes(nn.Module):
    """The sum of a projected vector and a projected bounding box."""

    def __init__(self, size: int, edges: int, area: bool, norms: bool, network: NetworkSettings, width: int):
        super().__init__()
        self.sizes, self.area = (size, edges), area
        self.vector = Linear(size, width, True, default_initializer(network, size))
        self.box = Linear(edges + area, width, True, default_initializer(network, edges + area))
        self.norms = nn.ModuleList(build_norm(network.norm, width) for _ in range(2)) if norms else None

    def forward(self, values: Tensor) -> Tensor:
        """(B, L, size + 4) -> (B, L, width): zeros where all values are 0."""
        vector, box = values.split(self.sizes, -1)
        if self.area:
            box = torch.cat([box, (box[..., 2:4] - box[..., 0:2]).prod(-1, keepdim=True)], -1)
        projected = [self.vector(vector), self.box(box)]
        if self.norms is not None:
            projected = [norm(x) for norm, x in zip(self.norms, projected, strict=True)]
        return (projected[0] + projected[1]) * (values != 0).any(-1, keepdim=True)


class Entities(nn.Module):
    """Projected entity embeddings."""

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

    def forward(self, entity_ids: Tensor) -> Tensor:
        """(B, L) entity ids -> (B, L, width): zeros where the id is 0."""
        projected: Tensor = self.project(functional.embedding(entity_ids, self.vectors))
        return projected * (entity_ids > 0)[..., None]


class Gate(nn.Module):
    """Adds each input through an element-wise gate of token and input."""

    def __init__(self, network: NetworkSettings, width: int, names: Sequence[str]):
        super().__init__()
        self.gates = nn.ModuleDict({name: Linear(2 * width, width, True, default_initializer(network, 2 * width))
                                    for name in names})

    def forward(self, embedded: Mapping[str, Tensor]) -> Tensor:
        """(B, L, width) each, by name -> (B, L, width)"""
        tokens = embedded.get(TOKENS)
        if tokens is None:
            tokens = torch.zeros_like(next(iter(embedded.values())))
        x = tokens
        for name, gate in self.gates.items():
            if name in embedded:
                x = x + torch.sigmoid(gate(torch.cat([tokens, embedded[name]], -1))) * embedded[name]
        return x


class Sum(nn.Module):
    """The sum of all inputs."""

    def forward(self, embedded: Mapping[str, Tensor]) -> Tensor:
        """(B, L, width) each, by name -> (B, L, width)"""
        x, *others = embedded.values()
        for other in others:
            x = x + other
        return x
