"""Training of two-sided counts (`counts/neighbors.py`): n-grams of up to three tokens are counted as for any n-gram
model. The last tenth of what is counted gives the weights of the mixture, and is counted after that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from stemma.counts.neighbors import LEVELS, estimate_neighbors, fit_mixture
from stemma.errors import UserError, pluralize
from stemma.network.inputs_outputs import Stream
from stemma.network.neighbor_tables import NeighborTable
from stemma.objectives.base import LM_HEAD
from stemma.objectives.batch import Batch, Target
from stemma.text.tokenizer import Tokenizer
from stemma.training.count_ngrams import CountingMethod
from stemma.training.method import MethodSetup
from stemma.training.method_kinds import CountingSettings
from stemma.visibility import Bidirectional

HELD_OUT_FRACTION = 0.1  # of what is counted, for the weights of the mixture
FITTED_TOKENS = 1_000_000  # of it at most
MIN_FITTED_TOKENS = 100  # with fewer the weights are equal: fitted to 20 tokens they are often worse than that
MIN_TOKENS = 20
ORDERS = {"none": 1, "left": 2, "both": 3}  # tokens of an n-gram, by the neighbours used


class CountNeighbors(CountingMethod):
    def __init__(self, settings: CountingSettings, setup: MethodSetup):
        table = setup.network.embedding.tokens
        assert isinstance(table, NeighborTable)  # a conflict of the recipe otherwise
        super().__init__(settings, setup, ORDERS[table.neighbors])
        self.table = table
        self.context_ids = np.ones(self.network.vocab_size, bool)
        self.context_ids[self.loader.corpus.tokenizer.special_ids] = False
        if self.stream.num_positions < MIN_TOKENS:
            raise UserError(f"{self.stream.num_positions} tokens are too few to count neighbours in; give a longer "
                            "text.")
        self.first_held_out = self._first_held_out()

    def _first_held_out(self) -> int:
        """The position where the held-out text begins, before the end of what the budget lets the run count. For
        minutes that end is not known."""
        budget, end = self.setup.budget, self.stream.num_positions
        if budget.unit == "tokens":  # a position that separates documents is no token
            end = min(end, int(budget.amount * end / max(1, int(self.stream.lengths.sum()))))
        elif budget.unit == "steps":
            end = min(end, int(budget.amount) * self.part_positions)
            if budget.amount < 2:
                return end  # a step is a part of one kind: nothing is held out
            return min(int(end * (1 - HELD_OUT_FRACTION)), int(budget.amount - 1) * self.part_positions)
        return max(1, int(end * (1 - HELD_OUT_FRACTION)))

    def part_end(self, start: int) -> int:
        """No part holds text on both sides of the position where the held-out text begins."""
        end = super().part_end(start)
        return min(end, self.first_held_out) if start < self.first_held_out else end

    def document_end(self, tokenizer: Tokenizer, boundary: str) -> int:
        """Any special token: it is no context and is not counted."""
        end = tokenizer.document_separator_id(boundary)
        return tokenizer.special_id("mask") if end is None else end

    def make_batch(self, start: int, stop: int) -> Batch:
        """Every token, predicted from its own neighbours."""
        tokens, _ = self.stream.read(start, stop)
        ids = torch.from_numpy(tokens[None])
        index = torch.from_numpy(np.flatnonzero(self.context_ids[tokens]))
        target = Target(index, ids[0][index], max(1.0, len(index)), len(tokens))
        return Batch({"encoder": Stream(ids, Bidirectional())}, {LM_HEAD: target}, num_tokens=len(index), num_rows=1)

    def estimate(self, runs: list[Path]) -> None:
        neighbors = self.table.neighbors
        weights = np.ones(1 + len(LEVELS[neighbors])) / (1 + len(LEVELS[neighbors]))
        stop = max(self.first_held_out, min(self.counted, self.first_held_out + FITTED_TOKENS))
        held_out, _ = self.stream.read(self.first_held_out, stop)
        num_held_out = int(self.context_ids[held_out].sum())
        self.warnings = []
        if num_held_out >= MIN_FITTED_TOKENS:
            counted = [run for run, (_, stop) in zip(runs, self.parts, strict=True) if stop <= self.first_held_out]
            self.table.assign(estimate_neighbors(self.merge(counted), self.packer, neighbors, self.context_ids),
                              weights, self.context_ids)
            weights = fit_mixture(self._held_out_levels(held_out))
        elif len(weights) > 1:
            self.warnings = [f"too little text is held out to fit the weights of the mixture ({num_held_out} of "
                             f"{pluralize(MIN_FITTED_TOKENS, 'token')}), so they are equal; use more text or a larger "
                             "budget."]
        self.table.assign(estimate_neighbors(self.merge(runs), self.packer, neighbors, self.context_ids), weights,
                          self.context_ids)

    @torch.no_grad()
    def _held_out_levels(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """(tokens, levels) probabilities of the held-out tokens, from the counts of the text before them."""
        padded = np.pad(tokens, 1, constant_values=-1)
        text = self.context_ids[tokens]
        contexts = torch.from_numpy(np.column_stack([padded[:-2], padded[2:]])[text])
        device = self.forward_backward.device
        levels = self.table.mixture_levels(contexts.to(device), torch.from_numpy(tokens[text]).to(device))
        probabilities: NDArray[np.float64] = levels.double().cpu().numpy()
        return probabilities
