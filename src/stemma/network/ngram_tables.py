"""The n-gram model as a network: a body whose hidden state is the context itself, and tables that give probabilities.

What is counted are buffers (`counts/kneser_ney.py` estimates them; their sizes depend on the text). A hidden state
holds the last tokens as numbers, the newest first, -1 where a text begins. All lookups are binary searches of whole
arrays: an n-gram of k tokens is found by the row of its first k - 1 tokens and its last token.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from stemma.counts.kneser_ney import NgramTables
from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.kinds import NgramBodySettings
from stemma.network.module import TensorModule
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart

DENSE_BLOCK = 1 << 22  # probabilities of whole vocabularies that are computed at once
NOTHING = -1  # a context or an n-gram that is not in a table


class CountingTable(TensorModule, ABC):
    """What is counted, as buffers, and the "embedding" of a token: its number. The head shares it."""

    context_width: int  # numbers of a hidden state that are the context

    def __init__(self, vocab_size: int):
        super().__init__()
        self.num_embeddings, self.embedding_dim = vocab_size, 1

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, 1)"""
        return ids[..., None].float()

    @abstractmethod
    def score(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """(N, context width), (N,) tokens -> (N,) natural log-probabilities."""

    @abstractmethod
    def distributions(self, contexts: Tensor) -> Tensor:
        """(N, context width) -> (N, vocabulary) natural log-probabilities of every token."""

    def resize_buffers(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Make room for saved tables of these shapes; names as in `named_buffers` of this module."""
        for name, buffer in list(self.named_buffers()):
            if name in shapes and len(shapes[name]) == 1:
                self.register_buffer(name, buffer.new_zeros(*shapes[name]))


class NgramTable(CountingTable):
    """The tables of all orders."""

    def __init__(self, vocab_size: int, order: int):
        super().__init__(vocab_size)
        self.order, self.context_width = order, order - 1
        for length in range(1, order + 1):
            if length > 1:
                self.register_buffer(f"keys_{length}", torch.zeros(0, dtype=torch.int64))
            rows = vocab_size if length == 1 else 0  # before anything is counted, the uniform distribution
            self.register_buffer(f"log_probs_{length}", torch.full((rows,), -math.log(vocab_size)))
            if length < order:
                self.register_buffer(f"backoffs_{length}", torch.zeros(rows))

    def assign(self, tables: NgramTables) -> None:
        """Replace all tables."""
        device = self._buffer("log_probs", 1).device
        for length in range(1, self.order + 1):
            self.register_buffer(f"log_probs_{length}", torch.from_numpy(tables.log_probs[length - 1]).to(device))
            if length > 1:
                self.register_buffer(f"keys_{length}", torch.from_numpy(tables.keys[length - 2]).to(device))
            if length < self.order:
                self.register_buffer(f"backoffs_{length}", torch.from_numpy(tables.backoffs[length - 1]).to(device))

    def tables(self) -> NgramTables:
        """The tables as arrays."""
        lengths = range(1, self.order + 1)
        return NgramTables(self.num_embeddings, [self._buffer("keys", n).cpu().numpy() for n in lengths if n > 1],
                           [self._buffer("log_probs", n).cpu().numpy() for n in lengths],
                           [self._buffer("backoffs", n).cpu().numpy() for n in lengths if n < self.order])

    def _buffer(self, name: str, length: int) -> Tensor:
        buffer: Tensor = getattr(self, f"{name}_{length}")
        return buffer

    def find(self, length: int, rows: Tensor, tokens: Tensor) -> Tensor:
        """The table row of the n-grams of `length` tokens that consist of `rows` of the table below and `tokens`;
        NOTHING where there is none."""
        keys = self._buffer("keys", length)
        if not len(keys):
            return torch.full_like(rows, NOTHING)
        wanted = rows * self.num_embeddings + tokens
        found = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        return torch.where((rows >= 0) & (tokens >= 0) & (keys[found] == wanted), found, NOTHING)

    def context_rows(self, contexts: Tensor) -> list[Tensor]:
        """(N, order - 1) contexts, the newest token first -> the row of the last 1, 2, ... tokens of each."""
        rows = []
        for length in range(1, self.order):
            row = contexts[:, length - 1]
            for column in range(length - 2, -1, -1):
                row = self.find(length - column, row, contexts[:, column])
            rows.append(row)
        return rows

    def score(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """(N, order - 1) contexts, (N,) tokens -> (N,) natural log-probabilities."""
        scores = self._buffer("log_probs", 1)[tokens]
        for length, row in enumerate(self.context_rows(contexts), 1):
            backed_off = scores + self._values("backoffs", length, row, torch.zeros_like(scores))
            scores = self._values("log_probs", length + 1, self.find(length + 1, row, tokens), backed_off)
        return scores

    def _values(self, name: str, length: int, rows: Tensor, default: Tensor) -> Tensor:
        """The values of these rows, or `default` where a row is NOTHING."""
        values = self._buffer(name, length)
        return torch.where(rows >= 0, values[rows.clamp(min=0)], default) if len(values) else default

    def distributions(self, contexts: Tensor) -> Tensor:
        """(N, order - 1) -> (N, vocabulary) natural log-probabilities of every token."""
        scores = self._buffer("log_probs", 1).expand(len(contexts), -1).clone()
        for length, row in enumerate(self.context_rows(contexts), 1):
            index = (row >= 0).nonzero()[:, 0]
            if not len(index):
                continue
            row = row[index]
            scores[index] += self._buffer("backoffs", length)[row][:, None]
            keys = self._buffer("keys", length + 1)
            first, stop = (torch.searchsorted(keys, (row + extra) * self.num_embeddings) for extra in (0, 1))
            count = stop - first
            ngrams = torch.arange(int(count.sum()), device=row.device) + (
                first - (count.cumsum(0) - count)).repeat_interleave(count)
            scores[index.repeat_interleave(count), keys[ngrams] % self.num_embeddings] = \
                self._buffer("log_probs", length + 1)[ngrams]
        return scores


class CountHead(TensorModule):
    """Language-modeling head over the tables."""

    def __init__(self, table: CountingTable):
        super().__init__()
        self.tokens = table  # shared with the embedding, where it is stored

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., contexts) -> (..., vocabulary) log-probabilities."""
        contexts = self._contexts(hidden)
        rows = max(1, DENSE_BLOCK // self.tokens.num_embeddings)
        parts = [self.tokens.distributions(contexts[start:start + rows]) for start in range(0, len(contexts), rows)]
        vocabulary = self.tokens.num_embeddings
        scores = torch.cat(parts) if parts else hidden.new_zeros(0, vocabulary)
        return scores.view(*hidden.shape[:-1], vocabulary)

    def loss(self, hidden: Tensor, labels: Tensor, denominator: float, smoothing: float = 0.0) -> Tensor:
        """The sum of the losses divided by `denominator`. Counts have no gradient, so there is no label smoothing."""
        return -self.label_scores(hidden, labels).sum() / denominator

    def label_scores(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """(N, contexts), (N,) -> (N,) log-probabilities, without those of the other tokens."""
        return self.tokens.score(self._contexts(hidden), labels)

    def _contexts(self, hidden: Tensor) -> Tensor:
        return hidden.reshape(-1, hidden.shape[-1])[:, : self.tokens.context_width].round().long()


class NgramBody(Body):
    """Hidden states are contexts: at each position the last order - 1 tokens, the newest first."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        assert isinstance(part.body, NgramBodySettings)
        self.width = max(1, part.body.order - 1)

    def layer_groups(self) -> list[list[nn.Module]]:
        return [[self]]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        ids = x[..., 0]  # (B, L)
        before = ids.new_full((len(ids), self.width - 1), float(NOTHING))
        if stack_input.cache is not None:  # incremental decoding: the tokens of the calls before
            layer = stack_input.cache[0]
            before = layer.sublayer_states.get("tokens", before)
            ids = torch.cat([before, ids], 1)
            layer.store_states(x.shape[1], tokens=ids[:, ids.shape[1] - (self.width - 1):])
        else:
            ids = torch.cat([before, ids], 1)
        windows = ids.unfold(1, self.width, 1).flip(-1).contiguous()  # (B, L, order - 1)
        return StackOutput(windows, hidden_states=[x, windows] if stack_input.keep_hidden_states else None)


def resize_buffers(network: nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
    """Make room for saved buffers whose size depends on the text they were counted in."""
    for name, module in network.named_modules():
        if isinstance(module, CountingTable):
            prefix = f"{name}."
            module.resize_buffers({key.removeprefix(prefix): shape for key, shape in shapes.items()
                                   if key.startswith(prefix)})
