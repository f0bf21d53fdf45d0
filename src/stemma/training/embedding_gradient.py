"""Sparse gradient of the token embedding on CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EmbeddingGradient:
    """Accumulates the sparse gradient of the token embedding into one reused dense buffer, zeroing only the rows of the
    previous step. torch would zero a dense gradient of the whole embedding in every backward pass. For one process on a
    CPU: DistributedDataParallel reduces dense gradients."""

    def __init__(self, tokens: nn.Module):
        weight = getattr(tokens, "weight", None)
        usable = isinstance(tokens, nn.Embedding) and weight is not None and weight.device.type == "cpu"
        self.tokens: nn.Embedding | None = tokens if usable and isinstance(tokens, nn.Embedding) else None
        self.gradient: Tensor | None = None
        self.rows: Tensor | None = None  # rows that are not zero
        if self.tokens is not None:
            self.tokens.sparse = True

    def densify(self) -> None:
        """Call after the last backward pass of a step. A tied embedding (LM head) has a dense gradient, which stays."""
        if self.tokens is None or self.tokens.weight.grad is None or not self.tokens.weight.grad.is_sparse:
            return
        sparse = self.tokens.weight.grad
        if self.gradient is None or self.rows is None:
            self.gradient = torch.zeros_like(self.tokens.weight)
        else:
            self.gradient.index_fill_(0, self.rows, 0.0)
        self.rows = sparse._indices()[0]
        self.gradient.index_add_(0, self.rows, sparse._values())
        self.tokens.weight.grad = self.gradient
