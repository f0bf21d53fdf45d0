"""A look at held-out data: the mean losses, beside those of a baseline that knows frequencies alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

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
        """The mean losses on held-out text, beside what knowing only the frequencies would lose there; of tasks that
        have begun. It leaves the network in evaluation mode."""
        last = max(train_state.step - 1, 0)
        begun = {o.name for o in self.objectives if has_started(o, last, train_state.used)}
        sums: dict[str, list[float]] = {}
        seen: dict[str, list[Batch]] = {}
        self.network.eval()
        torch.manual_seed(self.seed)  # a generator draws (ELECTRA): the same each time, whenever the run was resumed
        state: State | None = None
        with progress_stage("validating", len(looked_at := self.batches(length)), "batches") as work:
            for group, batch in looked_at:
                work.advance()
                objectives = tuple(objective for objective in group if objective.name in begun)
                if not objectives:
                    continue
                found = self.forward_backward.compute_losses(objectives, batch,
                                                             state if batch.continues_previous else None)
                state = found.state
                for objective in objectives:
                    sums.setdefault(objective.name, []).append(float(found.losses[objective.name]))
                    seen.setdefault(objective.name, []).append(batch)
        losses = {name: float(np.mean(values)) for name, values in sums.items()}
        baselines = {objective.name: objective.mean_baseline(seen[objective.name], self.unigram)
                     for objective in self.objectives if objective.name in seen}
        return {"validation_loss": mean_loss(losses, self.objectives), "validation_losses": losses,
                "unigram_loss": mean_loss(baselines, self.objectives), "baselines": baselines}

    def batches(self, length: int) -> Sequence[tuple[tuple[TrainableObjective, ...], Batch]]:
        """The held-out batches of rows of this length, made once."""
        if length not in self._batches:
            self._batches[length] = self.loader.validation_batches(length)
        return self._batches[length]

    def baseline_loss(self, prepared: PreparedBatch) -> float | None:
        """The baseline's loss on a batch: the number beside the loss in the progress line."""
        found: dict[str, float] = {}
        for objective in prepared.objectives:
            found |= objective.baseline(prepared.batch, self.unigram)
        return mean_loss(found, prepared.objectives)

    def headline_loss(self, losses: dict[str, float], objectives: Sequence[TrainableObjective]) -> float | None:
        """The number people compare, of one batch; None where others than this one tell it: a batch of a sentence task
        among those of a language model."""
        told = any(objective.predicts_tokens for objective in objectives)
        return mean_loss(losses, objectives) if told or not any(o.predicts_tokens for o in self.objectives) else None


def mean_loss(losses: dict[str, float], objectives: Sequence[TrainableObjective]) -> float | None:
    """The one number people compare: the weighted mean over tasks that guess tokens, or over all if none does."""
    present = [objective for objective in objectives if objective.name in losses]
    chosen = [objective for objective in present if objective.predicts_tokens] or present
    if not chosen:
        return None
    return sum(losses[o.name] * o.weight for o in chosen) / sum(o.weight for o in chosen)
