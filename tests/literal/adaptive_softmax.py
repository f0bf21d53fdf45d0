"""Adaptive input (arXiv:1809.10853) and adaptive softmax (arXiv:1609.04309) as in Transformer-XL, word by word.

Words are sorted by frequency. `cutoffs` are the first words of the second, third, ... cluster, without 0 and without
the size of the vocabulary. Cluster c has its own width (the paper: width / 4^c). Weights, matrices as (out, in):

    c.table              (words of cluster c, its width)    embedding matrix, tied to the output
    c.projection         (width, width of cluster c)        input; absent if the widths are equal
    c.output_projection  the same shape                     output; absent if it is tied to c.projection
    c.bias               (words of cluster c,)              of the output
    tail, tail_bias      (clusters - 1, width of cluster 0), (clusters - 1,)   one row for each tail cluster, after
                         the first cluster's words in the head: row c - 1 is the logit of cluster c

The published WikiText-103 model ties all embedding matrices, and all projections but that of cluster 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def cluster_of(word: int, cutoffs: list[int]) -> tuple[int, int]:
    """The cluster of a word and its index in the cluster."""
    first = 0
    for cluster, cutoff in enumerate(cutoffs):
        if word < cutoff:
            return cluster, word - first
        first = cutoff
    return len(cutoffs), word - first


def embedded(ids: list[int], weights: Weights, cutoffs: list[int], width: int) -> Tensor:
    """(L, width): the embedding of each word, projected to the common width, times sqrt(width)."""
    rows = []
    for word in ids:
        cluster, index = cluster_of(word, cutoffs)
        row = weights[f"{cluster}.table"][index]
        if f"{cluster}.projection" in weights:
            row = weights[f"{cluster}.projection"] @ row
        rows.append(row * math.sqrt(width))
    return torch.stack(rows)


def cluster_logits(hidden: Tensor, weights: Weights, cluster: int) -> tuple[Tensor, Tensor]:
    """The hidden state in the cluster's width, and the logits of the cluster's words."""
    projection = weights.get(f"{cluster}.output_projection", weights.get(f"{cluster}.projection"))
    if projection is not None:
        hidden = projection.T @ hidden  # the transposed projection of the input
    return hidden, weights[f"{cluster}.table"] @ hidden + weights[f"{cluster}.bias"]


def log_probabilities(hidden: Tensor, weights: Weights, cutoffs: list[int]) -> Tensor:
    """(width,) -> (vocabulary,): the log-probability of every word, from one hidden state."""
    projected, words = cluster_logits(hidden, weights, 0)
    if not cutoffs:
        return torch.log_softmax(words, dim=0)
    head = torch.log_softmax(torch.cat([words, weights["tail"] @ projected + weights["tail_bias"]]), dim=0)
    parts = [head[:cutoffs[0]]]
    for cluster in range(1, len(cutoffs) + 1):
        cluster_log_probability = head[cutoffs[0] + cluster - 1]
        _, words = cluster_logits(hidden, weights, cluster)
        parts.append(cluster_log_probability + torch.log_softmax(words, dim=0))
    return torch.cat(parts)
