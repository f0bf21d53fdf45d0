"""Adaptive input embeddings and adaptive softmax (arXiv:1809.10853, 1609.04309).

The vocabulary is sorted by frequency and split at cutoffs into clusters. Embeddings of rarer clusters are smaller and
are projected to the common width. The softmax scores the first cluster together with one entry for each other cluster;
a rare token is scored within its cluster only. Input and output share the embeddings and all projections but the first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.initialization import Linear, LookupEmbedding, default_initializer
from stemma.network.linear_cross_entropy import linear_cross_entropy
from stemma.network.module import ModuleSequence, TensorModule
from stemma.schema.network import NetworkSettings


class AdaptiveInput(TensorModule):
    """Token embedding whose size decreases with the frequency cluster of the token."""

    def __init__(self, vocab_size: int, width: int, settings: NetworkSettings):
        super().__init__()
        cutoffs, shrink = settings.embedding.cutoffs, settings.embedding.div_val
        self.num_embeddings, self.embedding_dim = vocab_size, width
        used_cutoffs = [cutoff for cutoff in cutoffs if cutoff < vocab_size]  # a small vocabulary has fewer clusters
        self.cluster_bounds = [0, *used_cutoffs, vocab_size]
        sizes = [max(1, width // shrink**cluster) for cluster in range(len(used_cutoffs) + 1)]
        self.tables = ModuleSequence[LookupEmbedding](
            LookupEmbedding(stop - start, size, default_initializer(settings))
            for start, stop, size in zip(self.cluster_bounds[:-1], self.cluster_bounds[1:], sizes, strict=True))
        # embeddings of equal size need no projection
        self.projections = ModuleSequence[Linear](
            Linear(size, width, False, default_initializer(settings, size)) for size in sizes if shrink > 1)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, width)"""
        flat = input_ids.flatten()
        embedded = self.tables[0].weight.new_zeros(len(flat), self.embedding_dim)
        for cluster, (start, stop) in enumerate(zip(self.cluster_bounds[:-1], self.cluster_bounds[1:], strict=True)):
            indices = ((flat >= start) & (flat < stop)).nonzero()[:, 0]
            vectors = self.tables[cluster](flat[indices] - start)
            embedded = embedded.index_copy(0, indices, self._project(cluster, vectors).to(embedded.dtype))
        return embedded.view(*input_ids.shape, -1)

    def _project(self, cluster: int, vectors: Tensor) -> Tensor:
        return self.projections[cluster](vectors) if len(self.projections) else vectors


class AdaptiveSoftmaxHead(TensorModule):
    """Adaptive softmax over the embeddings of `AdaptiveInput`. `first` is the only projection that is not shared."""

    def __init__(self, tokens: AdaptiveInput, settings: NetworkSettings):
        super().__init__()
        self.tokens = tokens  # shared: the network stores and counts it as part of the embedding
        num_clusters, width = len(tokens.tables), tokens.embedding_dim
        initializer = default_initializer(settings, width)
        self.first = Linear(width, width, False, initializer) if tokens.projections else None
        # one logit for each cluster but the first
        self.parts = Linear(width, num_clusters - 1, True, initializer) if num_clusters > 1 else None
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(table.num_embeddings)) for table in tokens.tables)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., vocabulary) log-probabilities, which are valid logits."""
        weight, bias = self._head_cluster()
        head_log_probs = functional.linear(self._project_down(0, hidden), weight, bias).float().log_softmax(-1)
        head_size = self.tokens.tables[0].num_embeddings
        log_probs = [head_log_probs[..., :head_size]]
        for cluster in range(1, len(self.biases)):
            logits = functional.linear(self._project_down(cluster, hidden), self.tokens.tables[cluster].weight,
                                       self.biases[cluster])
            log_probs.append(logits.float().log_softmax(-1) + head_log_probs[..., head_size + cluster - 1, None])
        return torch.cat(log_probs, -1)

    def loss(self, hidden: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        """(N, width), (N,) -> the sum of the losses divided by `denominator`. A cluster is computed only for the labels
        that it contains."""
        assert not smoothing, "label smoothing would need all clusters"
        bounds, head_size = self.tokens.cluster_bounds, self.tokens.tables[0].num_embeddings
        clusters = torch.bucketize(labels, torch.tensor(bounds[1:-1], device=labels.device), right=True)
        weight, bias = self._head_cluster()
        head_labels = torch.where(clusters == 0, labels, head_size + clusters - 1)
        loss = linear_cross_entropy(self._project_down(0, hidden), weight, bias, head_labels, denominator)
        for cluster in range(1, len(self.biases)):
            rows = (clusters == cluster).nonzero()[:, 0]
            if len(rows):
                loss = loss + linear_cross_entropy(
                    self._project_down(cluster, hidden[rows]), self.tokens.tables[cluster].weight,
                    self.biases[cluster], labels[rows] - bounds[cluster], denominator)
        return loss

    def _head_cluster(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the first cluster and of the entries for the other clusters."""
        weight, bias = self.tokens.tables[0].weight, self.biases[0]
        if self.parts is None:
            return weight, bias
        return torch.cat([weight, self.parts.weight]), torch.cat([bias, self.parts.bias])

    def _project_down(self, cluster: int, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., embedding size of the cluster), by the transposed projection."""
        projection = self.first
        if cluster > 0:
            projection = self.tokens.projections[cluster] if self.tokens.projections else None
        return hidden if projection is None else hidden @ projection.weight
