"""A linear-chain conditional random field: scores of tag sequences (Lafferty et al. 2001; arXiv:1508.01991).

The score of a sequence is the sum of its emission scores, one for each word and tag, and of its transition scores, one
for each pair of neighbouring tags, for the first tag and for the last one. Sums and maxima over all sequences are
computed by dynamic programming: a step for each word, vectorized over the batch and all pairs of tags.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stemma.network.embedding import InputEmbedding
from stemma.network.module import TensorModule
from stemma.registry import register
from stemma.schema.network import NetworkSettings


@register("head", "TagTransitions")
@dataclass(frozen=True)
class TagTransitions:
    """The transition scores of a CRF, beside a head that computes the emission scores."""

    classes: int

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return TransitionTable(self.classes)


class TransitionTable(TensorModule):
    """Learned transition scores. At first all are 0: without transitions, a CRF is a softmax for each word."""

    def __init__(self, classes: int):
        super().__init__()
        self.pairs = nn.Parameter(torch.zeros(classes, classes))
        self.first = nn.Parameter(torch.zeros(classes))
        self.last = nn.Parameter(torch.zeros(classes))

    def forward(self) -> Tensor:
        """(tags + 2, tags): from each tag to each tag, then the scores of the first tag, then those of the last."""
        return torch.cat([self.pairs, self.first[None], self.last[None]])


def log_normalizer(emissions: Tensor, mask: Tensor, transitions: Tensor) -> Tensor:
    """(B, W, tags) emission scores, (B, W) True at words, which come before all padding, and at the first position,
    (tags + 2, tags) or (B, tags + 2, tags) transition scores -> (B,): the log of the sum over all tag sequences."""
    pairs, first, last = _split(transitions)
    scores = first + emissions[:, 0]  # (B, tags): of all sequences up to a word that end with a tag
    for word in range(1, emissions.shape[1]):
        extended = torch.logsumexp(scores[:, :, None] + pairs, 1) + emissions[:, word]
        scores = torch.where(mask[:, word, None], extended, scores)
    return torch.logsumexp(scores + last, 1)


def sequence_score(emissions: Tensor, mask: Tensor, transitions: Tensor, tags: Tensor) -> Tensor:
    """(B,): the score of each tag sequence (B, W); tags at padding may be any."""
    pairs, first, last = transitions[:-2], transitions[-2], transitions[-1]
    emitted = (emissions.gather(2, tags[:, :, None])[..., 0] * mask).sum(1)
    passed = (pairs[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(1)
    final = tags.gather(1, mask.sum(1, keepdim=True) - 1)[:, 0]
    return emitted + passed + first[tags[:, 0]] + last[final]


def best_sequences(emissions: Tensor, mask: Tensor, transitions: Tensor) -> Tensor:
    """(B, W): the tag sequence with the highest score (Viterbi's algorithm); padding repeats the last tag."""
    pairs, first, last = _split(transitions)
    scores, origins = first + emissions[:, 0], []
    same = torch.arange(emissions.shape[2], device=emissions.device).expand_as(scores)
    for word in range(1, emissions.shape[1]):
        extended, origin = (scores[:, :, None] + pairs).max(1)
        scores = torch.where(mask[:, word, None], extended + emissions[:, word], scores)
        origins.append(torch.where(mask[:, word, None], origin, same))
    tags = [(scores + last).argmax(1)]
    for origin in reversed(origins):
        tags.append(origin.gather(1, tags[-1][:, None])[:, 0])
    return torch.stack(tags[::-1], 1)


def marginals(emissions: Tensor, mask: Tensor, transitions: Tensor) -> Tensor:
    """(B, W, tags): the probability of each tag of each word, summed over all sequences; 0 at padding. It is the
    derivative of the log normalizer with respect to the emission score."""
    with torch.inference_mode(False), torch.enable_grad():
        scores = emissions.clone().requires_grad_()
        (probabilities,) = torch.autograd.grad(log_normalizer(scores, mask, transitions.clone()).sum(), scores)
    return probabilities


def _split(transitions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(tags, tags) scores of pairs, (tags,) of the first tag and of the last; or each with the rows of a batch."""
    return transitions[..., :-2, :], transitions[..., -2, :], transitions[..., -1, :]
