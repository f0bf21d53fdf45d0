"""Masking adapted to what the model already predicts (Edman and Fraser 2025, arXiv:2510.20475).

A uniform mask wastes targets on tokens that are easy to predict. Here every token type has a weight w, at first 1.
After each interval of training steps it moves towards the error rate of the model on this type,

    w = decay w + (1 - decay) (1 - score),    score = (correct + 0.5) / (masked + 1),

counted over the masked tokens of the interval (the paper's "hard" score; a type that was not masked scores 0.5). Tokens
of a row are then masked in proportion to their weights, as many as before: the masking rate does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class AdaptiveMasking:
    """Weights of the token types, and the predictions of the current interval. Both are part of a checkpoint."""

    def __init__(self, interval: int, decay: float):
        self.interval, self.decay = interval, decay
        self.weights: Tensor | None = None  # (vocabulary,) float64; None until the first update
        self.counts: Tensor | None = None  # (2, vocabulary): correct and masked tokens of each type

    def add_predictions(self, labels: Tensor, correct: Tensor, vocab_size: int) -> None:
        """Count the predictions of a batch: (N,) labels, (N,) whether the most probable token was the label."""
        import torch

        if self.counts is None:
            self.counts = torch.zeros(2, vocab_size, dtype=torch.float64)
        counts = self.counts = self.counts.to(labels.device)
        counts[0].index_add_(0, labels, correct.to(counts.dtype))
        counts[1].index_add_(0, labels, torch.ones_like(labels, dtype=counts.dtype))

    def start_step(self, step: int) -> None:
        """Update the weights if an interval ended before this step."""
        if not self.changes_at(step) or self.counts is None:
            return
        import torch

        correct, masked = self.counts.cpu()
        score = (correct + 0.5) / (masked + 1)
        weights = torch.ones_like(score) if self.weights is None else self.weights
        self.weights = self.decay * weights + (1 - self.decay) * (1 - score)
        self.counts = torch.zeros_like(self.counts)

    def changes_at(self, step: int) -> bool:
        return step > 0 and step % self.interval == 0

    def choose_keys(self, draft: Draft, rng: RNG) -> np.ndarray | None:
        """(rows, length) random keys: the tokens of a row with the smallest keys are a sample without replacement in
        proportion to their weights (Efraimidis and Spirakis 2006). None before the first update: uniform."""
        if self.weights is None:
            return None
        weights = self.weights.numpy()[draft.original_ids]
        uniform = rng.random(draft.original_ids.shape)
        keys: np.ndarray = -np.log1p(-uniform) / weights  # 1 - uniform is never 0
        return keys

    def state(self) -> dict[str, Tensor]:
        tensors = {"weights": self.weights, "counts": self.counts}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.weights, self.counts = state.get("weights"), state.get("counts")
