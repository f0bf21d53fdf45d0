"""Sparse gradient of the token embedding on CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EmbeddingGradient:
    """Accumulates the sparse gradient of the token embedding into one reused dense buffer, zeroing only the rows of the
    previous step. torch would zero a dense gradient of the whole embedding in every backward pass. Norm and clipping
    read only the rows of the step's tokens (`nonzero_rows`). For one process on a CPU: DistributedDataParallel reduces
    dense gradients."""

    def __init__(self, tokens: nn.Module):
        weight = getattr(tokens, "weight", None)
        usable = isinstance(tokens, nn.Embedding) and weight is not None and weight.device.type == "cpu"
        self.tokens: nn.Embedding | None = tokens if usable and isinstance(tokens, nn.Embedding) else None
        self.gradient: Tensor | None = None
        self.rows: Tensor | None = None  # rows that are not zero, each once
        self.values: Tensor | None = None  # (rows, width): the gradient of these rows
        if self.tokens is not None:
            self.tokens.sparse = True

    def densify(self) -> None:
        """Call after the last backward pass of a step. A tied embedding (LM head) has a dense gradient, which stays."""
        self.values = None
        if self.tokens is None or self.tokens.weight.grad is None or not self.tokens.weight.grad.is_sparse:
            return
        sparse = self.tokens.weight.grad.coalesce()
        if self.gradient is None or self.rows is None:
            self.gradient = torch.zeros_like(self.tokens.weight)
        else:
            self.gradient.index_fill_(0, self.rows, 0.0)
        self.rows, self.values = sparse.indices()[0], sparse.values()
        self.gradient.index_copy_(0, self.rows, self.values)
        self.tokens.weight.grad = self.gradient

    def nonzero_rows(self, gradient: Tensor) -> Tensor:
        """Of the token embedding, the rows that are not zero; any other gradient as it is."""
        return self.values if self.values is not None and gradient is self.gradient else gradient

    def rescale(self) -> None:
        """Copy the rows into the gradient again, after they were scaled in place."""
        if self.gradient is not None and self.rows is not None and self.values is not None:
            self.gradient.index_copy_(0, self.rows, self.values)
