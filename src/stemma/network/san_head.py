"""Two texts are compared in several steps, and every step's guess counts (SAN, arXiv:1804.07888; in MT-DNN,
arXiv:1901.11504, section 3, for pairs).

A summary of the second text is the first state. At each step the state looks through the first text, guesses from
what it holds and what it found there, and is renewed by it. The answer is the mean of all steps' chances; while
learning, some steps are left out of that mean, so that none can be relied on alone.
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
    """Guess one of a few classes for two texts."""

    classes: int
    steps: int = 5
    dropout: float = 0.1
    forgets: float = 0.1  # share of the steps whose guess is left out while learning

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return StochasticAnswerHead(settings.width, self, default_initializer(settings, settings.width),
                                    default_initializer(settings, 4 * settings.width))


class StochasticAnswerHead(TensorModule):
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
        """(B, L, width), (B, 4) first place and number of places of each text -> (B, classes) log chances."""
        with torch.autocast(hidden.device.type, enabled=False):  # few numbers, and a mean of chances: exactly
            return self._mean([functional.log_softmax(guess, -1) for guess in self._step_logits(hidden.float(),
                                                                                                text_spans)])

    def _step_logits(self, hidden: Tensor, text_spans: Tensor) -> list[Tensor]:
        """(B, classes) logits of every step."""
        first, second = (_span_mask(text_spans[:, at:at + 2], hidden.shape[1]) for at in (0, 2))
        state = _attention_pool(hidden, self.summary(hidden)[..., 0], second)  # (B, width)
        made = []
        for step in range(self.steps):
            attended = _attention_pool(hidden, (hidden @ self.query(state)[..., None])[..., 0], first)
            features = torch.cat([state, attended, (state - attended).abs(), state * attended], -1)
            made.append(self.output(self.dropout(features)))
            if step + 1 < self.steps:
                state = self.renewal(attended, self.dropout(state))
        return made

    def _mean(self, step_log_probs: list[Tensor]) -> Tensor:
        """The log of the mean of the steps' chances: of all, or while learning of some, but of one at least."""
        log_probs = torch.stack(step_log_probs, 1)  # (B, steps, classes)
        kept = torch.ones(log_probs.shape[:2], dtype=torch.bool, device=log_probs.device)
        if self.training and self.step_dropout:
            kept = torch.rand(kept.shape, device=kept.device) >= self.step_dropout
            kept.scatter_(1, torch.randint(self.steps, (len(kept), 1), device=kept.device), True)
        total = log_probs.masked_fill(~kept[..., None], -torch.inf).logsumexp(1)
        return total - kept.sum(1, keepdim=True).log()


def _span_mask(span: Tensor, length: int) -> Tensor:
    """(B, 2) -> (B, L): the places that belong to a text."""
    places = torch.arange(length, device=span.device)
    return (places >= span[:, :1]) & (places < span.sum(1, keepdim=True))


def _attention_pool(hidden: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """(B, L, width), (B, L), (B, L) -> (B, width): a mean of the places inside, weighted by their scores."""
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights[:, None] @ hidden)[:, 0]
