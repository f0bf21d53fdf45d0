"""Relative positions as Transformer-XL has them (arXiv:1901.02860, section 3.3).

A score is split in four: content-content, content-position, and two global biases that do not depend on where the query
stands. Positions are distances, so a memory of any length needs no new parameters. What is the same for all layers,
the sinusoids of every distance that can occur, is made once a pass (`Distances`); what each layer learns about it is
`RelativeScores`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stemma.network.dropout import Dropout
from stemma.network.initialization import Draw, Linear
from stemma.network.state import LayerCache


@dataclass(frozen=True)
class Distances:
    """Sinusoids of the distances keys - 1, keys - 2, ... down to the farthest key ahead of a query."""

    encoding: Tensor  # (1, D, width), or (2, D, width): as read forwards and, with every sign turned, backwards
    length: int  # of the text being read, whose last place is the last key
    keys: int
    queries: int  # how many ask in reading order: all of the text, or none
    backward: Tensor | None = None  # (B,) whole numbers: which of the two a row reads
    places: Tensor | None = None  # (B, P) further queries, at any of the queries' places (XLNet's second stream)

    def align(self, scores: Tensor) -> Tensor:
        """(B, heads, Q + P, D) one column a distance -> (B, heads, Q + P, K) one column a key.

        A query one place farther on finds the same key one column to the left: read with a row length of one less,
        the columns fall into place, and nothing has to be moved.
        """
        batch, heads, total, columns = scores.shape
        shape = (batch, heads, self.queries, columns - 1)
        inside = scores[:, :, :self.queries].flatten(2)[:, :, self.queries - 1:self.queries * columns - 1]
        aligned = inside.view(shape)[..., :self.keys] if self.queries else scores[:, :, :0, :self.keys]
        if self.places is None:
            return aligned
        first = self.length - 1 - self.places  # (B, P) the column of the first key
        index = first[:, :, None] + torch.arange(self.keys, device=scores.device)  # (B, P, K)
        index = index[:, None].expand(-1, heads, -1, -1)
        return torch.cat([aligned, scores[:, :, total - self.places.shape[1]:].gather(3, index)], 2)

    def rows(self, rows: Tensor) -> Distances:
        """Those of some rows of the batch."""
        return replace(self, backward=None if self.backward is None else self.backward[rows],
                       places=None if self.places is None else self.places[rows])

    def only_places(self) -> Distances:
        """For the further queries alone."""
        return replace(self, queries=0)


class RelativeSinusoids(nn.Module):
    """Halves of sines and cosines, unlike the interleaved ones of the first Transformer; nothing is learned."""

    def __init__(self, width: int, clamp: int | None, dropout: float):
        super().__init__()
        self.width, self.clamp = width, clamp
        self.dropout = Dropout(dropout)

    def forward(self, queries: int, keys: int, ahead: bool, device: torch.device, backward: Tensor | None = None,
                places: Tensor | None = None) -> Distances:
        """For `queries` at the last of `keys` places; without `ahead` nobody looks at what comes after him."""
        least = min(1 - queries, -1) if ahead else -1  # at least one column more than is looked at, for the shift
        distance = torch.arange(keys - 1, least - 1, -1.0, device=device)
        if self.clamp is not None:
            distance = distance.clamp(-self.clamp, self.clamp)
        rate = torch.exp(torch.arange(0, self.width, 2, device=device) * (-math.log(10_000.0) / self.width))
        angle = distance[:, None] * rate  # (D, width / 2)
        encoding = torch.cat([angle.sin(), angle.cos()], 1)[None, :, : self.width]
        if backward is not None:
            encoding = torch.cat([encoding, torch.cat([-angle.sin(), angle.cos()], 1)[None, :, : self.width]])
        which = None if backward is None else backward.long()
        return Distances(self.dropout(encoding), queries, keys, queries, which, places)


class RelativeScores(nn.Module):
    """One layer's four terms, and XLNet's fifth: do query and key belong to one segment (arXiv:1906.08237, 2.5)?"""

    def __init__(self, width: int, heads: int, head_width: int, segments: bool, draw: Draw, project: Draw):
        super().__init__()
        self.heads, self.head_width, self.draw = heads, head_width, draw
        self.project = Linear(width, heads * head_width, False, project)
        self.content_bias = nn.Parameter(torch.empty(heads, head_width))  # u
        self.position_bias = nn.Parameter(torch.empty(heads, head_width))  # v
        self.segment_bias = nn.Parameter(torch.empty(heads, head_width)) if segments else None
        self.segments = nn.Parameter(torch.empty(2, heads, head_width)) if segments else None  # the same, another
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.parameters(recurse=False):
            self.draw(weight)

    def forward(self, query: Tensor, distances: Distances, apart: Tensor | None,
                cache: LayerCache | None = None) -> tuple[Tensor, Tensor]:
        """(B, heads, Q, D) -> the query that meets the keys' content, and what to add to the scaled scores."""
        scale = 1.0 / math.sqrt(self.head_width)
        keys = self.keys(distances, cache)
        if distances.backward is not None:
            keys = keys[distances.backward]
        scores = ((query + self.position_bias[:, None]) * scale) @ keys
        bias = distances.align(scores)
        if self.segments is not None and self.segment_bias is not None and apart is not None:
            same, other = (((query + self.segment_bias[:, None]) * scale) @ self.segments.permute(1, 2, 0)).unbind(-1)
            bias = bias + torch.where(apart, other[..., None], same[..., None])
        return query + self.content_bias[:, None], bias

    def keys(self, distances: Distances, cache: LayerCache | None) -> Tensor:
        """(1 or 2, heads, D, columns): what is looked for at each distance. Once a memory is full its distances are
        the same in every segment, and to project them would be a third of the work."""
        which = (distances.keys, *distances.encoding.shape)  # the farthest distance, and how many there are
        if cache is not None and cache.distances is not None and cache.distances[0] == which:
            return cache.distances[1]
        found = self.project(distances.encoding.to(self.project.weight.dtype))
        found = found.view(*found.shape[:2], self.heads, self.head_width).permute(0, 2, 3, 1)
        if cache is not None:
            cache.distances = which, found
        return found
