"""Validation: mean losses on held-out data, with the unigram baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stemma.device import seed_generators
from stemma.network.cache import State
from stemma.network.network import Network
from stemma.objectives import Batch
from stemma.objectives.base import TrainableObjective
from stemma.progress import progress_stage
from stemma.training.curriculum import has_started
from stemma.training.forward_backward import ForwardBackward
from stemma.training.loader import BatchLoader, PreparedBatch
from stemma.training.train_state import TrainState


class Validator:
    def __init__(self, loader: BatchLoader, network: Network, forward_backward: ForwardBackward, seed: int):
        self.loader, self.network, self.forward_backward, self.seed = loader, network, forward_backward, seed
        self.objectives = loader.objectives
        self.unigram = loader.unigram()
        self._batches: dict[int, Sequence[tuple[tuple[TrainableObjective, ...], Batch]]] = {}

    @torch.inference_mode()
    def evaluate(self, train_state: TrainState, length: int) -> dict[str, Any]:
        """Mean validation loss and unigram baseline of every objective that has started. Leaves the network in
        evaluation mode."""
        last = max(train_state.step - 1, 0)
        started = {o.name for o in self.objectives if has_started(o, last, train_state.used)}
        values: dict[str, list[float]] = {}
        scored: dict[str, list[Batch]] = {}
        self.network.eval()
        seed_generators(self.seed)  # a generator samples (ELECTRA): the same tokens in every validation
        state: State | None = None
        with progress_stage("validating", len(batches := self.batches(length)), "batches") as work:
            for group, batch in batches:
                work.advance()
                objectives = tuple(objective for objective in group if objective.name in started)
                if not objectives:
                    continue
                output = self.forward_backward.compute_losses(objectives, batch,
                                                              state if batch.continues_previous else None)
                state = output.state
                for objective in objectives:
                    values.setdefault(objective.name, []).append(float(output.losses[objective.name]))
                    scored.setdefault(objective.name, []).append(batch)
        losses = {name: float(np.mean(batch_losses)) for name, batch_losses in values.items()}
        baselines = {objective.name: objective.mean_baseline(scored[objective.name], self.unigram)
                     for objective in self.objectives if objective.name in scored}
        return {"validation_loss": mean_loss(losses, self.objectives), "validation_losses": losses,
                "unigram_loss": mean_loss(baselines, self.objectives), "baselines": baselines}

    def batches(self, length: int) -> Sequence[tuple[tuple[TrainableObjective, ...], Batch]]:
        """The validation batches of this sequence length, made once."""
        if length not in self._batches:
            self._batches[length] = self.loader.validation_batches(length)
        return self._batches[length]

    def baseline_loss(self, prepared: PreparedBatch) -> float | None:
        """Unigram baseline of a batch, shown with the loss in the progress line."""
        baselines: dict[str, float] = {}
        for objective in prepared.objectives:
            baselines |= objective.baseline(prepared.batch, self.unigram)
        return mean_loss(baselines, prepared.objectives)

    def headline_loss(self, losses: dict[str, float], objectives: Sequence[TrainableObjective]) -> float | None:
        """Headline loss of one batch; None if the run has token-prediction objectives and this batch has none."""
        if any(o.predicts_tokens for o in self.objectives) and not any(o.predicts_tokens for o in objectives):
            return None
        return mean_loss(losses, objectives)


def mean_loss(losses: dict[str, float], objectives: Sequence[TrainableObjective]) -> float | None:
    """Headline loss: the weighted mean over token-prediction objectives, or over all if there are none."""
    present = [objective for objective in objectives if objective.name in losses]
    counted = [objective for objective in present if objective.predicts_tokens] or present
    if not counted:
        return None
    return sum(losses[o.name] * o.weight for o in counted) / sum(o.weight for o in counted)
