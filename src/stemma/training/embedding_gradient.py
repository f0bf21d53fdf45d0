"""The gradient of a token embedding, of which a batch reads some rows only."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EmbeddingGradient:
    """torch would clear as many numbers as the embedding has, each time it is read. Here the rows that were read come
    as a sparse gradient, and what the optimizer is given is one dense tensor for all steps, in which only the rows of
    the step before are cleared. On a CPU, in one process: DistributedDataParallel reduces dense gradients."""

    def __init__(self, tokens: nn.Module):
        weight = getattr(tokens, "weight", None)
        usable = isinstance(tokens, nn.Embedding) and weight is not None and weight.device.type == "cpu"
        self.tokens: nn.Embedding | None = tokens if usable and isinstance(tokens, nn.Embedding) else None
        self.gradient: Tensor | None = None
        self.rows: Tensor | None = None  # those that are not zero
        if self.tokens is not None:
            self.tokens.sparse = True

    def densify(self) -> None:
        """After the last backward pass of a step. Where the embedding also scores tokens, its gradient is dense, and
        there is nothing to be done."""
        if self.tokens is None or self.tokens.weight.grad is None or not self.tokens.weight.grad.is_sparse:
            return
        found = self.tokens.weight.grad
        if self.gradient is None or self.rows is None:
            self.gradient = torch.zeros_like(self.tokens.weight)
        else:
            self.gradient.index_fill_(0, self.rows, 0.0)
        self.rows = found._indices()[0]
        self.gradient.index_add_(0, self.rows, found._values())
        self.tokens.weight.grad = self.gradient
