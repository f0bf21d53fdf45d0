"""A look at held-out data: the mean losses, beside those of a baseline that knows frequencies alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stemma.network.network import Network
from stemma.network.state import State
from stemma.objectives import Batch
from stemma.objectives.base import Scoring
from stemma.progress import stage
from stemma.training.batches import Prepared, Source
from stemma.training.course import Course
from stemma.training.passes import Passes
from stemma.training.stages import has_begun


class Validation:
    def __init__(self, supply: Source, network: Network, passes: Passes, seed: int):
        self.supply, self.network, self.passes, self.seed = supply, network, passes, seed
        self.objectives = supply.objectives
        self.unigram = supply.unigram()
        self._held_out: dict[int, Sequence[tuple[tuple[Scoring, ...], Batch]]] = {}

    @torch.inference_mode()
    def look(self, course: Course, length: int) -> dict[str, Any]:
        """The mean losses on held-out text, beside what knowing only the frequencies would lose there; of tasks that
        have begun. It leaves the network in evaluation mode."""
        last = max(course.step - 1, 0)
        begun = {o.name for o in self.objectives if has_begun(o, last, course.used)}
        sums: dict[str, list[float]] = {}
        seen: dict[str, list[Batch]] = {}
        self.network.eval()
        torch.manual_seed(self.seed)  # a generator draws (ELECTRA): the same each time, whenever the run was resumed
        state: State | None = None
        with stage("validating", len(looked_at := self.batches(length)), "batches") as work:
            for group, batch in looked_at:
                work.advance()
                objectives = tuple(objective for objective in group if objective.name in begun)
                if not objectives:
                    continue
                found = self.passes.losses(objectives, batch, state if batch.continues else None)
                state = found.state
                for objective in objectives:
                    sums.setdefault(objective.name, []).append(float(found.losses[objective.name]))
                    seen.setdefault(objective.name, []).append(batch)
        losses = {name: float(np.mean(values)) for name, values in sums.items()}
        baselines = {objective.name: objective.mean_baseline(seen[objective.name], self.unigram)
                     for objective in self.objectives if objective.name in seen}
        return {"validation_loss": reported(losses, self.objectives), "validation_losses": losses,
                "unigram_loss": reported(baselines, self.objectives), "baselines": baselines}

    def batches(self, length: int) -> Sequence[tuple[tuple[Scoring, ...], Batch]]:
        """The held-out batches of rows of this length, made once."""
        if length not in self._held_out:
            self._held_out[length] = self.supply.validation_batches(length)
        return self._held_out[length]

    def baseline(self, prepared: Prepared) -> float | None:
        """The baseline's loss on a batch: the number beside the loss in the progress line."""
        found: dict[str, float] = {}
        for objective in prepared.objectives:
            found |= objective.baseline(prepared.batch, self.unigram)
        return reported(found, prepared.objectives)

    def loss_of(self, losses: dict[str, float], objectives: Sequence[Scoring]) -> float | None:
        """The number people compare, of one batch; None where others than this one tell it: a batch of a sentence task
        among those of a language model."""
        told = any(objective.guesses_tokens for objective in objectives)
        return reported(losses, objectives) if told or not any(o.guesses_tokens for o in self.objectives) else None


def reported(losses: dict[str, float], objectives: Sequence[Scoring]) -> float | None:
    """The one number people compare: the weighted mean over tasks that guess tokens, or over all if none does."""
    present = [objective for objective in objectives if objective.name in losses]
    chosen = [objective for objective in present if objective.guesses_tokens] or present
    if not chosen:
        return None
    return sum(losses[o.name] * o.weight for o in chosen) / sum(o.weight for o in chosen)
