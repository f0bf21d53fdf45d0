"""A linear-chain CRF by enumeration: the score of every tag sequence (arXiv:1508.01991, section 2.3)."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


def all_scores(emissions: Tensor, pairs: Tensor, first: Tensor, last: Tensor) -> dict[tuple[int, ...], Tensor]:
    """(W, tags) emission scores of one sentence -> the score of each of its tags ** W tag sequences."""
    words, tags = emissions.shape
    scores = {}
    for sequence in itertools.product(range(tags), repeat=words):
        score = first[sequence[0]] + last[sequence[-1]]
        for word, tag in enumerate(sequence):
            score = score + emissions[word, tag]
        for before, after in itertools.pairwise(sequence):
            score = score + pairs[before, after]
        scores[sequence] = score
    return scores


def loss(emissions: Tensor, pairs: Tensor, first: Tensor, last: Tensor, gold: tuple[int, ...]) -> Tensor:
    """Negative log-probability of the gold sequence."""
    scores = all_scores(emissions, pairs, first, last)
    return torch.stack(list(scores.values())).exp().sum().log() - scores[gold]


def best(emissions: Tensor, pairs: Tensor, first: Tensor, last: Tensor) -> tuple[int, ...]:
    scores = all_scores(emissions, pairs, first, last)
    return max(scores, key=lambda sequence: float(scores[sequence].detach()))


def tag_probabilities(emissions: Tensor, pairs: Tensor, first: Tensor, last: Tensor) -> list[list[float]]:
    """The probability of each tag of each word: a sum over all sequences with this tag."""
    scores = all_scores(emissions, pairs, first, last)
    total = sum(math.exp(float(score.detach())) for score in scores.values())
    words, tags = emissions.shape
    return [[sum(math.exp(float(score.detach())) for sequence, score in scores.items() if sequence[word] == tag) / total
             for tag in range(tags)] for word in range(words)]
