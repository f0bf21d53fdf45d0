"""Adaptive input (arXiv:1809.10853) and adaptive softmax (arXiv:1609.04309) as Transformer-XL joins them, word by word.

Words are sorted by frequency. `cutoffs` are the first words of the second, third, ... cluster, without 0 and without
the size of the vocabulary. Cluster c has its own width (the paper: width / 4^c). Weights, matrices as (out, in):

    c.table              (words of cluster c, its width)    of the input and, tied, of the output
    c.projection         (width, width of cluster c)        input: width <- cluster; absent: equal widths, none needed
    c.output_projection  the same shape                     output, where it is not tied to c.projection
    c.bias               (words of cluster c,)              of the output
    tail, tail_bias      (clusters - 1, width of cluster 0), (clusters - 1,)   one row a tail cluster, behind the first
                         cluster's words in the head: row c - 1 stands for cluster c

The published WikiText-103 model ties every table, and every projection but cluster 0's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def cluster_of(word: int, cutoffs: list[int]) -> tuple[int, int]:
    """The cluster of a word and the word's place in it."""
    first = 0
    for cluster, cutoff in enumerate(cutoffs):
        if word < cutoff:
            return cluster, word - first
        first = cutoff
    return len(cutoffs), word - first


def embedded(ids: list[int], weights: Weights, cutoffs: list[int], width: int) -> Tensor:
    """(L, width): each word's row of its cluster's table, brought to the common width, times sqrt(width)."""
    rows = []
    for word in ids:
        cluster, place = cluster_of(word, cutoffs)
        row = weights[f"{cluster}.table"][place]
        if f"{cluster}.projection" in weights:
            row = weights[f"{cluster}.projection"] @ row
        rows.append(row * math.sqrt(width))
    return torch.stack(rows)


def cluster_logits(hidden: Tensor, weights: Weights, cluster: int) -> tuple[Tensor, Tensor]:
    """The state in the cluster's own width, and a logit for each of its words."""
    projection = weights.get(f"{cluster}.output_projection", weights.get(f"{cluster}.projection"))
    if projection is not None:
        hidden = projection.T @ hidden  # the input's projection, read the other way round
    return hidden, weights[f"{cluster}.table"] @ hidden + weights[f"{cluster}.bias"]


def log_probabilities(hidden: Tensor, weights: Weights, cutoffs: list[int]) -> Tensor:
    """(width,) -> (vocabulary,): the log-probability of every word after one state."""
    narrow, words = cluster_logits(hidden, weights, 0)
    if not cutoffs:
        return torch.log_softmax(words, dim=0)
    head = torch.log_softmax(torch.cat([words, weights["tail"] @ narrow + weights["tail_bias"]]), dim=0)
    parts = [head[:cutoffs[0]]]
    for cluster in range(1, len(cutoffs) + 1):
        of_cluster = head[cutoffs[0] + cluster - 1]
        _, words = cluster_logits(hidden, weights, cluster)
        parts.append(of_cluster + torch.log_softmax(words, dim=0))
    return torch.cat(parts)
