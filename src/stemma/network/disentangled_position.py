"""Disentangled relative positions with logarithmic buckets (DeBERTa, arXiv:2006.03654; LTG-BERT, arXiv:2303.09859).

A score has three terms: content-content, content-position and position-content. The relative distance of query and key
is an embedding that the layer projects with its own query and key matrices. Distances up to half of the buckets have
one each, larger ones share buckets of logarithmic size, so there is no maximum length. All layers share the embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stemma.network.initialization import Initializer


@dataclass(frozen=True)
class DisentangledPositions:
    """The embedding of each bucket, and the bucket of each query and key."""

    embedding: Tensor  # (2 x buckets - 1, width)
    buckets: Tensor  # (Q, K)

    def rows(self, rows: Tensor) -> DisentangledPositions:
        """The same for some rows of the batch: distances do not depend on the row."""
        return self


class BucketEmbedding(nn.Module):
    """A learned embedding of each bucket of distances, with its own norm."""

    def __init__(self, buckets: int, max_distance: int, width: int, epsilon: float, initializer: Initializer):
        super().__init__()
        self.num_buckets, self.max_distance, self.initializer = buckets, max_distance, initializer
        self.weight = nn.Parameter(torch.empty(2 * buckets - 1, width))
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.initializer(self.weight)

    def forward(self, num_queries: int, num_keys: int, bidirectional: bool, device: torch.device,
                reversed_rows: Tensor | None = None, query_positions: Tensor | None = None) -> DisentangledPositions:
        """For queries at the last `num_queries` of `num_keys` positions."""
        assert query_positions is None, "disentangled positions have no query stream"
        keys = torch.arange(num_keys, device=device)
        distance = keys[num_keys - num_queries:, None] - keys
        return DisentangledPositions(self.norm(self.weight), self.bucket_of(distance))

    def bucket_of(self, distance: Tensor) -> Tensor:
        """query - key -> index of the embedding; distance 0 is in the middle."""
        exact = self.num_buckets // 2  # distances up to this have a bucket each
        size = distance.abs().clamp(max=self.max_distance - 1)
        log_fraction = torch.log(size.clamp(min=1) / exact) / math.log((self.max_distance - 1) / exact)
        log_bucket = exact + torch.ceil(log_fraction * (exact - 1)).long()
        log_bucket = log_bucket.clamp(max=self.num_buckets - 1)  # rounding may exceed the last bucket by one
        return self.num_buckets - 1 + torch.where(size <= exact, distance, log_bucket * distance.sign())


def position_scores(query: Tensor, key: Tensor, position_query: Tensor, position_key: Tensor,
                    buckets: Tensor) -> Tensor:
    """Content-position and position-content scores, not scaled: (B, heads, Q, D), (B, heads, K, D), twice
    (heads, N, D), (Q, K) -> (B, heads, Q, K). Scores are computed for each bucket, then gathered for each pair."""
    shape = (*query.shape[:2], -1, -1)
    by_key = (query @ position_key.transpose(-1, -2)).gather(3, buckets.expand(shape))
    by_query = (key @ position_query.transpose(-1, -2)).gather(3, buckets.T.expand(shape))
    return by_key + by_query.transpose(-1, -2)
