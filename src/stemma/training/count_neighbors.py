"""Training of two-sided counts (`counts/neighbors.py`): n-grams of up to three tokens are counted as for any n-gram
model. The last tenth of the text gives the weights of the mixture, and is counted after that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from stemma.counts.neighbors import LEVELS, estimate_neighbors, fit_mixture
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.network.neighbor_tables import NeighborTable
from stemma.objectives.base import LM_HEAD
from stemma.objectives.batch import Batch, Target
from stemma.text.tokenizer import Tokenizer
from stemma.training.count_ngrams import CountingMethod
from stemma.training.method import MethodSetup
from stemma.training.method_kinds import CountingSettings
from stemma.visibility import Bidirectional

HELD_OUT_FRACTION = 0.1  # of the text, for the weights of the mixture
FITTED_TOKENS = 1_000_000  # of it at most
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
        self.first_held_out = int(self.stream.num_positions * (1 - HELD_OUT_FRACTION))

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
        counted = [run for run, (_, stop) in zip(runs, self.parts, strict=True) if stop <= self.first_held_out]
        weights = np.ones(1 + len(LEVELS[neighbors])) / (1 + len(LEVELS[neighbors]))
        if len(counted) < len(runs):  # otherwise the budget ends before the held-out text
            self.table.assign(estimate_neighbors(self.merge(counted), self.packer, neighbors, self.context_ids),
                              weights, self.context_ids)
            weights = fit_mixture(self._held_out_levels())
        self.table.assign(estimate_neighbors(self.merge(runs), self.packer, neighbors, self.context_ids), weights,
                          self.context_ids)

    @torch.no_grad()
    def _held_out_levels(self) -> np.ndarray:
        """(tokens, levels) probabilities of the held-out tokens, from the counts of the text before them."""
        stop = min(self.counted, self.first_held_out + FITTED_TOKENS)
        tokens, _ = self.stream.read(self.first_held_out, stop)
        padded = np.pad(tokens, 1, constant_values=-1)
        text = self.context_ids[tokens]
        contexts = torch.from_numpy(np.column_stack([padded[:-2], padded[2:]])[text])
        device = self.forward_backward.device
        levels = self.table.mixture_levels(contexts.to(device), torch.from_numpy(tokens[text]).to(device))
        return levels.double().cpu().numpy()
