"""Two-sided counts as a network: a hidden state is the pair of neighbours, and the head mixes the frequencies of tokens
in their context (`counts/neighbors.py` counts them)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stemma.counts.neighbors import LEVELS, NeighborTables
from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.ngram_tables import NOTHING, CountingTable


class NeighborTable(CountingTable):
    """The frequencies of all levels and the weights of their mixture."""

    context_width = 2

    def __init__(self, vocab_size: int, neighbors: str):
        super().__init__(vocab_size)
        self.neighbors, self.levels = neighbors, LEVELS[neighbors]
        self.register_buffer("unigram", torch.full((vocab_size,), 1 / vocab_size))
        self.register_buffer("weights", torch.full((1 + len(self.levels),), 1 / (1 + len(self.levels))))
        self.register_buffer("context_ids", torch.ones(vocab_size))  # 0 for special tokens, which are no context
        for level in self.levels:
            self.register_buffer(f"keys_{level}", torch.zeros(0, dtype=torch.int64))
            self.register_buffer(f"probabilities_{level}", torch.zeros(0))

    def assign(self, tables: NeighborTables, weights: NDArray[np.float64], context_ids: NDArray[np.bool_]) -> None:
        """Replace all counts."""
        new: dict[str, NDArray[Any]] = {"unigram": tables.unigram, "weights": weights.astype(np.float32),
                                        "context_ids": context_ids.astype(np.float32)}
        for level in self.levels:
            new |= {f"keys_{level}": tables.keys[level], f"probabilities_{level}": tables.probabilities[level]}
        device = self._buffer("unigram").device
        for name, values in new.items():
            self.register_buffer(name, torch.from_numpy(values).to(device))

    def _buffer(self, name: str) -> Tensor:
        buffer: Tensor = getattr(self, name)
        return buffer

    def _level_contexts(self, contexts: Tensor) -> dict[str, Tensor]:
        """(N, 2) neighbours -> the context of each level, NOTHING where a neighbour is not text."""
        is_text = self._buffer("context_ids")[contexts.clamp(min=0)] > 0
        left, right = torch.where((contexts >= 0) & is_text, contexts, NOTHING).unbind(1)
        both = torch.where((left >= 0) & (right >= 0), left * self.num_embeddings + right, NOTHING)
        return {"after": left, "before": right, "between": both}

    def _rows(self, level: str, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """The first row of each context in the table of a level, and the number of its tokens."""
        keys = self._buffer(f"keys_{level}")
        first, stop = (torch.searchsorted(keys, (contexts + extra) * self.num_embeddings) for extra in (0, 1))
        return first, torch.where(contexts >= 0, stop - first, 0)

    def mixture_levels(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """(N, 2), (N,) -> (N, levels) probability of each token at each level of the mixture."""
        levels, by_level = [self._buffer("unigram")[tokens]], self._level_contexts(contexts)
        for level in self.levels:
            context = by_level[level]
            known = self._rows(level, context)[1] > 0
            default = (levels[1] + levels[2]) / 2 if level == "between" else levels[0]
            keys, values = self._buffer(f"keys_{level}"), self._buffer(f"probabilities_{level}")
            if not len(keys):
                levels.append(default)
                continue
            wanted = context * self.num_embeddings + tokens
            found = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
            own = torch.where(keys[found] == wanted, values[found], 0.0)
            levels.append(torch.where(known, own, default))
        return torch.stack(levels, 1)

    def score(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return (self.mixture_levels(contexts, tokens) @ self._buffer("weights")).log()

    def distributions(self, contexts: Tensor) -> Tensor:
        unigram, weights, by_level = self._buffer("unigram"), self._buffer("weights"), self._level_contexts(contexts)
        levels = [unigram.expand(len(contexts), -1)]
        for level in self.levels:
            first, count = self._rows(level, by_level[level])
            default = (levels[1] + levels[2]) / 2 if level == "between" else levels[0]
            values = torch.where((count > 0)[:, None], 0.0, default)
            rows = torch.arange(int(count.sum()), device=count.device) + (
                first - (count.cumsum(0) - count)).repeat_interleave(count)
            index = torch.arange(len(contexts), device=count.device).repeat_interleave(count)
            values[index, self._buffer(f"keys_{level}")[rows] % self.num_embeddings] = \
                self._buffer(f"probabilities_{level}")[rows]
            levels.append(values)
        total = levels[0] * weights[0]
        for weight, values in zip(weights[1:], levels[1:], strict=True):
            total = total + weight * values
        return total.log()


class NeighborBody(Body):
    """Hidden states are contexts: at each position the token before and the token after it."""

    def layer_groups(self) -> list[list[nn.Module]]:
        return [[self]]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        ids = x[..., 0]  # (B, L)
        nothing = ids.new_full((len(ids), 1), float(NOTHING))
        pairs = torch.stack([torch.cat([nothing, ids[:, :-1]], 1), torch.cat([ids[:, 1:], nothing], 1)], -1)
        return StackOutput(pairs, hidden_states=[x, pairs] if stack_input.keep_hidden_states else None)
