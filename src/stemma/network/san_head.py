"""Stochastic answer network (SAN, arXiv:1804.07888), as used for text pairs in MT-DNN (arXiv:1901.11504, section 3).

The initial state is an attention-pooled summary of the second text. At each step the state attends to the first text,
predicts from both, and is updated by a GRU. The prediction is the mean of the steps' probabilities. In training some
steps are dropped from the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.dropout import Dropout
from stemma.network.embedding import InputEmbedding
from stemma.network.initialization import Initializer, Linear, default_initializer
from stemma.network.module import TensorModule
from stemma.registry import register
from stemma.schema.network import NetworkSettings


@register("head", "SanHead")
@dataclass(frozen=True)
class SanHead:
    """Classification of a pair of texts by a stochastic answer network."""

    classes: int
    steps: int = 5
    dropout: float = 0.1
    forgets: float = 0.1  # probability that a step is dropped in training

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return StochasticAnswerHead(settings.width, self, default_initializer(settings, settings.width),
                                    default_initializer(settings, 4 * settings.width))


class StochasticAnswerHead(TensorModule):
    """SAN's answer module."""

    def __init__(self, width: int, spec: SanHead, initializer: Initializer = Initializer(0.02),
                 output_initializer: Initializer = Initializer(0.02)):
        super().__init__()
        self.steps, self.step_dropout = spec.steps, spec.forgets
        self.summary = Linear(width, 1, False, initializer)
        self.query = Linear(width, width, False, initializer)
        self.renewal = nn.GRUCell(width, width)
        self.dropout = Dropout(spec.dropout)
        self.output = Linear(4 * width, spec.classes, True, output_initializer)

    def forward(self, hidden: Tensor, text_spans: Tensor) -> Tensor:
        """(B, L, width), (B, 4) start and length of both texts -> (B, classes) log-probabilities."""
        with torch.autocast(hidden.device.type, enabled=False):  # full precision: it is small
            step_logits = self._step_logits(hidden.float(), text_spans)
            return self._mean([functional.log_softmax(logits, -1) for logits in step_logits])

    def _step_logits(self, hidden: Tensor, text_spans: Tensor) -> list[Tensor]:
        """(B, classes) logits of every step."""
        first, second = (_span_mask(text_spans[:, start:start + 2], hidden.shape[1]) for start in (0, 2))
        state = _attention_pool(hidden, self.summary(hidden)[..., 0], second)  # (B, width)
        step_logits = []
        for step in range(self.steps):
            attended = _attention_pool(hidden, (hidden @ self.query(state)[..., None])[..., 0], first)
            features = torch.cat([state, attended, (state - attended).abs(), state * attended], -1)
            step_logits.append(self.output(self.dropout(features)))
            if step + 1 < self.steps:
                state = self.renewal(attended, self.dropout(state))
        return step_logits

    def _mean(self, step_log_probs: list[Tensor]) -> Tensor:
        """Log of the mean probability over all steps; in training over a random subset with at least one step."""
        log_probs = torch.stack(step_log_probs, 1)  # (B, steps, classes)
        mask = torch.ones(log_probs.shape[:2], dtype=torch.bool, device=log_probs.device)
        if self.training and self.step_dropout:
            mask = torch.rand(mask.shape, device=mask.device) >= self.step_dropout
            mask.scatter_(1, torch.randint(self.steps, (len(mask), 1), device=mask.device), True)
        log_sum = log_probs.masked_fill(~mask[..., None], -torch.inf).logsumexp(1)
        return log_sum - mask.sum(1, keepdim=True).log()


def _span_mask(span: Tensor, length: int) -> Tensor:
    """(B, 2) start and length -> (B, L) True inside the span."""
    positions = torch.arange(length, device=span.device)
    return (positions >= span[:, :1]) & (positions < span.sum(1, keepdim=True))


def _attention_pool(hidden: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """(B, L, width), (B, L) scores, (B, L) mask -> (B, width): attention-weighted mean."""
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights[:, None] @ hidden)[:, 0]
