"""The vectors of words as contexts, which word vectors are trained against, and what else only training needs.

word2vec (arXiv:1310.4546) and GloVe (Pennington, Socher & Manning 2014) have two vectors for each word. The first is
the input embedding of the network; this head holds the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.embedding import InputEmbedding
from stemma.network.huffman import huffman_paths
from stemma.network.module import TensorModule
from stemma.schema.network import NetworkSettings

NEVER = -30.0  # log-probability of words that were not trained, such as special tokens
POSITIONS = 512  # positions of a batch that the loss is measured at, evenly spaced


@dataclass(frozen=True)
class ContextHeadSpec:
    """`tree`: hierarchical softmax. `buckets`: of character n-grams."""

    architecture: str
    window: int
    tree: bool = False
    sampled: bool = True
    buckets: int = 0

    def build(self, settings: NetworkSettings, embedding: InputEmbedding) -> nn.Module:
        return ContextHead(self, embedding.tokens.num_embeddings, settings.width)


class ContextHead(TensorModule):
    """`counts`: occurrences of each trained word in the training text, 0 for all other tokens."""

    counts: Tensor
    bias: Tensor

    def __init__(self, spec: ContextHeadSpec, vocab_size: int, width: int):
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.zeros(vocab_size, width)) if spec.sampled or not spec.tree else None
        # of GloVe: learned; of word2vec: mostly the logarithm of the distribution of negatives, because the products
        # that it learns are log-odds against it (Levy & Goldberg 2014)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.register_buffer("counts", torch.zeros(vocab_size, dtype=torch.int64))
        if spec.architecture == "glove":
            self.word_bias = nn.Parameter(torch.zeros(vocab_size))
        if spec.tree:
            self.inner = nn.Parameter(torch.zeros(vocab_size, width))  # vectors of the inner nodes of the tree
        if spec.buckets:  # rows of words without their n-grams, and rows of n-grams
            self.own = nn.Parameter(torch.empty(vocab_size, width).uniform_(-1 / width, 1 / width))
            self.buckets = nn.Parameter(torch.empty(spec.buckets, width).uniform_(-1 / width, 1 / width))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., vocabulary) logits of the words around."""
        assert self.weight is not None
        return functional.linear(hidden, self.weight, self.bias)

    def context_loss(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """The mean cross-entropy of neighbours; nearer ones count more, as in training. (B, L, width), (B, L)"""
        spec, known = self.spec, self.counts > 0
        window = spec.window
        padded = functional.pad(ids, (window, window), value=-1)
        around = padded.unfold(1, 2 * window + 1, 1)  # (B, L, 2 window + 1)
        distance = (torch.arange(2 * window + 1, device=ids.device) - window).abs()
        weight = 1 / distance.clamp(min=1) if spec.architecture == "glove" else (window + 1 - distance) / window
        weights = weight * (distance > 0) * ((around >= 0) & known[around.clamp(min=0)] & known[ids][..., None])
        at = (weights.sum(-1) > 0).flatten().nonzero()[:, 0]
        at = at[:: max(1, len(at) // POSITIONS)]
        if not len(at):
            return hidden.new_zeros(())
        around, weights, centers = around.flatten(0, 1)[at], weights.flatten(0, 1)[at], ids.flatten()[at]
        if spec.architecture == "cbow":
            vectors = functional.pad(hidden, (0, 0, window, window)).unfold(1, 2 * window + 1, 1)
            used = (weights > 0).to(hidden.dtype)
            sums = torch.einsum("nwk,nk->nw", vectors.flatten(0, 1)[at], used)
            return -self._log_probabilities(sums / used.sum(1, keepdim=True), centers[:, None]).mean()
        vectors = hidden.flatten(0, 1)[at]
        if spec.architecture == "glove":  # the published vector is the sum of both
            assert self.weight is not None
            vectors = vectors - self.weight[centers]
        scores = self._log_probabilities(vectors, around.clamp(min=0))
        return -(scores * weights).sum() / weights.sum()

    def _log_probabilities(self, vectors: Tensor, words: Tensor) -> Tensor:
        """(N, width), (N, K) -> (N, K)"""
        if not self.spec.sampled and self.spec.tree:
            signs, nodes = (torch.from_numpy(array).to(vectors.device) for array in
                            huffman_paths(self.counts.cpu().numpy()))
            scores = torch.einsum("nw,nkpw->nkp", vectors, self.inner[nodes[words]])
            return (functional.logsigmoid(scores * signs[words]) * (signs[words] != 0)).sum(-1)
        return self(vectors).masked_fill(self.counts == 0, NEVER).log_softmax(-1).gather(1, words)
