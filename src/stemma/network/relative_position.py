"""Relative positions of Transformer-XL (arXiv:1901.02860, section 3.3).

An attention score has four terms: content-content, content-position, and two global biases that do not depend on the
query. Positions are distances, so a memory of any length needs no new parameters. The sinusoids of all distances are
computed once per forward pass (`RelativePositions`); `RelativeAttentionScores` holds the parameters of a layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stemma.network.cache import LayerKVCache
from stemma.network.dropout import Dropout
from stemma.network.initialization import Initializer, Linear


@dataclass(frozen=True)
class RelativePositions:
    """Sinusoids of the distances num_keys - 1, num_keys - 2, ... down to that of the last key after a query."""

    encoding: Tensor  # (1, D, width); with reversed rows (2, D, width): the second has distances of opposite sign
    length: int  # of the text; its last position is the last key
    num_keys: int
    num_queries: int  # queries at the text positions: all of them, or 0 with a query stream only
    direction: Tensor | None = None  # (B,) index of each row's encoding
    query_positions: Tensor | None = None  # (B, P) positions of the query stream (XLNet)

    def shift(self, scores: Tensor) -> Tensor:
        """Scores by distance (B, heads, Q + P, D) -> scores by key (B, heads, Q + P, K).

        For the next query the same key is one column to the left. A view with rows shorter by one aligns the columns
        without a copy.
        """
        batch, heads, total, columns = scores.shape
        shape = (batch, heads, self.num_queries, columns - 1)
        flat = scores[:, :, :self.num_queries].flatten(2)[:, :, self.num_queries - 1:self.num_queries * columns - 1]
        aligned = flat.view(shape)[..., :self.num_keys] if self.num_queries else scores[:, :, :0, :self.num_keys]
        if self.query_positions is None:
            return aligned
        first = self.length - 1 - self.query_positions  # (B, P) column of the first key
        index = first[:, :, None] + torch.arange(self.num_keys, device=scores.device)  # (B, P, K)
        index = index[:, None].expand(-1, heads, -1, -1)
        return torch.cat([aligned, scores[:, :, total - self.query_positions.shape[1]:].gather(3, index)], 2)

    def rows(self, rows: Tensor) -> RelativePositions:
        """The relative positions of some rows of the batch."""
        return replace(self, direction=None if self.direction is None else self.direction[rows],
                       query_positions=None if self.query_positions is None else self.query_positions[rows])

    def query_stream_only(self) -> RelativePositions:
        """The relative positions of the query stream only."""
        return replace(self, num_queries=0)


class RelativeSinusoidalEncoding(nn.Module):
    """Sinusoids of distances: sines, then cosines, where the original Transformer interleaves them. No parameters."""

    def __init__(self, width: int, clamp: int | None, dropout: float):
        super().__init__()
        self.width, self.clamp = width, clamp
        self.dropout = Dropout(dropout)

    def forward(self, num_queries: int, num_keys: int, bidirectional: bool, device: torch.device,
                reversed_rows: Tensor | None = None, query_positions: Tensor | None = None) -> RelativePositions:
        """For queries at the last `num_queries` of `num_keys` positions; if not bidirectional, without later keys."""
        # at least one more column than there are keys, which `shift` needs
        min_distance = min(1 - num_queries, -1) if bidirectional else -1
        distance = torch.arange(num_keys - 1, min_distance - 1, -1.0, device=device)
        if self.clamp is not None:
            distance = distance.clamp(-self.clamp, self.clamp)
        inv_freq = torch.exp(torch.arange(0, self.width, 2, device=device) * (-math.log(10_000.0) / self.width))
        angle = distance[:, None] * inv_freq  # (D, width / 2)
        encoding = torch.cat([angle.sin(), angle.cos()], 1)[None, :, : self.width]
        if reversed_rows is not None:
            encoding = torch.cat([encoding, torch.cat([-angle.sin(), angle.cos()], 1)[None, :, : self.width]])
        direction = None if reversed_rows is None else reversed_rows.long()
        return RelativePositions(self.dropout(encoding), num_queries, num_keys, num_queries, direction, query_positions)


class RelativeAttentionScores(nn.Module):
    """One layer's four terms, and XLNet's fifth: are query and key in the same segment (arXiv:1906.08237, 2.5)?"""

    def __init__(self, width: int, heads: int, head_width: int, use_segments: bool, initializer: Initializer,
                 projection_initializer: Initializer):
        super().__init__()
        self.heads, self.head_width, self.initializer = heads, head_width, initializer
        self.project = Linear(width, heads * head_width, False, projection_initializer)
        self.content_bias = nn.Parameter(torch.empty(heads, head_width))  # u
        self.position_bias = nn.Parameter(torch.empty(heads, head_width))  # v
        self.segment_bias = nn.Parameter(torch.empty(heads, head_width)) if use_segments else None
        self.segments = nn.Parameter(torch.empty(2, heads, head_width)) if use_segments else None  # same, different
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.parameters(recurse=False):
            self.initializer(weight)

    def forward(self, query: Tensor, relative_positions: RelativePositions, different_segment: Tensor | None,
                cache: LayerKVCache | None = None) -> tuple[Tensor, Tensor]:
        """(B, heads, Q, head_width) -> the query for the content term, and the bias of the scaled scores."""
        scale = 1.0 / math.sqrt(self.head_width)
        keys = self.position_keys(relative_positions, cache)
        if relative_positions.direction is not None:
            keys = keys[relative_positions.direction]
        scores = ((query + self.position_bias[:, None]) * scale) @ keys
        bias = relative_positions.shift(scores)
        if self.segments is not None and self.segment_bias is not None and different_segment is not None:
            same, other = (((query + self.segment_bias[:, None]) * scale) @ self.segments.permute(1, 2, 0)).unbind(-1)
            bias = bias + torch.where(different_segment, other[..., None], same[..., None])
        return query + self.content_bias[:, None], bias

    def position_keys(self, relative_positions: RelativePositions, cache: LayerKVCache | None) -> Tensor:
        """(1 or 2, heads, head_width, D): the projected encoding of each distance. Once a memory is full, the
        distances are the same in every segment, so they are cached: projecting them is a third of the work."""
        cache_key = (relative_positions.num_keys, *relative_positions.encoding.shape)
        if cache is not None and cache.projected_positions is not None and cache.projected_positions[0] == cache_key:
            return cache.projected_positions[1]
        projected = self.project(relative_positions.encoding.to(self.project.weight.dtype))
        projected = projected.view(*projected.shape[:2], self.heads, self.head_width).permute(0, 2, 3, 1)
        if cache is not None:
            cache.projected_positions = cache_key, projected
        return projected
