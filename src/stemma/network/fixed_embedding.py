"""A token embedding in which some tokens have a vector that is not trained (CoVe, arXiv:1708.00107, section 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from stemma.network.initialization import Initializer, LookupEmbedding


class FixedVectorEmbedding(LookupEmbedding):
    """Fixed vectors are a buffer, so no optimizer and no weight decay changes them. Until `fix` is called there are
    none."""

    vectors: Tensor
    fixed: Tensor

    def __init__(self, num_embeddings: int, width: int, initializer: Initializer):
        super().__init__(num_embeddings, width, initializer)
        self.register_buffer("vectors", torch.zeros(num_embeddings, width))
        self.register_buffer("fixed", torch.zeros(num_embeddings, dtype=torch.bool))

    def fix(self, vectors: Tensor, rows: Tensor) -> None:
        """Set the vectors (N, width) of the first N tokens where `rows` (N,) is True."""
        self.vectors[rows.nonzero()[:, 0]] = vectors[rows]
        self.fixed[:len(rows)] = rows

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) token ids -> (B, L, width)"""
        return torch.where(self.fixed[ids][..., None], self.vectors[ids], super().forward(ids))
