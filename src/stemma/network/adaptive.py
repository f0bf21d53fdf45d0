"""Adaptive input and softmax: frequent words get wide vectors and are scored first (arXiv:1609.04309, 1809.10853).

The vocabulary is sorted by frequency and parted at cutoffs. Vectors of each further part are narrower and projected to
the common width; on the way out, the first part is scored together with one entry for every other part, and a rare
word only within its own part. The tables serve both ways, and so do the projections, except the first.
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
    def __init__(self, vocab_size: int, width: int, settings: NetworkSettings):
        super().__init__()
        cutoffs, shrink = settings.embedding.cutoffs, settings.embedding.shrink
        self.num_embeddings, self.embedding_dim = vocab_size, width
        inside = [cutoff for cutoff in cutoffs if cutoff < vocab_size]  # a small vocabulary has fewer parts
        self.cluster_bounds = [0, *inside, vocab_size]
        widths = [max(1, width // shrink**part) for part in range(len(inside) + 1)]
        self.tables = ModuleSequence[LookupEmbedding](
            LookupEmbedding(stop - start, narrow, default_initializer(settings))
            for start, stop, narrow in zip(self.cluster_bounds[:-1], self.cluster_bounds[1:], widths, strict=True))
        # without narrower parts there is nothing to project
        self.projections = ModuleSequence[Linear](
            Linear(narrow, width, False, default_initializer(settings, narrow)) for narrow in widths if shrink > 1)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, width)"""
        flat = input_ids.flatten()
        found = self.tables[0].weight.new_zeros(len(flat), self.embedding_dim)
        for part, (start, stop) in enumerate(zip(self.cluster_bounds[:-1], self.cluster_bounds[1:], strict=True)):
            chosen = ((flat >= start) & (flat < stop)).nonzero()[:, 0]
            vectors = self.tables[part](flat[chosen] - start)
            found = found.index_copy(0, chosen, self._project(part, vectors).to(found.dtype))
        return found.view(*input_ids.shape, -1)

    def _project(self, cluster: int, vectors: Tensor) -> Tensor:
        return self.projections[cluster](vectors) if len(self.projections) else vectors


class AdaptiveSoftmaxHead(TensorModule):
    """The head over the same tables. `first` is the one projection that is not shared."""

    def __init__(self, tokens: AdaptiveInput, settings: NetworkSettings):
        super().__init__()
        self.tokens = tokens  # the embedding's own: a network states that it is stored and counted there
        parts, width = len(tokens.tables), tokens.embedding_dim
        usual = default_initializer(settings, width)
        self.first = Linear(width, width, False, usual) if tokens.projections else None
        self.parts = Linear(width, parts - 1, True, usual) if parts > 1 else None  # one entry for each other part
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(table.num_embeddings)) for table in tokens.tables)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., vocabulary) log-probabilities, which as logits say the same."""
        table, bias = self._head_cluster()
        first = functional.linear(self._project_down(0, hidden), table, bias).float().log_softmax(-1)
        words = self.tokens.tables[0].num_embeddings
        found = [first[..., :words]]
        for part in range(1, len(self.biases)):
            scores = functional.linear(self._project_down(part, hidden), self.tokens.tables[part].weight,
                                       self.biases[part])
            found.append(scores.float().log_softmax(-1) + first[..., words + part - 1, None])
        return torch.cat(found, -1)

    def loss(self, hidden: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        """(N, width), (N,) -> the summed loss over `total`; a part is scored only where it holds the answer."""
        assert not smoothing, "belief in all answers alike would need all parts"
        bounds, words = self.tokens.cluster_bounds, self.tokens.tables[0].num_embeddings
        part = torch.bucketize(labels, torch.tensor(bounds[1:-1], device=labels.device), right=True)
        table, bias = self._head_cluster()
        shortened = torch.where(part == 0, labels, words + part - 1)
        loss = linear_cross_entropy(self._project_down(0, hidden), table, bias, shortened, denominator)
        for number in range(1, len(self.biases)):
            rows = (part == number).nonzero()[:, 0]
            if len(rows):
                loss = loss + linear_cross_entropy(self._project_down(number, hidden[rows]),
                                                   self.tokens.tables[number].weight,
                                              self.biases[number], labels[rows] - bounds[number], denominator)
        return loss

    def _head_cluster(self) -> tuple[Tensor, Tensor]:
        """The first part's words, and the entries that stand for the other parts."""
        table, bias = self.tokens.tables[0].weight, self.biases[0]
        if self.parts is None:
            return table, bias
        return torch.cat([table, self.parts.weight]), torch.cat([bias, self.parts.bias])

    def _project_down(self, cluster: int, hidden: Tensor) -> Tensor:
        """(..., width) -> (..., the part's own width), by the transposed projection."""
        projection = self.first if cluster == 0 else self.tokens.projections[cluster] if self.tokens.projections else None
        return hidden if projection is None else hidden @ projection.weight
