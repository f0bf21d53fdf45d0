"""Early stopping: keep the weights of the best validation, and end training when `patience` runs out.

The best weights are in `checkpoints/best-N`. An older best is deleted only after a checkpoint records the newer one, so
that a kill at any time leaves the weights that a resumed run needs.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.atomic_files import verify_checksums
from stemma.errors import UserError
from stemma.network.network import Network
from stemma.training.callbacks import Callback
from stemma.training.checkpoints import WEIGHTS, load_weights, save_weights

if TYPE_CHECKING:
    from stemma.training.trainer import Trainer

MetricFn = Callable[[], float]  # validation score of the network; higher is better


@dataclass
class BestValidation:
    """The best validation so far; saved in checkpoints."""

    score: float | None = None
    step: int | None = None
    since: int = 0  # validations since then without improvement


class EarlyStopping(Callback):
    """Monitors the score of `metric_fn`, or the validation loss if it is None."""

    def __init__(self, run: Path, network: Network, patience: int | None, metric_fn: MetricFn | None):
        self.run, self.network, self.patience, self.metric_fn = run, network, patience, metric_fn
        self.best = BestValidation()

    def on_validation(self, trainer: Trainer, metrics: dict[str, Any]) -> bool:
        return self.update(trainer.state.step, metrics)

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> None:
        self.remove_old()

    def update(self, step: int, metrics: dict[str, Any]) -> bool:
        """Record a validation, save the weights if it is the best so far, and return True when patience runs out.
        The value of `metric_fn` is added to `metrics`."""
        if self.metric_fn is not None:
            self.network.eval()
            metrics["score"] = self.metric_fn()
        score = metrics["score"] if self.metric_fn is not None else -metrics["validation_loss"]
        score = -math.inf if math.isnan(score) else score
        if self.best.score is None or score > self.best.score:
            save_weights(self._checkpoint_folder(step), self.network)
            self.best = BestValidation(score, step)
        else:
            self.best.since += 1
        return self.should_stop

    @property
    def should_stop(self) -> bool:
        return self.patience is not None and self.best.since >= self.patience

    def remove_old(self) -> None:
        """Delete earlier best weights."""
        for folder in (self.run / "checkpoints").glob("best-*"):
            if folder != self._checkpoint_folder(self.best.step):
                shutil.rmtree(folder, ignore_errors=True)

    def restore_best(self) -> None:
        """Load the weights of the best validation into the network."""
        folder = self._checkpoint_folder(self.best.step)
        advice = f"delete {self.run / 'checkpoints'}, and `stemma resume {self.run}` starts again from step 0."
        if not folder.is_dir():
            raise UserError(f"{folder}, the best weights of {self.run}, is not there any more; {advice}")
        verify_checksums(folder, "the best weights", advice, (WEIGHTS,))
        load_weights(folder, self.network)

    def _checkpoint_folder(self, step: int | None) -> Path:
        return self.run / "checkpoints" / f"best-{step}"
