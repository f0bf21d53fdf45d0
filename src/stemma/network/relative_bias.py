"""Bucketed relative position bias: one number per head and bucket, added to the scores (T5, arXiv:1910.10683, 2.1).

Small distances have a bucket each. Larger distances share buckets of logarithmic size, and all beyond a maximum share
the last one, so there is no maximum length. All layers of a stack share the embedding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stemma.network.initialization import Initializer, LookupEmbedding
from stemma.network.module import TensorModule
from stemma.network.position_kinds import BucketedPositionSettings


class RelativePositionBias(TensorModule):
    """T5's relative position bias."""

    def __init__(self, settings: BucketedPositionSettings, heads: int, bidirectional: bool,
                 initializer: Initializer = Initializer(0.02)):
        super().__init__()
        self.num_buckets, self.max_distance, self.bidirectional = settings.buckets, settings.distance, bidirectional
        self.table = LookupEmbedding(settings.buckets, heads, initializer)

    def forward(self, num_queries: int, num_keys: int, dtype: torch.dtype) -> Tensor:
        """(1, heads, Q, K) for queries at the last `num_queries` of `num_keys` positions.

        The bias depends on key - query only, so each head has Q + K - 1 values. Each row of the (Q, K) matrix is a
        window of them, shifted by one against the next row."""
        device = self.table.weight.device
        offsets = torch.arange(1 - num_keys, num_queries, device=device)
        values = self.table(self.bucket_of(offsets)).T  # (heads, Q + K - 1)
        return values.unfold(1, num_keys, 1).flip(1)[None].to(dtype)

    def bucket_of(self, offset_to_key: Tensor) -> Tensor:
        """key - query -> bucket. If bidirectional, the first half of the buckets is for earlier keys and the second for
        later keys; otherwise all are for earlier keys."""
        buckets = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        first_bucket = (offset_to_key > 0).long() * buckets if self.bidirectional else torch.zeros_like(offset_to_key)
        distance = offset_to_key.abs() if self.bidirectional else (-offset_to_key).clamp(min=0)
        exact = buckets // 2  # distances below this have a bucket each
        log_fraction = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        log_bucket = (exact + (log_fraction * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first_bucket + torch.where(distance < exact, distance, log_bucket)
