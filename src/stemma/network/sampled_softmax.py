"""Sampled softmax (Jean et al., arXiv:1412.2007): the cross-entropy over the label and a sample of the vocabulary.

Tokens are sampled without replacement from a log-uniform distribution over the ids, which fits a vocabulary that is
sorted by frequency: P(id) = log((id + 2) / (id + 1)) / log(V + 1). All targets of a batch share the sample. From each
logit the logarithm of the expected number of its draws is subtracted, so that the gradient approaches that of the full
softmax, and a sampled token that is the label of a target is left out there. This is TensorFlow's
`sampled_softmax_loss`, with which ELMo is trained.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

MIN_BLOCK = 1024  # draws at a time


class TokenSample(NamedTuple):
    """Distinct token ids, and the number of draws that it took to find them."""

    ids: Tensor  # (S,)
    draws: int


def sample_tokens(count: int, vocabulary: int, device: torch.device | str = "cpu") -> TokenSample:
    """`count` distinct ids: draw until there are as many."""
    assert 0 < count < vocabulary, "the sample is a part of the vocabulary"
    drawn = torch.zeros(0, dtype=torch.long, device=device)
    while True:
        uniform = torch.rand(max(MIN_BLOCK, 2 * count), device=device, dtype=torch.float64)
        block = torch.exp(uniform * math.log(vocabulary + 1)).long() - 1  # the inverse of the distribution function
        drawn = torch.cat([drawn, block.clamp_(0, vocabulary - 1)])
        first = _first_occurrences(drawn, vocabulary)
        if len(first) >= count:
            return TokenSample(drawn[first[:count]], int(first[count - 1]) + 1)


def _first_occurrences(drawn: Tensor, vocabulary: int) -> Tensor:
    """The ascending indices at which a value occurs for the first time."""
    index = torch.arange(len(drawn), device=drawn.device)
    first = torch.full((vocabulary,), len(drawn), device=drawn.device).scatter_reduce_(0, drawn, index, "amin")
    return torch.nonzero(first[drawn] == index)[:, 0]


def log_expected_draws(ids: Tensor, draws: int, vocabulary: int) -> Tensor:
    """The logarithm of the probability that an id is among this many draws."""
    ids = ids.double()
    probability = torch.log((ids + 2) / (ids + 1)) / math.log(vocabulary + 1)
    return torch.log(-torch.expm1(draws * torch.log1p(-probability))).float()


def sampled_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                          sample: TokenSample) -> Tensor:
    """(N, width), (N,) -> (N,) losses."""
    ids, vocabulary = sample.ids, len(weight)
    sampled_bias, label_bias = (-log_expected_draws(tokens, sample.draws, vocabulary) for tokens in (ids, labels))
    if bias is not None:
        sampled_bias, label_bias = sampled_bias + bias[ids], label_bias + bias[labels]
    hidden = hidden.float()
    sampled_logits = torch.addmm(sampled_bias, hidden, weight[ids].float().T)
    sampled_logits = sampled_logits.masked_fill(labels[:, None] == ids, -torch.inf)
    label_logits = (hidden * functional.embedding(labels, weight).float()).sum(1) + label_bias
    logits = torch.cat([label_logits[:, None], sampled_logits], 1)
    return logits.logsumexp(1) - label_logits
