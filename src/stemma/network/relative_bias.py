"""Distances in buckets: one number a head for each, added to the scores (T5, arXiv:1910.10683, section 2.1).

Near distances have a bucket each, farther ones share buckets that grow with the logarithm, and beyond the last one all
are alike; so nothing depends on how long a text may be. All layers of a stack share the table.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stemma.network.initialization import Initializer, LookupEmbedding
from stemma.network.module import TensorModule
from stemma.network.position_kinds import BucketedPositionSettings


class RelativePositionBias(TensorModule):
    def __init__(self, settings: BucketedPositionSettings, heads: int, bidirectional: bool,
                 initializer: Initializer = Initializer(0.02)):
        super().__init__()
        self.num_buckets, self.max_distance, self.bidirectional = settings.buckets, settings.distance, bidirectional
        self.table = LookupEmbedding(settings.buckets, heads, initializer)

    def forward(self, num_queries: int, num_keys: int, dtype: torch.dtype) -> Tensor:
        """(1, heads, Q, K) for `queries` at the last of `keys` places.

        A score depends on key - query alone, so there are Q + K - 1 of them for each head; the rows of the square are
        windows on that one line, each a step to the left of the one before."""
        device = self.table.weight.device
        ahead = torch.arange(1 - num_keys, num_queries, device=device)  # from the farthest behind to the farthest in
        #                                                                 front
        line = self.table(self.bucket_of(ahead)).T  # (heads, Q + K - 1)
        return line.unfold(1, num_keys, 1).flip(1)[None].to(dtype)

    def bucket_of(self, offset_to_key: Tensor) -> Tensor:
        """key - query -> its bucket: the first half for what stands behind, the second for what stands in front; read
        from one end, all of them for what stands behind."""
        buckets = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        offset = (offset_to_key > 0).long() * buckets if self.bidirectional else torch.zeros_like(offset_to_key)
        away = offset_to_key.abs() if self.bidirectional else (-offset_to_key).clamp(min=0)
        alone = buckets // 2  # distances that have a bucket of their own
        share = torch.log(away.clamp(min=1).float() / alone) / math.log(self.max_distance / alone)
        shared = (alone + (share * (buckets - alone)).long()).clamp(max=buckets - 1)
        return offset + torch.where(away < alone, away, shared)
